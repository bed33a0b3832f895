"""The rule `slack` through whole gateways: who waits, who is given up, and switching it live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.fakes.live_engines import LiveEngine, prefilled
from tests.fakes.redis_servers import Server, redis_server
from tests.fakes.scripted_engine import Recorded, Script, Step, Until, json_answer
from tests.fakes.systems import Document, System, routing, scripted_system, serve_gateway

PROFILED = {"profiles": {"prfaas": "./profile.yaml", "pd": "./profile.yaml"}}
SLACK: Document = {"policy": "slack"}
SHORT, LONG = 50, 200


@pytest.fixture
def redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


class Turnstile:
    """Lets an engine's prefills through one by one; counts how many were there at once."""

    def __init__(self, engine: LiveEngine) -> None:
        self.engine = engine
        self.inside = 0
        self.most = 0
        self._gates: list[asyncio.Event] = []
        self._opened = False
        engine.reply(self._script)

    def _script(self, request: Recorded) -> Script:
        if not (request.json().get("kv_transfer_params") or {}).get("do_remote_decode"):
            return json_answer({"error": "only prefills are scripted"}, 500)
        gate = asyncio.Event()
        self._gates.append(gate)
        if self._opened:
            gate.set()
        self.inside += 1
        self.most = max(self.most, self.inside)
        steps: list[Step] = [Until(gate), *prefilled(f"{self.engine.name}-{len(self._gates)}")]
        return steps

    def let_through(self) -> None:
        """Let the oldest that is inside go on."""
        self._gates.pop(0).set()
        self.inside -= 1

    def open(self) -> None:
        """Hold nobody up any more."""
        self._opened = True
        while self._gates:
            self.let_through()


@asynccontextmanager
async def crowded(
    directory: Path, *, names: str = "p0 d0", **changes: object
) -> AsyncIterator[tuple[System, Turnstile]]:
    """A gateway under `slack` whose `p0` prefills when it is let."""
    scheduler = {"scheduler": SLACK, **changes}
    async with scripted_system(directory, names=names, model=PROFILED, **scheduler) as system:
        turnstile = Turnstile(system.engine("p0"))
        try:
            yield system, turnstile
        finally:
            turnstile.open()


async def waits(system: System, count: int) -> None:
    """Wait until so many prompts wait for an instance."""
    await system.until(lambda state: state["prefill_queue"]["waiting"] == count, within=20)


async def until(condition: Callable[[], Awaitable[bool]], within: float = 60.0) -> None:
    async with asyncio.timeout(within):
        while not await condition():  # noqa: ASYNC110 - it is in another gateway
            await asyncio.sleep(0.01)


def ask(system: System, count: int, tokens: int = SHORT) -> list[asyncio.Task[httpx.Response]]:
    return [asyncio.create_task(system.complete(tokens)) for _ in range(count)]


async def test_prompts_wait_at_the_gateway_and_are_seen_there(tmp_path: Path) -> None:
    """An engine is given one at a time; a client that leaves costs nothing; all is told."""
    async with crowded(tmp_path) as (system, turnstile):
        tasks = ask(system, 4)
        await system.engine("p0").called(1)
        await waits(system, 3)
        metrics = await system.metrics()
        assert metrics.total("prefill_queue_depth", cluster="east") == 3
        state = await system.order("GET", "state")
        assert state["prefill_queue"]["clusters"] == {"east": 3, "west": 0}
        assert state["prefill_queue"]["oldest_seconds"] > 0

        tasks.pop().cancel()
        await waits(system, 2)
        for served in (1, 2, 3):
            await system.engine("p0").called(served)
            turnstile.let_through()
        answers = await asyncio.gather(*tasks)
        assert [routing(each) for each in answers] == [("local", "below_threshold")] * 3
        assert turnstile.most == 1
        newest, *_ = await system.decisions()
        assert newest["queue_seconds"] > 0
        metrics = await system.metrics()
        assert metrics.total("prefill_queue_seconds_count", outcome="bound") == 3
        assert metrics.total("prefill_queue_seconds_count", outcome="left") == 1
        await system.settled()


async def test_the_queue_is_bounded_and_the_wait_too(tmp_path: Path) -> None:
    """Both are 503 with a time to come back, and nobody else is touched."""
    scheduler = {"policy": "slack", "slack": {"queue_size": 1}}
    admission = {"queue_timeout_seconds": 1}
    async with crowded(tmp_path, scheduler=scheduler, admission=admission) as (system, turnstile):
        (running,) = ask(system, 1)
        await system.engine("p0").called(1)
        (waiting,) = ask(system, 1)
        await waits(system, 1)
        refused = await system.complete(SHORT)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert (await waiting).status_code == 503
        turnstile.let_through()
        assert (await running).status_code == 200
        metrics = await system.metrics()
        assert metrics.total("prefill_queue_seconds_count", outcome="refused") == 2


async def test_the_rule_is_switched_while_requests_wait(tmp_path: Path) -> None:
    """Those that wait go by the new rule at once, those that run go on; none is lost."""
    async with crowded(tmp_path) as (system, turnstile):
        tasks = ask(system, 12)
        await waits(system, 11)
        told = await system.order("PUT", "policy", {"policy": "paper"})
        assert (told["policy"], told["configured"], told["source"]) == (
            "paper",
            "slack",
            "operator",
        )
        await system.engine("p0").called(12)
        assert turnstile.most == 12
        # Back again: a new one waits for all that the engine was given meanwhile.
        await system.order("PUT", "policy", {"policy": "config"})
        late = ask(system, 1)
        await waits(system, 1)
        turnstile.open()
        answers = await asyncio.gather(*tasks, *late)
        assert {each.status_code for each in answers} == {200}
        audit = (await system.order("GET", "audit"))["audit"]
        assert [each["action"] for each in audit] == ["policy.set", "policy.set"]


async def test_a_chosen_instance_that_dies_is_replaced(tmp_path: Path) -> None:
    """A remote prefill that fails falls back to a local one; the queue goes on without it."""
    async with crowded(tmp_path, names="p0 d0 f0") as (system, turnstile):
        turnstile.open()
        system.engine("f0").reply(json_answer({"error": "out of memory"}, 500))
        answers = await asyncio.gather(*ask(system, 6, LONG))
        assert {each.status_code for each in answers} == {200}
        assert ("local", "remote_prefill_failed") in {routing(each) for each in answers}
        await system.engine("f0").stop()
        answers = await asyncio.gather(*ask(system, 6, LONG))
        assert {each.status_code for each in answers} == {200}
        await waits(system, 0)
        await system.settled()


async def test_gateways_share_an_instances_time(tmp_path: Path, redis: Server) -> None:
    """Two on one store never give an engine two at once; both are served, also when one is gone."""
    store = {"url": redis.url, "timeout_ms": 1000}
    async with crowded(tmp_path, store=store) as (one, turnstile):
        async with serve_gateway(tmp_path / "prfaas.yaml", engines=one.engines) as two:
            tasks = [*ask(one, 5), *ask(two, 5)]
            for served in range(1, 9):
                await one.engine("p0").called(served, within=20)
                await asyncio.sleep(0)
                turnstile.let_through()
            assert turnstile.most == 1
            turnstile.open()
            answers = await asyncio.gather(*tasks)
            assert {each.status_code for each in answers} == {200}
        # What the other had is given back when it ends; the store's absence stops nobody.
        assert (await one.complete(SHORT)).status_code == 200
        redis.stop()
        answers = await asyncio.gather(*ask(one, 3))
        assert {each.status_code for each in answers} == {200}
