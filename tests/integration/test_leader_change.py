"""One leader of several processes on a real Redis: killed, stopped, and everything restarted."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import pytest

from router.service.solutions import KeptSolutions, decode_solutions
from tests.fakes.live_engines import LiveEngine
from tests.fakes.processes import RunningCommand, gone, prfaas
from tests.fakes.redis_servers import Server, redis_server
from tests.fakes.systems import (
    Document,
    Metrics,
    System,
    describe,
    fresh_ids,
    routing,
    scripted_system,
    serve_gateway,
    write_configuration,
)

PROFILED = {"profiles": {"prfaas": "./profile.yaml", "pd": "./profile.yaml"}}
AUTO = {
    "threshold": {"mode": "auto", "tokens": 100, "min_tokens": 16, "max_tokens": 4000},
    "short_loop": {"period_seconds": 0.1, "dwell_seconds": 0.5},
}


async def until(condition: Callable[[], Awaitable[bool]], within: float = 60.0) -> None:
    async with asyncio.timeout(within):
        while not await condition():  # noqa: ASYNC110 - it is in other processes
            await asyncio.sleep(0.05)


@dataclass
class Crew:
    """A gateway of two workers, and the store between them."""

    command: RunningCommand
    redis: Server
    url: str

    async def get(self, path: str) -> httpx.Response:
        """Ask on a new connection, which the kernel gives to any worker."""
        async with httpx.AsyncClient(base_url=self.url, timeout=30, trust_env=False) as client:
            return await client.get(path)

    async def state(self) -> Document:
        """What whichever worker takes the connection tells."""
        document: Document = (await self.get("/admin/v1/state")).json()
        return document

    async def states(self) -> dict[int, Document]:
        """What each of the workers tells, by process id."""
        found: dict[int, Document] = {}
        async with asyncio.timeout(60):
            while len(found) < 2:
                state = await self.state()
                pids = {each["worker"]: each["pid"] for each in state["workers"]}
                found[pids[state["worker"]]] = state
        return found

    async def leader(self) -> int:
        """Wait until the workers know a leader; return its process id."""
        found: list[int] = []

        async def known() -> bool:
            name = (await self.state())["leader"]["name"]
            if name is not None:
                found.append(int(name.rpartition("/")[2]))
            return name is not None

        await until(known)
        return found[0]

    async def tell_lengths(self) -> None:
        """Ask with 130 prompts of 20 to 2,600 tokens, spread over the workers."""
        for number in range(13):
            async with httpx.AsyncClient(base_url=self.url, timeout=30, trust_env=False) as client:
                for step in range(10):
                    prompt = fresh_ids(20 * (10 * number + step + 1))
                    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1}
                    assert (await client.post("/v1/completions", json=body)).status_code == 200

    def kept(self) -> KeptSolutions:
        """What is solved, as the store keeps it."""
        text = self.redis.call("HGET", "prfaas:{control}:solved", "text")
        assert isinstance(text, bytes)
        return decode_solutions(text)

    async def agreed(self) -> int:
        """Wait until t is solved, both workers show the same, and it stays; return it."""
        last: list[object] = []

        async def alike() -> bool:
            states = await self.states()
            solved = {state["thresholds"][0]["solved_tokens"] for state in states.values()}
            documents = {msgspec.json.encode(state["solved"]) for state in states.values()}
            last.append((solved, documents))
            return (
                len(solved) == len(documents) == 1
                and None not in solved
                and last[-1:] == last[-2:-1]
            )

        await until(alike)
        return self.kept().solutions[0].tokens


@asynccontextmanager
async def crew(directory: Path) -> AsyncIterator[Crew]:
    """Two workers over scripted engines."""
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(redis_server())
        clusters: list[Document] = [
            {"name": "east", "kind": "pd", "instances": []},
            {"name": "west", "kind": "prfaas", "instances": []},
        ]
        roles = {"p": "prefill", "d": "decode", "f": "prefill"}
        for name in ("p0", "d0", "f0"):
            engine = await stack.enter_async_context(LiveEngine(name))
            entry = {"name": name, "url": engine.url, "role": roles[name[0]]}
            clusters[name == "f0"]["instances"].append(entry)
        model = {"tokenizer": {"kind": "none"}, "cache": {"block_size": 16}, **PROFILED}
        document = describe(
            clusters,
            threshold=100,
            model=model,
            store={"url": redis.url, "timeout_ms": 500},
            scheduler=AUTO,
        )
        config = write_configuration(directory, document)
        arguments = ["serve", "--config", str(config), "--port", "0", "--workers", "2"]
        command = await stack.enter_async_context(prfaas(*arguments, directory=directory))
        url = (await command.said(r"prfaas gateway on (http://\S+),", within=60))[1]
        try:
            yield Crew(command, redis, url)
        finally:
            children = [] if command.process.returncode is not None else command.children()
            await command.stop()
            await gone(children)


@pytest.mark.long
async def test_a_leader_that_dies_or_stops_is_followed_and_t_stays(tmp_path: Path) -> None:
    """Killed, another acts in a higher term; stopped, it wakes to nothing it may write; t stays."""
    async with crew(tmp_path) as system:
        await system.tell_lengths()
        tokens = await system.agreed()
        leader = await system.leader()
        first = system.kept()
        metrics = Metrics((await system.get("/metrics")).text)
        assert metrics.total("controller_leader") == 1
        assert metrics.total("controller_term") == first.term
        leading = [state["leader"]["leads"] for state in (await system.states()).values()]
        assert sorted(leading) == [False, True]

        os.kill(leader, signal.SIGKILL)

        async def followed(than: int = leader) -> bool:
            return await system.leader() != than

        await until(followed)
        assert await system.agreed() == tokens
        second = await system.leader()
        state = (await system.states())[second]
        assert state["leader"]["leads"]
        assert state["leader"]["term"] > first.term
        assert state["thresholds"][0]["effective_tokens"] == tokens

        os.kill(second, signal.SIGSTOP)
        try:
            await until(lambda: _is_led(system.redis, than=state["leader"]["term"]))
        finally:
            os.kill(second, signal.SIGCONT)
        woken = (await system.states())[second]
        assert not woken["leader"]["leads"]
        assert await system.agreed() == tokens
        assert system.kept().solutions[0].tokens == tokens


async def _is_led(redis: Server, *, than: int) -> bool:
    """Whether somebody leads in a later term, asked of the store: its workers may be stopped."""
    term = await asyncio.to_thread(redis.call, "HGET", "prfaas:{control}:leader", "term")
    return int(str(term, "ascii")) > than if isinstance(term, bytes) else False


@asynccontextmanager
async def again(directory: Path, other: System) -> AsyncIterator[System]:
    """One more gateway of the same configuration."""
    async with serve_gateway(directory / "prfaas.yaml", engines=other.engines) as system:
        yield system


async def test_replicas_go_by_one_threshold_which_outlives_them(tmp_path: Path) -> None:
    """Solved from what both saw, told by both; an end hands over; a restart begins with it."""
    with redis_server() as redis:
        store = {"url": redis.url, "timeout_ms": 1000}
        async with scripted_system(tmp_path, model=PROFILED, scheduler=AUTO, store=store) as one:
            async with again(tmp_path, one) as two:
                for number in range(65):  # neither has seen the hundred that a solve needs
                    await asyncio.gather(
                        one.complete(40 * number + 20), two.complete(40 * number + 40)
                    )
                shown = await agreed(one, two)
                assert shown["bounds"] == {"min_tokens": 16, "max_tokens": 4000}
                short = await two.complete(shown["solved_tokens"])
                assert routing(short) == ("local", "below_threshold")
                tokens = (await agreed(one, two))["solved_tokens"]
                await until(lambda: one_leads(one, two))
            await one.until(lambda state: bool(state["leader"]["leads"]), within=30)
            assert (await one.order("GET", "threshold"))["solved_tokens"] == tokens

            redis.freeze()
            try:
                await one.until(lambda state: state["leader"]["name"] is None, within=30)
                narrow = {"egress_gbps": 0.0, "available_gbps": 0.01}
                await one.order("POST", "links/west-east/telemetry", narrow)
                assert (await one.complete(50)).status_code == 200
                assert (await one.order("GET", "threshold"))["solved_tokens"] == tokens
                await one.order("POST", "links/west-east/telemetry", {"egress_gbps": 0.0})
            finally:
                redis.thaw()
            await one.until(lambda state: bool(state["leader"]["leads"]), within=30)
            assert (await one.order("GET", "threshold"))["solved_tokens"] == tokens
        async with scripted_system(tmp_path, model=PROFILED, scheduler=AUTO, store=store) as fresh:
            assert (await fresh.order("GET", "threshold"))["solved_tokens"] == tokens
            await fresh.until(lambda state: bool(state["leader"]["leads"]), within=30)
            narrow = {"egress_gbps": 0.0, "available_gbps": 0.01}
            await fresh.order("POST", "links/west-east/telemetry", narrow)
            await fresh.until(
                lambda state: state["thresholds"][0]["solved_tokens"] > tokens, within=30
            )


async def one_leads(one: System, two: System) -> bool:
    """Whether exactly one believes to lead."""
    leading = [(await each.order("GET", "state"))["leader"]["leads"] for each in (one, two)]
    return sorted(leading) == [False, True]


async def agreed(one: System, two: System) -> Document:
    """Wait until both show one solved threshold for longer than lengths and solves take."""
    shown: list[Document] = []

    async def alike() -> bool:
        mine, theirs = [await each.order("GET", "threshold") for each in (one, two)]
        if mine != theirs or mine["solved_tokens"] is None or [mine] != shown[-1:]:
            shown.clear()
        shown.append(mine)
        return len(shown) > 30

    await until(alike)
    return shown[-1]
