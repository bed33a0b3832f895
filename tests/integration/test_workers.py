"""Several workers of one gateway: one port, one total, and what remains when one of them dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import yaml

from tests.fakes.live_engines import DONE, LiveEngine, chat_event
from tests.fakes.processes import RunningCommand, gone, prfaas
from tests.fakes.redis_servers import Server, redis_server
from tests.fakes.scripted_engine import Step, Until, stream
from tests.fakes.systems import Document, Metrics, describe, free_port, write_configuration

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}


@dataclass
class Crew:
    """A gateway of several workers, the engine behind it, and the store that they share."""

    command: RunningCommand
    engine: LiveEngine
    redis: Server
    url: str

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client with connections of its own, which the kernel gives to any worker."""
        async with httpx.AsyncClient(base_url=self.url, timeout=30, trust_env=False) as client:
            yield client

    async def chat(self) -> int:
        """Ask once, on a new connection."""
        async with self.client() as client:
            return (await client.post("/v1/chat/completions", json=CHAT)).status_code

    async def metrics(self) -> Metrics:
        """Scrape whichever worker takes the connection."""
        async with self.client() as client:
            return Metrics((await client.get("/metrics")).text)

    async def state(self) -> Document:
        """The state as whichever worker takes the connection tells it."""
        async with self.client() as client:
            document: Document = (await client.get("/admin/v1/state")).json()
            return document

    async def counted(self, total: float, within: float = 60.0) -> None:
        """Wait until so many requests are counted: they are after their last byte."""
        async with asyncio.timeout(within):
            while (await self.metrics()).total("requests_total") < total:  # noqa: ASYNC110 - another process: nothing tells
                await asyncio.sleep(0.02)

    async def until_inflight(self, count: int, within: float = 60.0) -> None:
        """Wait until the gauges of all workers tell of so many requests in flight.

        A worker that is too busy to answer is left out of a scrape.
        """
        async with asyncio.timeout(within):
            while (await self.metrics()).total("instance_inflight") != count:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.05)

    async def until_config(self, fingerprint: str, within: float = 60.0) -> None:
        """Wait until every worker goes by a configuration: all are told at once."""
        async with asyncio.timeout(within):
            while {each["config"] for each in (await self.state())["workers"]} != {fingerprint}:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.02)

    async def status_of(self, path: str) -> int:
        """Ask whichever worker takes the connection."""
        async with self.client() as client:
            return (await client.get(path)).status_code

    async def complete(self, count: int, within: float = 30.0) -> Document:
        """Wait until so many workers live; return the state."""
        async with asyncio.timeout(within):
            while len((state := await self.state())["workers"]) < count:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.05)
        return state


@asynccontextmanager
async def serving(directory: Path, workers: int = 3, **changes: Any) -> AsyncIterator[Crew]:  # noqa: ANN401
    """A gateway of several workers over one scripted engine and a real Redis."""
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(redis_server())
        engine = await stack.enter_async_context(LiveEngine("b0"))
        instance = {"name": "b0", "url": engine.url, "role": "both"}
        clusters = [{"name": "east", "kind": "pd", "instances": [instance]}]
        store = {"url": redis.url}
        model = {"tokenizer": {"kind": "none"}}
        document = describe(clusters, threshold=100, model=model, links=[], store=store, **changes)
        config = write_configuration(directory, document)
        arguments = ["serve", "--config", str(config), "--port", "0", "--workers", str(workers)]
        command = await stack.enter_async_context(prfaas(*arguments, directory=directory))
        url = (await command.said(r"prfaas gateway on (http://\S+),", within=60))[1]
        try:
            yield Crew(command, engine, redis, url)
        finally:
            children = [] if command.process.returncode is not None else command.children()
            await command.stop()
            await gone(children)


async def test_r60_every_worker_tells_the_totals_of_all(tmp_path: Path) -> None:
    """120 requests over 4 workers: every scrape of every worker counts them all, and never less."""
    async with serving(tmp_path, workers=4) as crew:
        answers = Counter([await crew.chat() for _ in range(120)])
        assert answers == {200: 120}
        await crew.counted(120)
        told: Counter[int] = Counter()
        for _ in range(20):
            metrics = await crew.metrics()
            assert metrics.total("requests_total") == 120
            assert metrics.total("request_duration_seconds_count") == 120
            assert metrics.total("instance_up") == 1
            told[(await crew.state())["worker"]] += 1
        state = await crew.state()
        assert [worker["worker"] for worker in state["workers"]] == [0, 1, 2, 3]
        assert sorted(worker["pid"] for worker in state["workers"]) == sorted(
            crew.command.children()
        )
        assert len(told) > 1, "one worker took every connection"

        # Whichever is asked, the decisions of all are shown, and made again.
        async with crew.client() as client:
            page = (await client.get("/admin/v1/decisions?limit=100")).json()
            rest = (await client.get(f"/admin/v1/decisions?cursor={quote(page['next'])}")).json()
            shown = [each["request_id"] for each in page["decisions"] + rest["decisions"]]
            assert len(set(shown)) == len(shown) == 120
            assert rest["next"] is None
            replay = (await client.post("/admin/v1/decisions:replay", json={"threshold": 0})).json()
        assert replay["covers"]["decisions"] == 120
        assert len(replay["covers"]["logs"]) == 4


def held_stream(gate: asyncio.Event) -> list[Step]:
    """A stream that ends only after `gate`."""
    head, first, *rest = stream(chat_event("tiny", "a"), chat_event("tiny", "b"), DONE)
    return [head, first, Until(gate), *rest]


@dataclass
class Streams:
    """Streams that run, and how each of them ended."""

    tasks: list[asyncio.Task[bool]]

    async def broken(self) -> int:
        """Wait until those that a killed process served have noticed; return how many they are."""
        await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
        known = -1
        while known != (known := sum(task.done() for task in self.tasks)):  # noqa: ASYNC110 - until it stays
            await asyncio.sleep(0.5)
        return known

    async def ended(self) -> Counter[bool]:
        """Wait for all; return how many came to their [DONE] and how many broke."""
        return Counter(await asyncio.gather(*self.tasks))


async def run_streams(crew: Crew, count: int, gate: asyncio.Event) -> Streams:
    """Begin `count` streams, each on a connection of its own; return once all have begun."""
    begun = asyncio.Semaphore(0)

    async def run() -> bool:
        seen = b""
        async with crew.client() as client:
            try:
                body = {**CHAT, "stream": True}
                async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                    assert answer.status_code == 200
                    async for piece in answer.aiter_raw():
                        if not seen:
                            begun.release()
                        seen += piece
            except httpx.TransportError:
                return False
        return seen.endswith(DONE)

    for _ in range(count):
        crew.engine.then(held_stream(gate))
    streams = Streams([])
    async with asyncio.timeout(60):
        for _ in range(count):
            # One after another: a burst of them would overrun the scripted engine's listener.
            streams.tasks.append(asyncio.create_task(run()))
            await begun.acquire()
    return streams


async def kill_one_of(crew: Crew, count: int, *, workers: int) -> None:
    """Kill a worker under `count` streams; what is lost must be its own and nothing else."""
    gate = asyncio.Event()
    streams = await run_streams(crew, count, gate)
    await crew.until_inflight(count)
    assert (await crew.metrics()).total("decisions_total") == count
    victim = (await crew.state())["workers"][1]
    os.kill(victim["pid"], signal.SIGKILL)
    # New requests go on being served, those that come to the dead one's place included.
    answers = Counter(await asyncio.gather(*(crew.chat() for _ in range(20))))
    assert answers == {200: 20}
    state = await crew.complete(workers)
    assert state["workers"][1]["pid"] != victim["pid"]
    broken = await streams.broken()
    assert 0 < broken < count
    await crew.until_inflight(count - broken)
    gate.set()
    ended = await streams.ended()
    assert ended == {True: count - broken, False: broken}, "a stream of another worker broke"
    await crew.counted(ended[True] + 20)
    metrics = await crew.metrics()
    assert metrics.total("requests_total") == ended[True] + 20
    assert metrics.total("decisions_total") == count + 20
    await crew.until_inflight(0)


async def test_r67_a_killed_worker_takes_its_own_streams_alone(tmp_path: Path) -> None:
    """The streams of the killed one break alone; it is replaced, totals and gauges stay true."""
    async with serving(tmp_path, workers=3) as crew:
        await kill_one_of(crew, 30, workers=3)


@pytest.mark.long
async def test_r67_a_worker_is_killed_under_200_streams(tmp_path: Path) -> None:
    """The same with 200 streams over 4 workers."""
    async with serving(tmp_path, workers=4) as crew:
        await kill_one_of(crew, 200, workers=4)


async def test_r63_sigterm_drains_every_worker(tmp_path: Path) -> None:
    """Not ready at once whoever is asked; streams of all workers end with [DONE]; exit 0."""
    drain = {"delay_seconds": 2.0, "grace_seconds": 20}
    async with serving(tmp_path, drain=drain) as crew:
        gate = asyncio.Event()
        streams = await run_streams(crew, 12, gate)
        crew.command.send(signal.SIGTERM)
        await until_all_say_not_ready(crew)
        assert await crew.chat() == 200
        await until_refused(crew)
        assert crew.command.process.returncode is None
        gate.set()
        assert await streams.ended() == {True: 12}
        assert await crew.command.ended(within=10) == 0
    assert not any("Traceback" in line for line in crew.command.stderr)


async def until_all_say_not_ready(crew: Crew) -> None:
    """Ask on new connections until ten in a row are told 503."""
    refusals = 0
    async with asyncio.timeout(10):
        while refusals < 10:
            async with crew.client() as client:
                status = (await client.get("/ready")).status_code
            refusals = refusals + 1 if status == 503 else 0


async def until_refused(crew: Crew) -> None:
    """Wait until nobody listens any more."""
    async with asyncio.timeout(15):
        while True:
            try:
                async with crew.client() as client:
                    await client.get("/health")
            except httpx.ConnectError:
                return
            except httpx.TransportError:
                pass  # taken by a closing listener, and let go
            await asyncio.sleep(0.02)


async def test_all_workers_reload_or_none(tmp_path: Path) -> None:
    """A change is in force in every worker, a bad one in none; newcomers go by what is in force."""
    async with serving(tmp_path, workers=2) as crew:
        path = tmp_path / "prfaas.yaml"
        document = yaml.safe_load(path.read_text("utf-8"))
        document["models"][0]["aliases"] = ["small"]
        path.write_text(yaml.safe_dump(document), "utf-8")
        crew.command.send(signal.SIGHUP)
        told = await crew.command.said("configuration (.*) is in force")
        await crew.until_config(told[1])
        assert {await crew.status_of("/v1/models/small") for _ in range(10)} == {200}
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "tokenizer.json").write_text("{}")
        bad = {**document["models"][0], "tokenizer": {"kind": "hf", "path": "./broken"}}
        path.write_text(yaml.safe_dump({**document, "models": [bad]}), "utf-8")
        crew.command.send(signal.SIGHUP)
        await crew.command.said("the old configuration stays in force: .*tokenizer")
        assert {await crew.status_of("/v1/models/small") for _ in range(10)} == {200}
        # The file is bad now: who begins anew begins with what is in force.
        victim = (await crew.state())["workers"][0]
        os.kill(victim["pid"], signal.SIGKILL)
        await gone([victim["pid"]])
        await crew.complete(2)
        await crew.until_config(told[1])
        metrics = await crew.metrics()
        assert metrics.total("config_reloads_total", outcome="applied") == 1
        assert metrics.total("config_reloads_total", outcome="refused") == 1


async def test_no_worker_outlives_its_supervisor(tmp_path: Path) -> None:
    """Even kill -9 of the supervisor ends every worker and frees the port."""
    async with serving(tmp_path) as crew:
        workers = crew.command.children()
        crew.command.send(signal.SIGKILL)
        await gone(workers)
        with pytest.raises(httpx.ConnectError):
            await crew.chat()


async def test_workers_on_a_port_that_is_taken(tmp_path: Path) -> None:
    """A port that anybody else listens on is told in one line, exit 1."""
    config = write_configuration(
        tmp_path, describe([EAST], threshold=1, model={}, links=[], store=NOWHERE)
    )
    with free_port() as port:
        arguments = ["serve", "--config", str(config), "--port", str(port), "--workers", "2"]
        async with prfaas(*arguments, directory=tmp_path) as command:
            assert await command.ended() == 1
    (line,) = command.stderr
    assert f"127.0.0.1:{port}" in line


EAST = {
    "name": "east",
    "kind": "pd",
    "instances": [{"name": "b0", "url": "http://127.0.0.1:9", "role": "both"}],
}
NOWHERE = {"url": "redis://127.0.0.1:9"}


async def test_r67_workers_that_cannot_start_end_the_gateway(tmp_path: Path) -> None:
    """What no worker can run with is told once, exit 2; nobody is left behind."""
    tenants = [{"name": "a", "api_keys": ["sk-a-key-of-some-length"]}]
    config = write_configuration(
        tmp_path,
        describe([EAST], threshold=1, model={}, links=[], store=NOWHERE, tenants=tenants),
    )
    arguments = ["serve", "--config", str(config), "--port", "0", "--workers", "2"]
    async with prfaas(*arguments, directory=tmp_path) as command:
        assert await command.ended(within=60) == 2
    assert "store.url" in command.stderr[-1]
    assert not any("Traceback" in line for line in command.stderr)
