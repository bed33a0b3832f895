"""What the client gets when engines refuse, fail or fall silent, over real connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from router.domain.decision import Route
from router.domain.errors import (
    NobodyAlive,
    Overloaded,
    RouterError,
    UpstreamBroken,
    UpstreamTimeout,
)
from router.ports import Timeouts
from router.service.bodies import BodyKind
from router.service.relay_ports import FailureKind, Fallback, Leg, RelaySettings
from tests.fakes.scripted_engine import (
    BlackHole,
    Close,
    Hold,
    Pause,
    RefusedPort,
    Reset,
    Send,
    Step,
    answer,
    head,
    json_answer,
    stream,
)
from tests.integration.relay_scenes import (
    DONE,
    PROMPT,
    STREAMED,
    a_scene,
    completion,
    event,
    handoff,
    prefilled,
)

ODD = b'{ "error" :\t{"message":"no" }}\n'
HALF = [
    head(200, [("content-type", "application/json"), ("content-length", "500")]),
    Send(b'{"id":"cmpl-p","choices":['),
    Pause(0.02),
]
BROKEN_PREFILLS: dict[str, Sequence[Step]] = {
    "503": json_answer({"error": {"message": "busy"}}, 503),
    "500": json_answer({"error": {"message": "boom"}}, 500),
    "302": answer(302, b""),
    "reset": [Pause(0.02), Reset()],
    "reset-mid-body": [*HALF, Reset()],
    "fin-mid-body": [*HALF, Close()],
    "invalid-json": answer(200, b"<html>"),
    "not-an-object": answer(200, b"[1]"),
    "odd-hand-off": json_answer({"kv_transfer_params": [1]}),
    "garbage": [Send(b"SSH-2.0-x\r\n"), Close()],
}


@pytest.mark.parametrize("status", [400, 404, 422, 429])
@pytest.mark.parametrize("body", [PROMPT, STREAMED])
@pytest.mark.parametrize("route", [Route.LOCAL, Route.PRFAAS, None])
async def test_r13_a_refusal_is_passed_on_once(
    status: int, body: bytes, route: Route | None
) -> None:
    """Status, bytes, type and Retry-After are the engine's; nothing is tried again."""
    refusal = answer(status, ODD, [("retry-after", "7"), ("server", "uvicorn")])
    async with a_scene() as scene:
        engine = {Route.LOCAL: scene.prefill, Route.PRFAAS: scene.remote, None: scene.decode}[route]
        engine.reply(refusal)
        response, got = await scene.answer(route, body)
        everyone = [scene.remote, scene.prefill, scene.other_prefill, scene.decode]
        assert sum(len(each.requests) for each in everyone) == 1
        assert scene.rig.books.failures == []
        assert scene.rig.books.is_clear
    assert (response.status, got) == (status, ODD)
    assert dict(response.headers) == {b"content-type": b"application/json", b"retry-after": b"7"}


@pytest.mark.parametrize("body", [PROMPT, STREAMED])
async def test_r13_a_refusal_of_the_decode_leg_is_passed_on_once(body: bytes) -> None:
    """After a good prefill too a 4xx of the decode instance is the client's."""
    async with a_scene() as scene:
        scene.decode.reply(answer(422, ODD, [("retry-after", "7")]))
        response, got = await scene.answer(Route.LOCAL, body)
        assert len(scene.prefill.requests) == len(scene.decode.requests) == 1
    assert (response.status, got) == (422, ODD)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE])
async def test_r13_a_refused_credential_is_ours(status: int, leg: Leg) -> None:
    """401 and 403 are about the gateway's key: an error of ours, nobody else is tried."""
    async with a_scene() as scene:
        engine = scene.remote if leg is Leg.PREFILL else scene.decode
        engine.reply(answer(status, b'{"error":"Unauthorized"}'))
        with pytest.raises(UpstreamBroken):
            await scene.answer(Route.PRFAAS)
        assert scene.rig.hook.fallbacks == []
        assert scene.rig.books.failures == []
        assert [failure[1:] for failure in scene.rig.hook.failures] == [(leg, FailureKind.STATUS)]
        assert scene.rig.books.is_clear


@pytest.mark.parametrize("fault", BROKEN_PREFILLS)
async def test_r19_a_failed_remote_prefill_falls_back_once(fault: str) -> None:
    """One local prefill with a fresh hand-off answers, without waiting for any time-out."""
    async with a_scene() as scene:
        scene.remote.reply(BROKEN_PREFILLS[fault])
        loop = asyncio.get_running_loop()
        began = loop.time()
        response, body = await scene.answer(Route.PRFAAS)
        assert loop.time() - began < 5
        assert len(scene.remote.requests) == len(scene.prefill.requests) == 1
        assert scene.decode.requests[0].json()["kv_transfer_params"] == handoff(1)
        assert scene.rig.hook.fallbacks == [Fallback.REMOTE_PREFILL_FAILED]
        assert [name for name, _ in scene.rig.books.failures] == ["pf-0"]
        assert scene.rig.books.is_clear
    assert response.status == 200
    assert json.loads(body)["choices"][0]["text"] == "answer"
    assert response.decision.reason == "remote_prefill_failed"


@pytest.mark.parametrize("place", [RefusedPort, BlackHole])
async def test_r19_an_unreachable_remote_prefill_falls_back(
    place: type[RefusedPort | BlackHole],
) -> None:
    """A refused or swallowed connection costs at most the connect time-out."""
    settings = RelaySettings(timeouts=Timeouts(connect=0.3, first_byte=5.0, idle=5.0))
    async with a_scene(settings) as scene:
        with place() as url:
            scene.move("pf-0", url)
            response, _ = await asyncio.wait_for(scene.answer(Route.PRFAAS), 1.0)
        assert response.status == 200
        assert scene.rig.books.failures == [("pf-0", FailureKind.CONNECT)]
        assert scene.rig.books.is_clear


async def test_r18_a_remote_prefill_over_the_first_byte_timeout_falls_back() -> None:
    """A time-out is a failure of the engine; its connection is cut."""
    settings = RelaySettings(timeouts=Timeouts(connect=1.0, first_byte=0.1, idle=5.0))
    async with a_scene(settings) as scene:
        scene.remote.reply([Hold()])
        response, _ = await scene.answer(Route.PRFAAS)
        await scene.remote.peer_closed(scene.remote.requests[0], within=10)
        assert response.status == 200
        assert scene.rig.books.failures == [("pf-0", FailureKind.TIMEOUT)]


@pytest.mark.parametrize("fault", BROKEN_PREFILLS)
async def test_r19_if_the_local_prefill_fails_too_it_is_an_error(fault: str) -> None:
    """Two failed prefills end the request at once; the decode instance is not called."""
    async with a_scene() as scene:
        scene.remote.reply(BROKEN_PREFILLS[fault])
        scene.prefill.reply(BROKEN_PREFILLS["500"])
        with pytest.raises(UpstreamBroken):
            await asyncio.wait_for(scene.answer(Route.PRFAAS), 1.0)
        assert scene.decode.requests == []
        assert scene.other_prefill.requests == []
        assert scene.rig.books.is_clear


async def test_r19_without_a_live_local_prefill_decode_computes_alone() -> None:
    """A failed remote prefill is no reason to fail where the decode instance can compute."""
    async with a_scene() as scene:
        scene.remote.reply(BROKEN_PREFILLS["500"])
        for name in ("pd-p0", "pd-p1"):
            del scene.rig.planner.instances[name]
        response, _ = await scene.answer(Route.PRFAAS)
        assert scene.decode.requests[0].json() == json.loads(PROMPT)
    assert response.status == 200
    assert response.decision.prefill is None


async def test_a_failed_local_prefill_is_tried_once_elsewhere() -> None:
    """A prefill only fills a cache: another instance may do it, a third is not asked."""
    async with a_scene() as scene:
        scene.prefill.reply(BROKEN_PREFILLS["reset-mid-body"])
        response, _ = await scene.answer(Route.LOCAL)
        assert response.status == 200
        assert scene.rig.hook.fallbacks == [Fallback.LOCAL_PREFILL_FAILED]
        assert scene.decode.requests[0].json()["kv_transfer_params"] == handoff(2)
        scene.other_prefill.reply(BROKEN_PREFILLS["500"])
        with pytest.raises(UpstreamBroken):
            await scene.answer(Route.LOCAL)
        assert scene.rig.books.is_clear


async def test_a_removed_prefill_instance_is_replaced() -> None:
    """An instance that went between decision and dispatch is no error of the client's."""
    async with a_scene() as scene:
        decision = scene.rig.planner.decide(Route.PRFAAS)
        del scene.rig.planner.instances["pf-0"]
        request = scene.rig.request(PROMPT)
        async with await scene.rig.relay.run(request, decision) as response:
            assert response.status == 200
        assert scene.rig.books.failures == []


@pytest.mark.parametrize("route", [Route.LOCAL, Route.PRFAAS, None])
@pytest.mark.parametrize("fault", ["refused", "503"])
async def test_decode_that_cannot_have_run_is_tried_elsewhere(
    route: Route | None, fault: str
) -> None:
    """Another decode instance gets a fresh hand-off: the first one never appears again."""
    async with a_scene() as scene:
        numbers = iter(range(100))
        for engine in (scene.prefill, scene.remote):
            engine.reply(lambda _: prefilled(next(numbers)))
        with RefusedPort() as url:
            if fault == "refused":
                scene.move("pd-d0", url)
            else:
                scene.decode.reply(answer(503, b"{}", [("retry-after", "1")]))
            response, _ = await scene.answer(route)
        assert response.status == 200
        assert response.decision.decode.instance == "pd-d1"
        sent = scene.other_decode.requests[0].json().get("kv_transfer_params")
        assert sent == (None if route is None else handoff(1))
        assert scene.rig.hook.fallbacks == [Fallback.DECODE_FAILED]
        assert scene.rig.books.is_clear


@pytest.mark.parametrize("fault", ["reset", "500", "garbage", "reset-mid-body"])
@pytest.mark.parametrize("body", [PROMPT, STREAMED])
async def test_decode_that_may_have_run_is_not_run_again(fault: str, body: bytes) -> None:
    """A request that may have been processed is an error before its first byte, and only that."""
    async with a_scene() as scene:
        scene.decode.reply(BROKEN_PREFILLS[fault])
        with pytest.raises(UpstreamBroken):
            await scene.answer(Route.LOCAL, body)
        assert scene.other_decode.requests == []
        assert [name for name, _ in scene.rig.books.failures] == ["pd-d0"]
        assert scene.rig.books.is_clear


async def test_a_silent_decode_instance_is_a_timeout() -> None:
    """Slow is 504, not 502, and the connection is cut."""
    settings = RelaySettings(timeouts=Timeouts(connect=1.0, first_byte=0.1, idle=5.0))
    async with a_scene(settings) as scene:
        scene.decode.reply([Hold()])
        with pytest.raises(UpstreamTimeout):
            await scene.answer(None)
        await scene.decode.peer_closed(scene.decode.requests[0], within=10)


@pytest.mark.parametrize("busy", [False, True])
async def test_nobody_left_to_decode_is_told_apart(busy: bool) -> None:
    """All busy is overloaded, all gone is nobody alive: both ask to come back."""
    expected: type[RouterError] = Overloaded if busy else NobodyAlive
    async with a_scene() as scene:
        with RefusedPort() as url:
            for name, engine in (("pd-d0", scene.decode), ("pd-d1", scene.other_decode)):
                engine.reply(answer(503, b"{}"))
                if not busy:
                    scene.move(name, url)
            with pytest.raises(expected):
                await scene.answer(None)
        assert scene.rig.books.is_clear


@pytest.mark.parametrize("end", [Reset(), Close()], ids=["rst", "fin"])
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("tail", [b"", b'data: {"id":"cmpl-d","cho', b'data: {"half":1}\n'])
async def test_r03_a_stream_that_breaks_off_ends_in_an_error(
    end: Step, chunked: bool, tail: bytes
) -> None:
    """One error event, in time, then the end: no invented finish, no bare [DONE]."""
    pieces = [event("a"), event("b"), *([tail] if tail else [])]
    if chunked:
        script = stream(*pieces, end=[Pause(0.02), end])
    else:
        plain = [Send(piece) for piece in pieces]
        script = [head(200, [("content-type", "text/event-stream")]), *plain, Pause(0.02), end]
    async with a_scene() as scene:
        scene.decode.reply(script)
        response, body = await asyncio.wait_for(scene.answer(Route.LOCAL, STREAMED), 2.0)
        assert scene.rig.books.failures == [("pd-d0", FailureKind.BROKEN)]
        assert scene.rig.hook.answers[0][2] is False
        assert scene.rig.books.is_clear
    assert response.status == 200
    good = event("a") + event("b")
    assert body.startswith(good)
    events = [each for each in body.removeprefix(good).split(b"\n\n") if each]
    error = json.loads(events[-1].removeprefix(b"data: "))
    assert error["error"]["code"] == 502
    assert events[:-1] == ([tail.strip()] if tail.endswith(b"\n") else [])
    assert DONE not in body
    assert b"finish_reason" not in body


async def test_r03_a_stream_that_falls_silent_ends_in_an_error() -> None:
    """Silence over the idle time-out is a broken stream."""
    settings = RelaySettings(timeouts=Timeouts(connect=1.0, first_byte=1.0, idle=0.1))
    async with a_scene(settings) as scene:
        scene.decode.reply(stream(event("a"), end=[Hold()]))
        _, body = await asyncio.wait_for(scene.answer(None, STREAMED), 2.0)
        await scene.decode.peer_closed(scene.decode.requests[0], within=10)
    assert body.startswith(event("a"))
    assert json.loads(body.removeprefix(event("a") + b"data: "))["error"]["code"] == 504


async def test_r03_an_end_after_the_last_word_is_no_error() -> None:
    """After [DONE], or an error of the engine's own, an engine may hang up as it likes."""
    own = b'data: {"error":{"message":"engine died"}}\n\n'
    async with a_scene() as scene:
        for last in (DONE, own):
            scene.decode.reply(stream(event("a"), last, end=[Pause(0.02), Reset()]))
            _, body = await scene.answer(None, STREAMED)
            assert body == event("a") + last


async def test_r03_a_whole_answer_that_breaks_off_is_an_error() -> None:
    """Half a JSON body is never passed on as if it were one."""
    for end in (Reset(), Close()):
        async with a_scene() as scene:
            scene.decode.reply([*HALF, end])
            with pytest.raises(UpstreamBroken):
                await scene.answer(Route.LOCAL)
            assert scene.rig.books.is_clear


async def test_r03_a_long_answer_that_breaks_off_raises_in_its_stream() -> None:
    """Once bytes have left, the reader is told to abort the client's connection."""
    settings = RelaySettings(timeouts=Timeouts(1.0, 5.0, 5.0), whole_body_limit=10)
    async with a_scene(settings) as scene:
        scene.decode.reply([*HALF, Reset()])
        async with await scene.run(None) as response:
            with pytest.raises(UpstreamBroken):
                [chunk async for chunk in response.chunks()]
        assert scene.rig.books.is_clear


@pytest.mark.parametrize("streaming", [False, True])
async def test_r15_idle_closes_lose_and_repeat_nothing(streaming: bool) -> None:
    """Requests at the age at which engines close connections: each answered, each run once."""
    async with a_scene() as scene:
        for engine in (scene.prefill, scene.decode):
            engine.idle_close = 0.05
        if streaming:
            scene.decode.reply(stream(event("a"), DONE))
        template = STREAMED if streaming else PROMPT
        for number in range(30):
            body = template.replace(b"a long", b"%d" % number)
            response, _ = await scene.answer(Route.LOCAL, body)
            assert response.status == 200
            await asyncio.sleep(0.1 if not number else 0.045 + 0.001 * (number % 11))
        prompts = [request.json()["prompt"] for request in scene.decode.requests]
        assert prompts == [f"{number} prompt" for number in range(30)]
        assert len(scene.prefill.requests) == 30
        assert scene.rig.hook.failures == []


async def test_messages_errors_have_their_own_shape() -> None:
    """A Messages stream that breaks off ends in the event that its clients know."""
    async with a_scene() as scene:
        scene.decode.reply(stream(b"event: ping\ndata: {}\n\n", end=[Pause(0.02), Close()]))
        body = b'{"model":"m","messages":[],"max_tokens":5,"stream":true}'
        _, got = await scene.answer(None, body, kind=BodyKind.MESSAGES)
    assert got.startswith(b"event: ping\ndata: {}\n\nevent: error\ndata: ")
    assert json.loads(got.rpartition(b"data: ")[2])["type"] == "error"


async def test_an_unpackable_answer_is_broken() -> None:
    """Bytes that are not what their coding says never reach the client as an answer."""
    async with a_scene() as scene:
        scene.decode.reply(answer(200, b"not gzip", [("content-encoding", "gzip")]))
        with pytest.raises(UpstreamBroken):
            await scene.answer(None)
        scene.decode.reply(completion())
        response, _ = await scene.answer(None)
        assert response.status == 200


@pytest.mark.parametrize("route", [None, Route.LOCAL, Route.PRFAAS])
async def test_an_unpackable_answer_leaves_no_connection(route: Route | None) -> None:
    """A coding that breaks before its body ends cuts the engine's connection, on every leg."""
    fields = [("content-encoding", "gzip"), ("content-length", "900")]
    broken = [head(200, fields), Send(b"not gzip"), Hold()]
    async with a_scene() as scene:
        for engine in (scene.prefill, scene.remote, scene.decode):
            engine.reply(broken)
        with pytest.raises(UpstreamBroken):
            await scene.answer(route)
        for engine in (scene.prefill, scene.remote, scene.decode):
            for request in engine.requests:
                await engine.peer_closed(request)
        assert scene.rig.books.is_clear
