"""The queue before the decode slots, through a whole gateway."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.live_engines import LiveEngine, completed
from tests.fakes.processes import prfaas
from tests.fakes.raw_clients import RawCall, calling
from tests.fakes.scripted_engine import Reset, Until, json_answer
from tests.fakes.systems import (
    MODEL,
    Document,
    System,
    describe,
    routing,
    scripted_system,
    standin_system,
    write_configuration,
)

TENANTS = [
    {"name": "one", "api_keys": ["sk-one"]},
    {"name": "three", "api_keys": ["sk-three"], "weight": 3},
]
PROMPT = {"model": MODEL, "prompt": [1, 2, 3]}


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer sk-{name}"}


def slots(count: int) -> Document:
    return {"decode": {"max_concurrency": count}}


def waiting(count: int) -> Any:  # noqa: ANN401 - a condition on the state document
    return lambda state: state["queue"]["waiting"] == count


class Gate:
    """Keeps an engine from answering; counts how many it holds at once."""

    def __init__(self, engine: LiveEngine) -> None:
        self.engine = engine
        self.event = asyncio.Event()
        engine.reply(lambda _: [Until(self.event), *completed(engine.name, MODEL)])

    def open(self) -> None:
        self.event.set()


@asynccontextmanager
async def crowded(
    directory: Path, *, count: int = 1, names: str = "d0", **changes: object
) -> AsyncIterator[tuple[System, Gate]]:
    """A gateway whose one decode slot is taken; `count` slots an instance if said."""
    async with scripted_system(directory, names=names, model=slots(count), **changes) as system:
        gate = Gate(system.engine(names.split(maxsplit=1)[0]))
        try:
            yield system, gate
        finally:
            gate.open()


async def test_weights_share_an_overloaded_fleet(tmp_path: Path) -> None:
    """Under overload a tenant of weight 3 is served three times as often as one of weight 1."""
    changes = {"tenants": TENANTS, "admission": {"queue_size": 200}}
    async with standin_system(
        tmp_path, names="d0 d1", model=slots(2), time_scale=20.0, threshold=1000, **changes
    ) as system:
        served: Counter[str] = Counter()
        over = asyncio.Event()

        async def keep_asking(name: str) -> None:
            while not over.is_set():
                answer = await system.complete(20, headers=bearer(name), max_tokens=200)
                assert answer.status_code == 200
                if not over.is_set():
                    served[name] += 1
                if served.total() == 80:
                    over.set()

        async def watch() -> None:
            while not over.is_set():
                for instance in (await system.order("GET", "state"))["instances"]:
                    assert instance["decode_slots_held"] <= 2
                    assert instance["decodes_inflight"] <= 2
                await asyncio.sleep(0.02)

        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            tasks.create_task(watch())
            for name in ("one", "three"):
                for _ in range(12):
                    tasks.create_task(keep_asking(name))
        # A quarter of 80, give or take what was in flight at the end.
        assert 14 <= served["one"] <= 26
        await system.until(waiting(0))
        assert not any(
            i["decode_slots_held"] for i in (await system.order("GET", "state"))["instances"]
        )


async def test_the_queue_is_shown_and_counted(tmp_path: Path) -> None:
    """State and metrics tell who waits, by tenant; afterwards nobody does."""
    async with crowded(tmp_path, tenants=TENANTS) as (system, gate):
        asking = [
            asyncio.create_task(system.complete(10, headers=bearer(name)))
            for name in ("one", "one", "three")
        ]
        state = await system.until(waiting(2))
        assert sum(state["queue"]["tenants"].values()) == 2
        assert state["queue"]["oldest_seconds"] >= 0
        metrics = await system.metrics()
        assert metrics.total("queue_depth") == 2
        depths = {s.labels["tenant"] for s in metrics.samples if s.name == "prfaas_queue_depth"}
        assert depths == {"one", "three"}
        gate.open()
        assert {(await task).status_code for task in asking} == {200}
        metrics = await system.metrics()
        assert metrics.total("queue_depth") == 0
        assert metrics.total("queue_seconds_count") == 3


async def test_the_wait_times_out(tmp_path: Path) -> None:
    """After `queue_timeout_seconds` it is 503 with Retry-After; the engine saw nothing of it."""
    admission = {"queue_timeout_seconds": 0.3}
    async with crowded(tmp_path, admission=admission) as (system, gate):
        first = asyncio.create_task(system.complete(10))
        await gate.engine.called(1)
        late = await system.complete(10)
        assert late.status_code == 503
        assert late.json()["error"]["type"] == "overloaded_error"
        assert int(late.headers["retry-after"]) >= 1
        assert len(gate.engine.calls) == 1
        gate.open()
        assert (await first).status_code == 200


async def test_a_full_queue_is_refused_at_once(tmp_path: Path) -> None:
    """Beyond `queue_size` it is 503 with Retry-After without waiting."""
    async with crowded(tmp_path, admission={"queue_size": 1}) as (system, gate):
        asking = [asyncio.create_task(system.complete(10))]
        await gate.engine.called(1)
        asking.append(asyncio.create_task(system.complete(10)))
        await system.until(waiting(1))
        refused = await system.complete(10)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        gate.open()
        assert [(await task).status_code for task in asking] == [200, 200]


async def test_r09_leaving_the_queue(tmp_path: Path) -> None:
    """Clients that leave while they wait free their places at once, and are never sent on."""
    async with crowded(tmp_path) as (system, gate):
        first = asyncio.create_task(system.complete(10))
        await gate.engine.called(1)
        async with AsyncExitStack() as stack:
            for _ in range(20):
                call: RawCall = await stack.enter_async_context(calling(system.url))
                await call.ask("/v1/completions", PROMPT)
            await system.until(waiting(20))
            last = asyncio.create_task(system.complete(10))
            await system.until(waiting(21))
        await system.until(waiting(1), within=10)
        gate.open()
        assert [(await task).status_code for task in (first, last)] == [200, 200]
        await system.settled()
        assert len(gate.engine.calls) == 2
        await system.counted("requests_total", code="499")


async def test_r09_slots_come_back_from_every_phase(tmp_path: Path) -> None:
    """Aborts in the queue, in the prefill and in the decode, and broken engines, leak no slot."""
    async with crowded(tmp_path, names="d0 p0 f0", count=2) as (system, gate):
        system.engine("p0").then([Reset()], [Reset()])
        async with AsyncExitStack() as stack:
            for size in (3, 3, 500, 500, 3, 500):
                call = await stack.enter_async_context(calling(system.url))
                await call.ask("/v1/completions", {"model": MODEL, "prompt": [7] * size})
            await system.until(waiting(2))  # the first two failed with their prefill
        await system.until(waiting(0), within=10)
        await system.until(lambda s: not any(i["decode_slots_held"] for i in s["instances"]))
        gate.engine.reply([Reset()])
        for _ in range(3):
            assert (await system.complete(10)).status_code == 502
        gate.engine.reply(completed("d0", MODEL))
        for _ in range(5):
            assert (await system.complete(10)).status_code == 200
        state = await system.order("GET", "state")
        assert not any(i["decode_slots_held"] for i in state["instances"])


async def test_the_decision_is_made_when_the_slot_is_there(tmp_path: Path) -> None:
    """What changed while a request waited counts: it is decided by the threshold of its turn."""
    async with crowded(tmp_path, names="d0 p0 f0") as (system, gate):
        first = asyncio.create_task(system.complete(10))
        await gate.engine.called(1)
        second = asyncio.create_task(system.complete(50))
        await system.until(waiting(1))
        await system.order("PUT", "threshold", {"mode": "manual", "tokens": 20})
        gate.open()
        assert routing(await first) == ("local", "below_threshold")
        assert routing(await second) == ("prfaas", "above_threshold")
        assert (await second).headers["x-prfaas-threshold"] == "20"


async def test_an_instance_that_drains_hands_its_queue_to_the_others(tmp_path: Path) -> None:
    """Requests that wait when an instance drains run elsewhere; with nobody left they are 503."""
    async with crowded(tmp_path, names="d0 d1") as (system, gate):
        other = Gate(system.engine("d1"))
        asking = [asyncio.create_task(system.complete(10)) for _ in range(5)]
        await system.until(waiting(3))
        await system.order("PATCH", "instances/d0", {"state": "draining"})
        other.open()
        answers = [await asyncio.wait_for(task, 30) for task in asking if task in asking[1:]]
        assert len(system.engine("d0").calls) == 1
        gate.open()
        answers.append(await asking[0])
        assert {answer.status_code for answer in answers} == {200}
        blocked = Gate(system.engine("d1"))
        running = asyncio.create_task(system.complete(10))
        await system.until(lambda s: any(i["decode_slots_held"] for i in s["instances"]))
        hopeless = asyncio.create_task(system.complete(10))
        await system.until(waiting(1))
        await system.order("PATCH", "instances/d1", {"state": "disabled"})
        refused = await asyncio.wait_for(hopeless, 30)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        blocked.open()
        assert (await running).status_code == 200


async def test_a_request_that_loses_its_instance_waits_for_another(tmp_path: Path) -> None:
    """A decode that cannot have run is tried on a full instance once that has a slot."""
    async with crowded(tmp_path, names="d0 d1") as (system, gate):
        other = Gate(system.engine("d1"))
        first = asyncio.create_task(system.complete(10))
        await gate.engine.called(1)
        await system.engine("d1").stop()
        moved = asyncio.create_task(system.complete(10))
        await system.until(waiting(1))
        assert not moved.done()
        gate.open()
        assert (await first).status_code == 200
        answer = await moved
        assert answer.status_code == 200
        assert answer.headers["x-prfaas-decode"] == "d0"
        other.open()


@pytest.mark.parametrize("own", [True, False])
async def test_priorities(tmp_path: Path, own: bool) -> None:
    """A lower number goes first where the tenant may choose; elsewhere it counts for nothing."""
    tenants = [{"name": "one", "api_keys": ["sk-one"], "allow_priority": own}]
    async with crowded(tmp_path, tenants=tenants) as (system, gate):
        order: list[str] = []

        async def ask(name: str, body: Document, headers: dict[str, str]) -> None:
            answer = await system.complete(10, headers=bearer("one") | headers, **body)
            assert answer.status_code == 200
            order.append(name)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask("running", {}, {}))
            await gate.engine.called(1)
            for place, (name, body, headers) in enumerate(
                [
                    ("meek", {}, {"x-prfaas-priority": "9"}),
                    ("meeker", {"priority": 20}, {}),
                    ("odd", {"priority": "soon"}, {"x-prfaas-priority": "now"}),
                    ("bold", {}, {"x-prfaas-priority": "-50"}),
                    ("usual", {}, {}),
                ],
                start=1,
            ):
                tasks.create_task(ask(name, body, headers))
                await system.until(waiting(place))
            gate.open()
        served = ["odd", "bold", "usual", "meek", "meeker"]
        assert order == ["running", *(served if own else ["meek", "meeker", *served[:3]])]


async def test_a_tenants_priority_goes_first(tmp_path: Path) -> None:
    """The operator's priority of a tenant puts its requests before the others'."""
    tenants = [TENANTS[0], {"name": "urgent", "api_keys": ["sk-urgent"], "priority": -5}]
    async with crowded(tmp_path, tenants=tenants) as (system, gate):
        order: list[str] = []

        async def ask(name: str) -> None:
            await system.complete(10, headers=bearer(name))
            order.append(name)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask("one"))
            await gate.engine.called(1)
            for place, name in enumerate(("one", "one", "urgent", "urgent"), start=1):
                tasks.create_task(ask(name))
                await system.until(waiting(place))
            gate.open()
        assert order == ["one", "urgent", "urgent", "one", "one"]


async def test_others_decodes_take_slots(tmp_path: Path) -> None:
    """What an engine reports beyond ours counts against its slots until it is gone."""
    async with scripted_system(tmp_path, names="d0", model=slots(2)) as system:
        engine = system.engine("d0")
        engine.running = 2
        await system.until(lambda s: s["instances"][0]["decode_slots_used"] == 2)
        asking = asyncio.create_task(system.complete(10))
        await system.until(waiting(1))
        engine.running = 1
        assert (await asking).status_code == 200


async def queued(client: httpx.AsyncClient, count: int) -> None:
    """Wait until the exported depth of the queue is so much."""
    text = ""
    async with asyncio.timeout(30):
        while f'prfaas_queue_depth{{tenant="default"}} {count}.0' not in text:
            await asyncio.sleep(0.02)
            text = (await client.get("/metrics")).text


async def test_stored_responses_need_no_slot_and_pass_limits(tmp_path: Path) -> None:
    """Reading and cancelling pass a full house and a tenant's limits; what computes does not."""
    tenants = [{"name": "one", "api_keys": ["sk-one"], "max_concurrency": 2}]
    async with crowded(tmp_path, names="b0", tenants=tenants) as (system, gate):
        engine = system.engine("b0")
        made = {"id": "resp_1", "object": "response", "model": MODEL, "output": []}
        for path in ("/v1/responses", "/v1/responses/resp_1", "/v1/responses/resp_1/cancel"):
            engine.on(path, json_answer(made))
        engine.on("/v1/embeddings", json_answer({"object": "list", "data": [], "model": MODEL}))

        async def post(path: str, **members: object) -> int:
            body = {"model": MODEL, "input": "Hi", **members}
            return (await system.client.post(path, json=body, headers=bearer("one"))).status_code

        assert await post("/v1/responses") == 200
        running = asyncio.create_task(system.complete(10, headers=bearer("one")))
        await engine.called(1)
        waits = asyncio.create_task(post("/v1/responses", previous_response_id="resp_1"))
        await system.until(waiting(1))
        assert await post("/v1/embeddings") == 429
        read = await system.client.get("/v1/responses/resp_1", headers=bearer("one"))
        assert read.status_code == 200
        assert await post("/v1/responses/resp_1/cancel") == 200
        gate.open()
        assert (await running).status_code == 200
        assert await waits == 200


async def test_r63_a_queue_is_served_while_draining(tmp_path: Path) -> None:
    """After SIGTERM those who wait are served as slots become free, and the process ends with 0."""
    async with LiveEngine("d0") as engine:
        gate = Gate(engine)
        instance = {"name": "d0", "url": engine.url, "role": "decode"}
        document = describe(
            [{"name": "east", "kind": "pd", "instances": [instance]}],
            threshold=100,
            model={"tokenizer": {"kind": "none"}, **slots(1)},
            links=[],
            drain={"delay_seconds": 2},
        )
        config = str(write_configuration(tmp_path, document))
        async with prfaas(
            "serve", "--config", config, "--port", "0", directory=tmp_path
        ) as command:
            url = (await command.said(r"prfaas gateway on (http://\S+)"))[1]
            async with httpx.AsyncClient(base_url=url, timeout=10, trust_env=False) as client:
                asking = [
                    asyncio.create_task(client.post("/v1/completions", json=PROMPT))
                    for _ in range(4)
                ]
                await queued(client, 3)
                command.send(signal.SIGTERM)
                async with asyncio.timeout(10):
                    while (await client.get("/ready")).status_code != 503:
                        pass
                gate.open()
                assert [(await task).status_code for task in asking] == [200] * 4
            assert await command.ended() == 0
