"""What happens upstream when the client leaves, in every phase, over real connections."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router.domain.decision import Route
from router.ports import Timeouts
from router.service.relay_ports import KvOutcome, RelaySettings
from tests.fakes.relay_parts import KV_BYTES
from tests.fakes.scripted_engine import Hold, Pause, ScriptedEngine, head, stream
from tests.integration.relay_scenes import (
    PROMPT,
    STREAMED,
    Scene,
    a_scene,
    event,
    handoff,
    prefilled,
)

BRISK = RelaySettings(timeouts=Timeouts(1.0, 0.0, 5.0), prefill_grace=0.3, release_grace=0.15)
BODIES = [PROMPT, STREAMED]


async def leave(task: asyncio.Task[Any]) -> None:
    """Do what the gateway does when its client has gone."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def until(condition: Callable[[], bool], within: float = 10.0) -> None:
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("route", [None, Route.LOCAL])
async def test_r08_leaving_before_the_head_cuts_the_decode_leg(
    body: bytes, route: Route | None
) -> None:
    """The engine sees its connection close at once, and nothing stays counted."""
    async with a_scene(BRISK) as scene:
        scene.decode.reply([Hold()])
        task = asyncio.create_task(scene.answer(route, body))
        request = await scene.decode.received(1)
        await asyncio.sleep(0.2)
        await leave(task)
        await scene.decode.peer_closed(request, within=0.1)
        assert scene.rig.books.is_clear
        assert scene.rig.books.failures == []


async def test_r08_leaving_a_stream_cuts_it() -> None:
    """Cancelling the reader and closing the response both cut the engine's connection."""
    async with a_scene(BRISK) as scene:
        scene.decode.reply(stream(event("a"), end=[Hold()]))
        task = asyncio.create_task(scene.answer(Route.LOCAL, STREAMED))
        request = await scene.decode.received(1)
        await until(lambda: bool(scene.rig.hook.first_bytes))
        await leave(task)
        await scene.decode.peer_closed(request, within=0.5)
        assert scene.rig.books.is_clear

        response = await scene.run(Route.LOCAL, STREAMED)
        chunks = response.chunks()
        assert await anext(chunks) == event("a")
        await response.aclose()
        await scene.decode.peer_closed(scene.decode.requests[1], within=0.5)
        assert scene.rig.books.is_clear
        assert scene.rig.books.failures == []
        assert [complete for _, _, complete in scene.rig.hook.answers] == [False, False]


async def test_r08_leaving_a_packed_stream_cuts_it() -> None:
    """Between the engine and the reader nothing keeps a stream alive, unpacking included."""
    async with a_scene(BRISK) as scene:
        packed = gzip.compress(event("a") * 3)
        headers = [("content-encoding", "gzip")]
        scene.decode.reply(stream(packed, end=[Hold()], headers=headers))
        response = await scene.run(None, STREAMED)
        assert await anext(response.chunks()) == event("a") * 3
        await response.aclose()
        await scene.decode.peer_closed(scene.decode.requests[0], within=0.5)
        assert scene.rig.books.is_clear


async def test_r08_a_response_that_is_never_read_frees_everything() -> None:
    """A client that left between head and body leaves nothing behind."""
    async with a_scene(BRISK) as scene:
        scene.decode.reply(stream(event("a"), end=[Hold()]))
        response = await scene.run(Route.PRFAAS, STREAMED)
        assert not scene.rig.books.is_clear
        await response.aclose()
        await response.aclose()
        await scene.decode.peer_closed(scene.decode.requests[0], within=0.5)
        assert scene.rig.books.is_clear


@pytest.mark.parametrize("body", BODIES)
async def test_r08_leaving_while_a_whole_answer_is_collected_cuts_it(body: bytes) -> None:
    """Half an answer that nobody waits for is not collected to its end."""
    async with a_scene(BRISK) as scene:
        scene.decode.reply([head(200, [("content-length", "900")]), Hold()])
        task = asyncio.create_task(scene.answer(None, body))
        request = await scene.decode.received(1)
        await asyncio.sleep(0.1)
        await leave(task)
        await scene.decode.peer_closed(request, within=0.5)
        assert scene.rig.books.is_clear


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("route", [Route.LOCAL, Route.PRFAAS])
async def test_r08_leaving_a_prefill_that_goes_on_cuts_it(body: bytes, route: Route) -> None:
    """A prefill that does not answer in the grace is cut, and no further leg starts."""
    async with a_scene(BRISK) as scene:
        engine = scene.remote if route is Route.PRFAAS else scene.prefill
        engine.reply([Hold()])
        task = asyncio.create_task(scene.answer(route, body))
        request = await engine.received(1)
        await leave(task)
        await engine.peer_closed(request, within=0.5)
        assert scene.decode.requests == []
        assert scene.rig.books.is_clear
        assert scene.rig.books.failures == []


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("route", [Route.LOCAL, Route.PRFAAS])
async def test_r10_a_hand_off_that_nobody_needs_is_sent_and_aborted(
    body: bytes, route: Route
) -> None:
    """The prefill answers just after the client left: decode gets its hand-off, then is cut."""
    async with a_scene(BRISK) as scene:
        engine = scene.remote if route is Route.PRFAAS else scene.prefill
        engine.reply([Pause(0.15), *prefilled(7)])
        scene.decode.reply([Hold()])
        task = asyncio.create_task(scene.answer(route, body))
        await engine.received(1)
        await asyncio.sleep(0.05)
        await leave(task)
        request = await scene.decode.received(1, within=10)
        assert request.json() == json.loads(body) | {"kv_transfer_params": handoff(7)}
        await scene.decode.peer_closed(request, within=10)
        assert scene.rig.hook.shipped == [(KvOutcome.WASTED, KV_BYTES)]
        assert scene.rig.books.is_clear


async def test_r10_a_decode_leg_that_just_left_still_arrives() -> None:
    """A client that leaves between the legs cannot leave the hand-off unsent."""
    for delay in (0.0, 0.001, 0.002, 0.004, 0.01, 0.03):
        async with a_scene(BRISK) as scene:
            scene.decode.reply([Hold()])
            task = asyncio.create_task(scene.answer(Route.PRFAAS))
            await scene.remote.received(1)
            await asyncio.sleep(delay)
            await leave(task)
            request = await scene.decode.received(1, within=10)
            assert request.json()["kv_transfer_params"] == handoff(0)
            await scene.decode.peer_closed(request, within=10)
            assert scene.rig.hook.shipped == [(KvOutcome.WASTED, KV_BYTES)]
            assert scene.rig.books.is_clear


async def test_r10_an_abandoned_prefill_without_hand_off_starts_nothing() -> None:
    """Where there are no blocks to free, no decode leg is sent."""
    async with a_scene(BRISK) as scene:
        scene.prefill.reply([Pause(0.1), *prefilled(1, kv_transfer_params=None)])
        task = asyncio.create_task(scene.answer(Route.LOCAL))
        await scene.prefill.received(1)
        await leave(task)
        assert scene.decode.requests == []
        assert scene.rig.books.is_clear


async def test_leaving_twice_cuts_at_once() -> None:
    """A second cancellation (a hard stop) waits for no grace."""
    slow = RelaySettings(timeouts=Timeouts(1.0, 0.0, 5.0), prefill_grace=30.0)
    async with a_scene(slow) as scene:
        scene.prefill.reply([Hold()])
        task = asyncio.create_task(scene.answer(Route.LOCAL))
        request = await scene.prefill.received(1)
        task.cancel()
        await asyncio.sleep(0.05)
        await leave(task)
        await scene.prefill.peer_closed(request, within=0.5)
        assert scene.rig.books.is_clear


async def _play_phase(scene: Scene, engine: ScriptedEngine, number: int) -> None:
    """Leave one request in one of its phases."""
    task = asyncio.create_task(
        scene.answer((Route.LOCAL, Route.PRFAAS, None)[number % 3], STREAMED)
    )
    await asyncio.sleep(0.004 * (number % 12))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert engine is not None


async def test_r09_no_mixture_of_departures_leaks() -> None:
    """After sixty requests left in every phase all counts and bookings are back at zero."""
    quick = RelaySettings(timeouts=Timeouts(1.0, 0.0, 5.0), prefill_grace=0.02, release_grace=0.02)
    async with a_scene(quick) as scene:
        for engine in (scene.prefill, scene.remote):
            engine.reply([Pause(0.01), *prefilled(1)])
        scene.decode.reply([Pause(0.01), *stream(event("a"), event("b"), gap=0.01)])
        departures: list[Awaitable[None]] = [
            _play_phase(scene, scene.decode, number) for number in range(60)
        ]
        await asyncio.gather(*departures)
        assert scene.rig.books.is_clear
        assert all(count == 0 for count in scene.rig.books.running.values())
        scene.decode.reply(stream(event("a"), b"data: [DONE]\n\n"))
        response, _ = await scene.answer(Route.LOCAL, STREAMED)
        assert response.status == 200
        assert scene.rig.books.is_clear
