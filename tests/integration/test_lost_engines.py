"""Engines that hang with their connections open: what waits there is given up (DESIGN 7, R36)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.fakes.engine_processes import EngineProcess, engine_fleet
from tests.fakes.live_engines import DONE, LiveEngine, chat_event, completed
from tests.fakes.scripted_engine import (
    BlackHole,
    Hold,
    Pause,
    RefusedPort,
    Step,
    answer,
    head,
    stream,
)
from tests.fakes.systems import MODEL, System, routing, scripted_system, serve_gateway

QUICK = {"interval_seconds": 0.05, "timeout_seconds": 0.25, "failures": 3}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello " * 200}], "stream": True}


def silence(*engines: LiveEngine) -> None:
    """Let engines take everything and say nothing more."""
    for engine in engines:
        engine.reply([Hold()])
        for path in ("/health", "/metrics"):
            engine.on(path, [Hold()])


async def test_r36_a_prefill_at_an_engine_that_hangs_runs_elsewhere(tmp_path: Path) -> None:
    """Long before any time-out of its own, without an error for the client."""
    async with scripted_system(tmp_path, upstream={"probe": QUICK}) as system:
        silence(system.engine("f0"))
        reply = await system.complete(500)
        assert (reply.status_code, routing(reply)) == (200, ("local", "remote_prefill_failed"))
        metrics = await system.counted("upstream_errors_total", instance="f0", kind="lost")
        assert metrics.total("instance_breaker_open") == 0
        assert metrics.total("fallbacks_total", reason="remote_prefill_failed") == 1
        await system.settled()


async def test_r36_a_local_prefill_at_an_engine_that_hangs_runs_elsewhere(tmp_path: Path) -> None:
    """Another prefill instance of the cluster computes; a prefill only fills a cache."""
    async with scripted_system(tmp_path, names="p0 p1 d0", upstream={"probe": QUICK}) as system:
        silence(system.engine("p0"))
        reply = await system.complete(10)
        assert (reply.status_code, reply.headers["x-prfaas-prefill"]) == (200, "p1")
        await system.settled()


@pytest.mark.parametrize("streamed", [False, True])
async def test_r36_a_decode_that_may_have_run_at_an_engine_that_hangs_is_a_502(
    tmp_path: Path, streamed: bool
) -> None:
    """Its host took the request: nobody runs it again, and the client is told soon."""
    async with scripted_system(tmp_path, names="p0 d0 d1", upstream={"probe": QUICK}) as system:
        silence(system.engine("d0"))
        reply = await system.complete(10, stream=streamed)
        assert reply.status_code == 502
        assert reply.json()["error"]["type"] == "upstream_error"
        assert reply.headers["x-prfaas-decode"] == "d0"
        assert system.engine("d1").calls == []
        await system.settled()


async def test_r36_a_stream_at_an_engine_that_hangs_ends_in_an_error_after_its_grace(
    tmp_path: Path,
) -> None:
    """What has begun waits longer than what has not; then one error event, as for any break."""
    upstream = {"probe": QUICK, "lost_stream_timeout_seconds": 1.0}
    async with scripted_system(tmp_path, names="p0 d0 d1", upstream=upstream) as system:
        engine = system.engine("d0")
        engine.reply(stream(chat_event(MODEL, "a"), end=[Hold()]))
        loop = asyncio.get_running_loop()
        async with system.client.stream("POST", "/v1/chat/completions", json=CHAT) as reply:
            assert reply.headers["x-prfaas-decode"] == "d0"
            pieces = reply.aiter_raw()
            assert await anext(pieces) == chat_event(MODEL, "a")
            silence(engine)
            began = loop.time()
            rest = b"".join([piece async for piece in pieces])
        assert loop.time() - began > 1.0
        assert json.loads(rest.removeprefix(b"data: "))["error"]["code"] == 502
        assert DONE not in rest
        await system.settled()


async def test_a_long_silent_engine_that_answers_probes_is_left_alone(tmp_path: Path) -> None:
    """Neither a long prefill nor a stream with a pause is cut while probes are answered."""
    upstream = {"probe": QUICK, "lost_stream_timeout_seconds": 0.0}
    async with scripted_system(tmp_path, upstream=upstream) as system:
        engine = system.engine("f0")
        engine.reply([Hold()])
        waiting = asyncio.create_task(system.complete(500))
        request = await engine.called(1)
        probed = len(engine.requests) + 40
        await engine.received(probed, within=20)
        assert not waiting.done()
        waiting.cancel()
        await engine.peer_closed(request)
        await system.settled()


async def test_an_unwell_engine_that_answers_finishes_what_it_has(tmp_path: Path) -> None:
    """An engine that says 503 on its health gets nothing new and keeps its calls."""
    async with scripted_system(tmp_path, upstream={"probe": QUICK}) as system:
        engine = system.engine("f0")
        engine.reply([Hold()])
        engine.on("/health", answer(503))
        waiting = asyncio.create_task(system.complete(500))
        request = await engine.called(1)
        await system.until(_is_alive("f0", alive=False))
        await engine.received(len(engine.requests) + 20, within=20)
        assert not waiting.done()
        waiting.cancel()
        await engine.peer_closed(request)


def _is_alive(name: str, *, alive: bool) -> Callable[[dict[str, object]], bool]:
    def holds(state: dict[str, object]) -> bool:
        instances = state["instances"]
        assert isinstance(instances, list)
        return any(each["name"] == name and each["alive"] is alive for each in instances)

    return holds


# -- outages that a request meets


RARELY = {"probe": {"interval_seconds": 60}}
"""Probes that notice nothing: the request itself has to find out."""


@pytest.mark.parametrize("place", [BlackHole, RefusedPort])
@pytest.mark.parametrize("name", ["p0", "d0", "f0"])
async def test_r36_a_request_that_meets_a_vanished_engine_fails_over(
    tmp_path: Path, name: str, place: type[BlackHole | RefusedPort]
) -> None:
    """Whatever its leg, it is served after the connect time-out, not minutes, by somebody else."""
    upstream = {"connect_timeout_seconds": 0.5, **RARELY}
    async with scripted_system(tmp_path, names="p0 p1 d0 d1 f0", upstream=upstream) as system:
        engine = system.engine(name)
        await engine.stop()
        with place(urlsplit(engine.url).port):
            began = asyncio.get_running_loop().time()
            reply = await system.complete(500 if name == "f0" else 10)
            took = asyncio.get_running_loop().time() - began
        assert reply.status_code == 200
        assert name not in (reply.headers["x-prfaas-prefill"], reply.headers["x-prfaas-decode"])
        assert took < 10
        await system.counted("upstream_errors_total", instance=name, kind="connect")
        await system.settled()


@pytest.mark.parametrize(
    ("setting", "script"),
    [
        ("first_byte_timeout_seconds", [Hold()]),
        ("idle_timeout_seconds", [head(200, [("content-length", "9")]), Hold()]),
    ],
)
async def test_r18_time_outs_of_silence_are_settings_of_their_own(
    tmp_path: Path, setting: str, script: list[Step]
) -> None:
    """Each of them ends the silence that is its own with a 504, and no other."""
    upstream = {**RARELY, setting: 0.3}
    async with scripted_system(tmp_path, names="b0", upstream=upstream) as system:
        system.engine("b0").reply(script)
        reply = await system.complete(10)
        assert reply.status_code == 504
        assert reply.json()["error"]["type"] == "upstream_timeout_error"
        slow = [Pause(0.6), *completed("b0", MODEL)]
        if setting == "idle_timeout_seconds":
            system.engine("b0").reply(slow)
            assert (await system.complete(10)).status_code == 200


async def test_r66_an_engine_too_busy_for_its_health_keeps_its_place(tmp_path: Path) -> None:
    """Probes that hang while it streams take nothing from it, and new requests still go there."""
    async with scripted_system(tmp_path, names="b0", upstream={"probe": QUICK}) as system:
        engine = system.engine("b0")
        events = [chat_event(MODEL, "word")] * 60
        engine.then(stream(*events, DONE, gap=0.05))
        running = asyncio.create_task(system.client.post("/v1/chat/completions", json=CHAT))
        await engine.called(1)
        for path in ("/health", "/metrics"):
            engine.on(path, [Pause(2.0), *answer(200)])
        probed = sum(request.path == "/health" for request in engine.requests)
        await engine.received(len(engine.requests) + 12, within=20)
        assert sum(request.path == "/health" for request in engine.requests) > probed + 5
        assert (await system.complete(10)).status_code == 200
        reply = await running
        assert reply.content == b"".join(events) + DONE
        state = await system.order("GET", "state")
    assert [each["transitions"] for each in state["instances"]] == [0]


# -- real processes


async def called(engine: EngineProcess, system: System) -> None:
    """Wait until an engine computes for us."""
    async with asyncio.timeout(20):
        while True:
            state = (await system.client.get(f"{engine.url}/standin/state")).json()
            if state["running"]:
                return
            await asyncio.sleep(0.02)


async def test_r36_stopped_processes(tmp_path: Path) -> None:
    """SIGSTOP, as a debugger or a frozen container does it: fallback, 502, and back again."""
    upstream = {"probe": {"interval_seconds": 0.1, "timeout_seconds": 0.5}}
    slow = {"time_scale": 0.05}  # a prefill of 500 tokens takes a second
    async with (
        engine_fleet(tmp_path, "p0 d0 f0", upstream=upstream, engines=slow) as fleet,
        serve_gateway(fleet.configuration) as system,
    ):
        system.client.timeout = 60
        await system.until(_is_alive("f0", alive=True), within=20)
        waiting = asyncio.create_task(system.complete(500, max_tokens=1))
        await called(fleet["f0"], system)
        fleet["f0"].freeze()
        reply = await waiting
        assert (reply.status_code, reply.headers["x-prfaas-prefill"]) == (200, "p0")
        fleet["f0"].thaw()
        await system.until(_is_alive("f0", alive=True), within=20)

        waiting = asyncio.create_task(system.complete(10, max_tokens=60))
        await called(fleet["d0"], system)
        fleet["d0"].freeze()
        assert (await waiting).status_code == 502
        assert (await system.complete(10)).status_code == 503
        fleet["d0"].thaw()
        await system.until(_is_alive("d0", alive=True), within=20)
        assert (await system.complete(10, max_tokens=1)).status_code == 200
        await system.settled(within=20)
