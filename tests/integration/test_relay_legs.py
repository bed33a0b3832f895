"""What each leg carries and what comes back when all goes well, over real connections."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import pytest
from msgspec.structs import replace

from router.domain.decision import Decision, Reason, Route
from router.ports import Timeouts
from router.service.bodies import BodyKind
from router.service.relay_ports import Fallback, KvOutcome, Leg, RelaySettings, Usage
from tests.fakes.relay_parts import KV_BYTES
from tests.fakes.scripted_engine import Pause, Until, answer, json_answer, stream
from tests.integration.relay_scenes import (
    DONE,
    PROMPT,
    STREAMED,
    a_scene,
    completion,
    event,
    handoff,
    prefilled,
    streamed,
)

ROUTES = [Route.LOCAL, Route.PRFAAS]


@pytest.mark.parametrize("route", ROUTES)
async def test_the_hand_off_goes_from_prefill_to_decode_verbatim(route: Route) -> None:
    """The decode leg carries exactly the prefill's object; the prefill's token never shows."""
    async with a_scene() as scene:
        response, body = await scene.answer(route)
        source = scene.remote if route is Route.PRFAAS else scene.prefill
        number = 0 if route is Route.PRFAAS else 1
        assert source.requests[0].json()["kv_transfer_params"] == {
            "do_remote_decode": True,
            "do_remote_prefill": False,
        }
        assert scene.decode.requests[0].json() == json.loads(PROMPT) | {
            "kv_transfer_params": handoff(number)
        }
        assert response.status == 200
        assert json.loads(body)["choices"][0]["text"] == "answer"
        assert b"PREFILL-TOKEN" not in body
        assert scene.rig.books.is_clear
        assert scene.rig.hook.shipped == [(KvOutcome.USEFUL, KV_BYTES)]


async def test_bytes_are_booked_on_the_link_only_for_remote_prefills() -> None:
    """A remote hand-off's bytes are reserved from its dispatch on; a local one needs no link."""
    async with a_scene() as scene:
        await scene.answer(Route.LOCAL)
        assert scene.rig.books.most_booked == 0
        await scene.answer(Route.PRFAAS)
        assert scene.rig.books.most_booked == KV_BYTES
        assert scene.rig.books.is_clear


async def test_bookings_are_released_at_the_first_byte() -> None:
    """What was pulled no longer loads the link, however long the answer takes."""
    async with a_scene() as scene:
        scene.decode.reply(streamed("a", "b", gap=0.2))
        async with await scene.run(Route.PRFAAS, STREAMED) as response:
            chunks = response.chunks()
            await anext(chunks)
            assert not any(scene.rig.books.booked.values())
            assert scene.rig.books.streams == [True]
            assert scene.rig.books.courses == ["depart", "arrive"]
            assert scene.rig.books.running[("pd-d0", Leg.DECODE)] == 1
            async for _ in chunks:
                pass
            assert scene.rig.books.is_clear


@pytest.mark.parametrize(
    "limits",
    [
        {"max_tokens": 50},
        {"max_completion_tokens": 50},
        {"max_tokens": 50, "max_completion_tokens": 50},
        {},
    ],
)
@pytest.mark.parametrize("kind", [BodyKind.CHAT, BodyKind.COMPLETION])
async def test_r20_prefill_is_capped_and_decode_is_the_clients(
    limits: dict[str, int], kind: BodyKind
) -> None:
    """Every spelling of the limit is 1 at the prefill, and untouched at the decode instance."""
    sent = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "prompt": "hi",
        "stream": True,
        "stream_options": {"include_usage": True},
        "min_tokens": 10,
        "n": 2,
        "stop": ["x"],
        "temperature": 0.5,
        **limits,
    }
    async with a_scene() as scene:
        scene.decode.reply(streamed("a"))
        await scene.answer(Route.LOCAL, json.dumps(sent).encode(), kind=kind)
        first = scene.prefill.requests[0].json()
        last = scene.decode.requests[0].json()
    assert {name: first[name] for name in limits} == dict.fromkeys(limits, 1)
    assert limits or first["max_tokens"] == 1
    assert first["stream"] is False
    assert first.keys().isdisjoint({"stream_options", "min_tokens", "n", "stop"})
    assert first["temperature"] == 0.5
    assert last == sent | {"kv_transfer_params": handoff(1)}


@pytest.mark.parametrize(
    "answered",
    [{"kv_transfer_params": None}, {"kv_transfer_params": {}}, {}],
    ids=["null", "empty", "missing"],
)
@pytest.mark.parametrize("route", ROUTES)
async def test_r23_without_a_hand_off_decode_computes_alone(
    answered: dict[str, object], route: Route
) -> None:
    """The client gets the decode instance's whole answer; counted, and no 5xx."""
    async with a_scene() as scene:
        usage = {"prompt_tokens": 4096, "prompt_tokens_details": {"cached_tokens": 1}}
        choices = [{"text": "PREFILL-TOKEN", "finish_reason": "stop"}]
        bare = json_answer({"choices": choices, "usage": usage, **answered})
        scene.prefill.reply(bare)
        scene.remote.reply(bare)
        response, body = await scene.answer(route)
        assert scene.decode.requests[0].json() == json.loads(PROMPT)
        assert scene.rig.hook.fallbacks == [Fallback.NO_HANDOFF]
        assert scene.rig.books.is_clear
    assert response.status == 200
    assert json.loads(body)["choices"][0]["text"] == "answer"
    assert json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"] == 4095
    assert response.decision.prefill is None
    assert response.decision.route is Route.LOCAL


async def test_r25_nothing_a_client_says_about_peers_reaches_a_leg() -> None:
    """Transfer parameters and routing headers of the client end at the gateway."""
    evil = {"do_remote_prefill": True, "remote_host": "10.9.9.9", "remote_port": 1}
    body = {
        **json.loads(PROMPT),
        "kv_transfer_params": evil,
        "ec_transfer_params": evil,
        "bootstrap_host": "10.9.9.9",
        "vllm_xargs": {"kv_transfer_params": evil, "kv_cache_report_mode": "full", "keep": 1},
    }
    headers = [
        (b"x-prefiller-host-port", b"10.9.9.9:1"),
        (b"x-prefiller-url", b"http://10.9.9.9"),
        (b"x-data-parallel-rank", b"7"),
        (b"x-vllm-priority", b"9"),
        (b"x-kv-cache-source-host-port", b"10.9.9.9:1"),
        (b"traceparent", b"00-a-b-01"),
    ]
    async with a_scene() as scene:
        await scene.answer(Route.LOCAL, json.dumps(body).encode(), headers=headers)
        calls = [scene.prefill.requests[0], scene.decode.requests[0]]
    for call in calls:
        assert b"10.9.9.9" not in call.body
        assert call.json()["vllm_xargs"] == {"keep": 1}
        names = {name.lower() for name, _ in call.headers}
        assert names == {
            b"host",
            b"content-length",
            b"content-type",
            b"accept-encoding",
            b"x-request-id",
            b"traceparent",
        }
    assert calls[1].json()["kv_transfer_params"] == handoff(1)


async def test_r27_engines_see_their_own_key_or_none() -> None:
    """The client's key goes nowhere; an engine's own key goes to that engine alone."""
    async with a_scene(keys={"pd-p0": "K2"}) as scene:
        headers = [(b"authorization", b"Bearer K1"), (b"x-api-key", b"K1"), (b"cookie", b"K1")]
        await scene.answer(Route.LOCAL, headers=headers)
        first, last = scene.prefill.requests[0], scene.decode.requests[0]
    assert first.header("authorization") == "Bearer K2"
    assert last.header("authorization") is None
    assert not any(b"K1" in value for call in (first, last) for _, value in call.headers)


async def test_r30_engine_ids_are_distinct_with_one_stem() -> None:
    """Prefill and decode of a call can be told apart and belong together; calls never merge."""
    async with a_scene() as scene:
        headers = [(b"x-request-id", b"same")]
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(scene.answer(Route.LOCAL, headers=headers))
        seen = [each.header("x-request-id") for each in scene.prefill.requests]
        seen += [each.header("x-request-id") for each in scene.decode.requests]
    assert sorted(map(str, seen)) == ["req1-d", "req1-p", "req2-d", "req2-p"]


async def test_each_leg_gets_its_own_model_name_and_the_client_sees_its_own() -> None:
    """Names of a model are the engines' business: the answer shows the client's."""
    names = {"pd-p0": "name-at-p", "pd-d0": "name-at-d"}
    async with a_scene(names=names) as scene:
        scene.decode.reply(completion(model="name-at-d"))
        _, body = await scene.answer(Route.LOCAL)
        assert scene.prefill.requests[0].json()["model"] == "name-at-p"
        assert scene.decode.requests[0].json()["model"] == "name-at-d"
        assert json.loads(body)["model"] == "m"
        scene.decode.reply(stream(event("a", model="name-at-d"), DONE))
        _, body = await scene.answer(Route.LOCAL, STREAMED)
    assert b"name-at-d" not in body
    assert b'"model":"m"' in body


@pytest.mark.parametrize("route", [*ROUTES, None])
async def test_r28_cached_tokens_are_the_prefills(route: Route | None) -> None:
    """After a prefill leg its cached tokens show; a plain call's answer is not touched."""
    details = {"prompt_tokens": 4096, "prompt_tokens_details": {"cached_tokens": 4095, "a": 1e-7}}
    last = b"data: " + json.dumps({"choices": [], "usage": details}).encode() + b"\n\n"
    async with a_scene() as scene:
        _, whole = await scene.answer(route)
        scene.decode.reply(stream(event("a"), last, DONE))
        _, streamed_body = await scene.answer(route, STREAMED)
    shown = json.loads(whole)["usage"]["prompt_tokens_details"]["cached_tokens"]
    if route is None:
        assert shown == 4095
        assert streamed_body == event("a") + last + DONE
    else:
        assert shown == 128
        usage = json.loads(streamed_body.split(b"\n\n")[1].removeprefix(b"data: "))["usage"]
        assert usage == {
            "prompt_tokens": 4096,
            "prompt_tokens_details": {"cached_tokens": 128, "a": 1e-7},
        }


@pytest.mark.parametrize("cached", [None, 9999])
async def test_r28_never_adds_details_nor_exceeds_the_prompt(cached: int | None) -> None:
    """Without details none are invented, and more than the prompt is never cached."""
    async with a_scene() as scene:
        scene.prefill.reply(prefilled(1, cached=9999))
        scene.decode.reply(completion(cached=cached))
        _, body = await scene.answer(Route.LOCAL)
    usage = json.loads(body)["usage"]
    if cached is None:
        assert "prompt_tokens_details" not in usage
    else:
        assert usage["prompt_tokens_details"]["cached_tokens"] == 4096


async def test_r06_chunks_leave_on_arrival() -> None:
    """Through both legs each event leaves when it comes: the next is not sent before."""
    gates = [asyncio.Event() for _ in "abcdefgh"]
    first, *steps = streamed(*"abcdefgh")
    held = [step for gate, sent in zip(gates, steps, strict=False) for step in (sent, Until(gate))]
    async with a_scene() as scene:
        scene.decode.reply([first, *held, *steps[len(gates) :]])
        came: list[bytes] = []
        async with asyncio.timeout(60), await scene.run(Route.LOCAL, STREAMED) as response:
            async for chunk in response.chunks():
                came.append(chunk)
                if len(came) <= len(gates):
                    gates[len(came) - 1].set()
    assert came == [*map(event, "abcdefgh"), DONE]


async def test_r07_usage_is_neither_asked_for_nor_added() -> None:
    """A client that did not ask for usage gets no usage event, and its tokens are still counted."""
    async with a_scene() as scene:
        scene.decode.reply(streamed("a", "b", "c"))
        _, body = await scene.answer(Route.LOCAL, STREAMED)
        assert "stream_options" not in scene.decode.requests[0].json()
        assert b'"choices":[]' not in body
        assert scene.rig.hook.answers == [(None, 3, True)]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("streaming", [False, True])
async def test_r26_compressed_answers_are_unpacked(coding: str, streaming: bool) -> None:
    """An engine that compresses unasked is still read, rewritten, and valid for every client."""
    pack = gzip.compress if coding == "gzip" else zlib.compress
    plain = event("a", kv_transfer_params={"remote_host": "10.0.0.1"}) + DONE
    if not streaming:
        plain = json.dumps({"model": "m", "usage": {"prompt_tokens": 7}}).encode()
    kind = "text/event-stream" if streaming else "application/json"
    headers = [
        ("content-encoding", coding),
        ("connection", "keep-alive, X-Hop"),
        ("x-hop", "1"),
        ("keep-alive", "timeout=5"),
    ]
    packed = pack(plain)
    pieces = [packed[:7], packed[7:20], packed[20:]]
    async with a_scene() as scene:
        scene.decode.reply(stream(*pieces, gap=0.01, headers=headers, content_type=kind))
        response, body = await scene.answer(None, STREAMED if streaming else PROMPT)
        assert scene.decode.requests[0].header("accept-encoding") == "identity"
        usage = scene.rig.hook.answers[0][0]
    if streaming:
        assert body == event("a", kv_transfer_params=None) + DONE
    else:
        assert body == plain
        assert usage == Usage(prompt_tokens=7)
    assert dict(response.headers) == {b"content-type": kind.encode()}


async def test_r26_an_unreadable_coding_passes_with_its_name() -> None:
    """What cannot be unpacked passes as it is, and says what it is."""
    async with a_scene() as scene:
        scene.decode.reply(answer(200, b"\x1bbrotli", [("content-encoding", "br")]))
        response, body = await scene.answer(None)
    assert body == b"\x1bbrotli"
    assert dict(response.headers)[b"content-encoding"] == b"br"


async def test_transfer_parameters_never_reach_the_client() -> None:
    """Internal hosts and block ids are hidden in whole and in streamed answers."""
    async with a_scene() as scene:
        scene.decode.reply(completion(kv_transfer_params=handoff(9)))
        _, body = await scene.answer(None)
        assert json.loads(body)["kv_transfer_params"] is None
        scene.decode.reply(stream(event("a", kv_transfer_params=handoff(9)), DONE))
        _, body = await scene.answer(None, STREAMED)
        assert b"10.0.0.1" not in body


async def test_long_answers_stream_and_keep_their_bytes() -> None:
    """A whole answer over the bound is passed on as it is, not held."""
    settings = RelaySettings(timeouts=Timeouts(1.0, 5.0, 5.0), whole_body_limit=100_000)
    body = b'{"choices":[{"text":"' + b"x" * 300_000 + b'"}]}'
    async with a_scene(settings) as scene:
        scene.decode.reply(answer(200, body))
        response, got = await scene.answer(None)
        assert response.body is None
        assert got == body
        assert scene.rig.books.is_clear


async def test_a_hand_off_older_than_its_lease_is_thrown_away() -> None:
    """A stale hand-off is never sent: the prompt is prefilled again, then decoded alone."""
    settings = RelaySettings(timeouts=Timeouts(1.0, 5.0, 5.0), lease=5.0, lease_margin=6.0)
    async with a_scene(settings) as scene:
        response, _ = await scene.answer(Route.PRFAAS)
        assert len(scene.remote.requests) == 2
        assert scene.decode.requests[0].json() == json.loads(PROMPT)
        assert scene.rig.hook.fallbacks == [Fallback.HANDOFF_EXPIRED] * 2
        assert scene.rig.books.is_clear
    assert response.decision.reason is Reason.REMOTE_PREFILL_FAILED


async def test_a_pinned_rank_is_told() -> None:
    """A data-parallel rank that was decided on reaches its leg, and only that one."""
    async with a_scene() as scene:
        decision = scene.rig.planner.decide(Route.LOCAL)
        pinned = _pin(decision, 3)
        request = scene.rig.request(PROMPT, headers=[(b"x-data-parallel-rank", b"9")])
        async with await scene.rig.relay.run(request, pinned):
            pass
        assert scene.prefill.requests[0].header("x-data-parallel-rank") == "3"
        assert scene.decode.requests[0].header("x-data-parallel-rank") is None


def _pin(decision: Decision, rank: int) -> Decision:
    assert decision.prefill is not None
    return replace(decision, prefill=replace(decision.prefill, rank=rank))


async def test_r18_a_long_silent_prefill_is_healthy() -> None:
    """With the first-byte time-out off, silence is not a failure; the idle one does not count."""
    settings = RelaySettings(timeouts=Timeouts(connect=0.5, first_byte=0.0, idle=0.1))
    async with a_scene(settings) as scene:
        scene.prefill.reply([Pause(0.6), *prefilled(1)])
        response, _ = await scene.answer(Route.LOCAL)
        assert response.status == 200
        assert scene.rig.hook.fallbacks == []


async def test_headers_that_http_cannot_carry_are_dropped() -> None:
    """A client's malformed or huge trace header costs the header, not the request."""
    headers = [
        (b"traceparent", b"00-a\x01b"),
        (b"tracestate", b"x" * 10_000),
        (b"x-session-id", b"fine"),
    ]
    async with a_scene() as scene:
        response, _ = await scene.answer(None, headers=headers)
        call = scene.decode.requests[0]
    assert response.status == 200
    assert call.header("x-session-id") == "fine"
    assert call.header("traceparent") is call.header("tracestate") is None
