"""What clients and engines see on the wire through a whole gateway (CASES A to F)."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.fakes.live_engines import DONE, chat_event, chat_events, completed, handoff, prefilled
from tests.fakes.raw_clients import RawCall, calling
from tests.fakes.scripted_engine import (
    LAST_CHUNK,
    Close,
    Hold,
    Recorded,
    Reset,
    Send,
    Step,
    Until,
    answer,
    chunk,
    head,
    json_answer,
    stream,
)
from tests.fakes.systems import System, fresh_ids, routing, scripted_system

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]
SHORT = {"model": "tiny", "messages": MESSAGES}
STREAMED = {**SHORT, "stream": True}
LONG = {"model": "tiny", "prompt": fresh_ids(500)}


def events_of(text: str) -> list[str]:
    """Return the data of every event."""
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


# -- A. streams


@pytest.mark.parametrize("end", [Reset(), Close()], ids=["reset", "fin"])
async def test_r03_a_stream_that_dies_ends_with_an_error_event(tmp_path: Path, end: Step) -> None:
    """An engine that goes in mid-stream costs one error event, and no invented end."""
    async with scripted_system(tmp_path) as system:
        script = stream(chat_event("tiny", "a"), chat_event("tiny", "b"), end=[end])
        system.engine("d0").reply(script)
        response = await system.client.post(CHAT, json=STREAMED)
        *before, last = events_of(response.text)
        if last == "[DONE]":
            last = before.pop()
        assert len(before) == 2
        error = json.loads(last)["error"]
        assert {"message", "type", "code"} <= error.keys()
        assert '"finish_reason":"stop"' not in response.text
        metrics = await system.counted("upstream_errors_total", instance="d0")
        assert metrics.total("upstream_errors_total", instance="d0") == 1
        await system.settled()


async def test_r06_events_pass_on_arrival_and_end_once(tmp_path: Path) -> None:
    """Each event reaches the client before the engine sends the next; one chunk ends them."""
    events = chat_events("tiny")
    gates = [asyncio.Event() for _ in events]
    async with scripted_system(tmp_path) as system:
        steps: list[Step] = [
            head(200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
        ]
        for event, gate in zip(events, gates, strict=True):
            steps += [Until(gate), chunk(event)]
        system.engine("d0").reply([*steps, LAST_CHUNK])
        async with calling(system.url) as client:
            await client.ask(CHAT, STREAMED, {"connection": "close"})
            await system.engine("d0").called()
            gates[0].set()
            status, headers = await client.read_head()
            assert (status, headers["transfer-encoding"]) == (200, "chunked")
            for place, event in enumerate(events):
                assert await client.read_chunk() == event
                if place + 1 < len(events):
                    gates[place + 1].set()
            assert await client.read_rest() == b"0\r\n\r\n"


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": True}])
async def test_r07_no_usage_event_that_nobody_asked_for(
    tmp_path: Path, options: dict[str, bool] | None
) -> None:
    """Engines are asked for usage where the client asks; then its one event comes unchanged."""
    asked = STREAMED if options is None else {**STREAMED, "stream_options": options}
    usage = b'data: {"choices":[],  "usage":{"prompt_tokens":9,"completion_tokens":4}}\n\n'
    tokens = chat_events("tiny")

    def speak(request: Recorded) -> list[Step]:
        wanted = (request.json().get("stream_options") or {}).get("include_usage")
        return stream(*tokens[:-1], *([usage] if wanted else []), DONE)

    async with scripted_system(tmp_path) as system:
        system.engine("d0").reply(speak)
        response = await system.client.post(CHAT, json=asked)
        assert system.engine("d0").calls[0].json().get("stream_options") == options
        metrics = await system.counted("time_per_output_token_seconds_count")
    wanted = options == {"include_usage": True}
    assert response.content == b"".join(tokens[:-1]) + (usage if wanted else b"") + DONE
    assert metrics.total("time_per_output_token_seconds_count") == 1


# -- B. clients that leave


async def leave_in_phase(system: System, phase: str) -> None:
    """Make a request, leave in the phase named, and wait until the engines know."""
    prefill, decode = system.engine("f0"), system.engine("d0")
    streams = phase in {"streaming", "waiting for a stream"}
    body = {**LONG, "prompt": fresh_ids(500), "stream": streams}
    before = len(prefill.calls), len(decode.calls)
    if phase == "prefill":
        prefill.then([Hold()])
    elif phase in {"decode", "waiting for a stream"}:
        decode.then([Hold()])
    else:
        decode.then([*stream(chat_event("tiny", "a"), end=[Hold()])])
    async with calling(system.url) as client:
        await client.ask(COMPLETIONS, body)
        if phase == "prefill":
            engine, number = prefill, before[0] + 1
        else:
            engine, number = decode, before[1] + 1
        request = await engine.called(number)
        if phase == "streaming":
            await client.read_head()
            await client.read_chunk()
        client.leave()
        await engine.peer_closed(request, within=10)
    if phase == "prefill":
        assert len(decode.calls) == before[1]


@pytest.mark.parametrize("phase", ["prefill", "decode", "waiting for a stream", "streaming"])
async def test_r08_a_client_that_leaves_takes_everything_with_it(
    tmp_path: Path, phase: str
) -> None:
    """The engine's connection closes within two seconds, and every count returns to nothing."""
    async with scripted_system(tmp_path) as system:
        await leave_in_phase(system, phase)
        await system.settled()
        metrics = await system.metrics()
        assert metrics.total("instance_inflight") == metrics.total("link_inflight_bytes") == 0
        code = "200" if phase == "streaming" else "499"
        await system.counted("requests_total", code=code, route="prfaas")
        assert (await system.complete(500)).status_code == 200
        state = await system.order("GET", "state")
    assert not any(each["breaker_open"] for each in state["instances"])


async def test_r09_aborts_leak_no_load(tmp_path: Path) -> None:
    """After aborts and broken streams in every phase new requests spread as on a new gateway."""
    async with scripted_system(tmp_path, names="p0 d0 d1 f0") as system:
        await system.order("PATCH", "instances/d1", {"state": "disabled"})
        for phase in ("prefill", "decode", "streaming") * 2:
            await leave_in_phase(system, phase)
        system.engine("d0").then(*[stream(chat_event("tiny", "a"), end=[Reset()])] * 3)
        for _ in range(3):
            await system.client.post(CHAT, json=STREAMED)
        await system.settled()
        await system.order("PATCH", "instances/d1", {"state": "active"})
        before = len(system.engine("d0").calls)
        gate = asyncio.Event()
        for name in ("d0", "d1"):
            engine = system.engine(name)
            engine.reply(lambda _, name=name: [Until(gate), *completed(name, "tiny")])
        async with asyncio.TaskGroup() as tasks:
            for _ in range(6):
                tasks.create_task(system.complete(10))
            await system.engine("d0").called(before + 3)
            await system.engine("d1").called(3)
            gate.set()
        assert len(system.engine("d0").calls) - before == len(system.engine("d1").calls) == 3


async def test_r10_a_handoff_that_nobody_waits_for_is_freed(tmp_path: Path) -> None:
    """A client that leaves as the prefill answers makes the decode leg be sent, then cut."""
    model = {"profiles": {"prfaas": "./profile.yaml"}}
    async with scripted_system(tmp_path, model=model) as system:
        gate = asyncio.Event()
        system.engine("f0").reply([Until(gate), *prefilled("lost")])
        system.engine("d0").reply([Hold()])
        async with calling(system.url) as client:
            await client.ask(COMPLETIONS, LONG)
            await system.engine("f0").called()
            client.leave()
        gate.set()
        call = await system.engine("d0").called(within=10)
        assert call.json()["kv_transfer_params"] == handoff("lost")
        await system.engine("d0").peer_closed(call, within=10)
        await system.settled()
        metrics = await system.counted("kv_bytes_total", outcome="wasted")
        assert metrics.total("kv_bytes_total", outcome="useful") == 0


# -- C. errors


@pytest.mark.parametrize("status", [400, 404, 422, 429])
@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_r13_an_engines_4xx_is_the_clients(tmp_path: Path, leg: str, status: int) -> None:
    """Status, body bytes, content type and Retry-After pass; nothing is tried twice."""
    said = b'{ "error" :  {"message": "no"}}\n'
    refusal = answer(status, said, [("retry-after", "7")], content_type="application/problem+json")
    async with scripted_system(tmp_path) as system:
        refusing = system.engine("f0" if leg == "prefill" else "d0")
        for streamed in (False, True):
            refusing.then(refusal)
            response = await system.complete(500, stream=streamed)
            assert (response.status_code, response.content) == (status, said)
            assert response.headers["content-type"] == "application/problem+json"
            assert response.headers["retry-after"] == "7"
            assert routing(response) == ("prfaas", "above_threshold")
        assert len(system.engine("f0").calls) == 2
        assert len(system.engine("d0").calls) == (0 if leg == "prefill" else 2)
        state = await system.order("GET", "state")
        assert not any(each["breaker_open"] for each in state["instances"])


async def test_upstream_401_is_our_failure(tmp_path: Path) -> None:
    """An engine that does not accept the gateway's key is a 502, and its words are not told."""
    async with scripted_system(tmp_path) as system:
        system.engine("d0").reply(answer(401, b'{"error":"bad token sk-engine"}'))
        response = await system.complete(10)
    assert response.status_code == 502
    assert "sk-engine" not in response.text
    assert response.json()["error"]["type"] == "upstream_error"


@pytest.mark.parametrize(
    "failure",
    [
        [Reset()],
        answer(503, b"busy", content_type="text/plain"),
        answer(200, b'{"choices": [', content_type="application/json"),
        [head(200, [("content-length", "100")]), Send(b"{"), Reset()],
    ],
    ids=["reset", "503", "invalid", "cut"],
)
async def test_r19_a_failed_remote_prefill_is_replaced_at_once(
    tmp_path: Path, failure: list[Step]
) -> None:
    """One fallback to a local prefill with a hand-off of its own; the client sees 200."""
    async with scripted_system(tmp_path) as system:
        system.engine("f0").reply(failure)
        response = await system.complete(500)
        assert response.status_code == 200
        assert routing(response) == ("local", "remote_prefill_failed")
        assert len(system.engine("f0").calls) == 1
        told = system.engine("d0").calls[0].json()["kv_transfer_params"]
        assert told == handoff("p0-1")


async def test_r19_when_the_local_prefill_fails_as_well_the_client_is_told(tmp_path: Path) -> None:
    """With no prefill left that works the client gets a JSON error at once."""
    async with scripted_system(tmp_path) as system:
        for name in ("f0", "p0", "d0"):
            system.engine(name).reply(answer(500, b"{}"))
        response = await system.complete(500)
    assert response.status_code in (502, 503)
    assert response.json()["error"]["message"]
    assert response.headers["x-prfaas-reason"]
    assert response.headers["x-prfaas-route"] == "local"


# -- D. legs


@pytest.mark.parametrize(
    "limits",
    [
        {"max_tokens": 50},
        {"max_completion_tokens": 50},
        {"max_tokens": 50, "max_completion_tokens": 40},
        {},
    ],
    ids=["old", "new", "both", "neither"],
)
async def test_r20_the_prefill_leg_makes_one_token(tmp_path: Path, limits: dict[str, int]) -> None:
    """Every spelling of the limit is 1 there; the decode leg is the client's but for the KV."""
    body = {**STREAMED, **limits, "n": 1, "stream_options": {"include_usage": True}}
    async with scripted_system(tmp_path, threshold=0) as system:
        await system.client.post(CHAT, json=body)
        first = system.engine("f0").calls[0].json()
        second = system.engine("d0").calls[0].json()
    assert all(first[name] == 1 for name in limits or {"max_tokens": 1})
    assert first["stream"] is False
    assert not {"stream_options", "n"} & first.keys()
    assert second.pop("kv_transfer_params") == handoff("f0-1")
    assert second == body


@pytest.mark.parametrize("params", [None, {}, "missing"], ids=["null", "empty", "missing"])
async def test_r23_a_prefill_without_a_handoff(tmp_path: Path, params: object) -> None:
    """The decode instance computes the prompt itself, and its answer is the client's."""
    changes = {} if params == "missing" else {"kv_transfer_params": params}
    async with scripted_system(tmp_path) as system:
        told = {"choices": [{"text": "PREFILL-TOKEN", "finish_reason": "stop"}], **changes}
        system.engine("f0").reply(json_answer(told))
        response = await system.complete(500)
        assert response.status_code == 200
        assert response.json()["choices"][0]["text"] == "d0"
        assert "kv_transfer_params" not in system.engine("d0").calls[0].json()


async def test_r25_clients_steer_no_connections(tmp_path: Path) -> None:
    """Transfer parameters and routing headers of a client reach no engine and change no route."""
    evil = {"do_remote_prefill": True, "remote_host": "10.9.9.9", "remote_port": 1}
    headers = {
        "x-prefiller-host-port": "10.9.9.9:1",
        "x-prefiller-url": "http://10.9.9.9",
        "x-data-parallel-rank": "3",
        "x-request-priority": "9",
    }
    async with scripted_system(tmp_path) as system:
        for size, route in ((10, "local"), (500, "prfaas")):
            response = await system.complete(
                size, headers=headers, kv_transfer_params=evil, ec_transfer_params=evil
            )
            assert routing(response)[0] == route
        for engine in system.engines.values():
            for call in engine.calls:
                assert b"10.9.9.9" not in call.body
                assert not {name.lower() for name, _ in call.headers} & {
                    name.encode() for name in headers
                }


# -- E. headers, bodies, endpoints


@pytest.mark.parametrize("accepts", [{}, {"accept-encoding": "gzip"}], ids=["plain", "gzip"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_r26_a_packed_answer_is_whole_for_every_client(
    tmp_path: Path, streamed: bool, accepts: dict[str, str]
) -> None:
    """What reaches the client is what its headers say; hop-by-hop fields end at the gateway."""
    hops = [("connection", "keep-alive, X-Hop"), ("x-hop", "1"), ("keep-alive", "timeout=9")]
    plain = b"".join(chat_events("tiny"))
    kind = "text/event-stream"
    if not streamed:
        plain, kind = (
            completed("d0", "tiny")[0].payload.partition(b"\r\n\r\n")[2],
            "application/json",
        )
    packed = gzip.compress(plain)
    script = stream(
        packed[:20], packed[20:], headers=[("content-encoding", "gzip"), *hops], content_type=kind
    )
    async with scripted_system(tmp_path, names="b0") as system:
        system.engine("b0").reply(script)
        async with calling(system.url) as client:
            theirs = {"connection": "close, X-Mine", "x-mine": "1", "te": "trailers"}
            await client.ask(CHAT, {**SHORT, "stream": streamed}, accepts | theirs)
            status, headers = await client.read_head()
            body = await client.read_rest()
        asked = {name.lower() for name, _ in system.engine("b0").calls[0].headers}
    assert status == 200
    assert "content-encoding" not in headers
    assert not {"x-hop", "keep-alive"} & headers.keys()
    assert not {b"x-mine", b"te"} & asked
    if streamed:
        assert headers["transfer-encoding"] == "chunked"
        body = unchunked(body)
    else:
        assert int(headers["content-length"]) == len(body)
    assert body == plain


def unchunked(body: bytes) -> bytes:
    """Return a chunked body's bytes; it must end with its last chunk."""
    plain = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if not int(size, 16):
            assert body == b"\r\n"
            return plain
        plain += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]


async def test_r28_cached_tokens_are_the_prefill_legs(tmp_path: Path) -> None:
    """The client is billed by what the prefill had cached, also in a stream's usage."""
    async with scripted_system(tmp_path) as system:
        for name in ("f0", "p0"):
            system.engine(name).cached_tokens = 12
        whole = (await system.complete(500)).json()
        usage = {
            "prompt_tokens": 500,
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 499},
        }
        last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        system.engine("d0").reply(stream(chat_event("tiny", "a"), last, DONE))
        response = await system.complete(500, stream=True, stream_options={"include_usage": True})
        told = json.loads(events_of(response.text)[-2])["usage"]
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 12}
    assert told == {**usage, "prompt_tokens_details": {"cached_tokens": 12}}


async def test_r30_request_ids(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Equal ids of clients are distinct at engines with one stem; odd ones are replaced."""
    caplog.set_level(logging.INFO, "prfaas.access")
    async with scripted_system(tmp_path) as system:
        given = {"x-request-id": "same"}
        answers = await asyncio.gather(*(system.complete(500, headers=given) for _ in range(2)))
        assert [each.headers["x-request-id"] for each in answers] == ["same", "same"]
        legs = [
            call.header("x-request-id") or ""
            for name in ("f0", "d0")
            for call in system.engine(name).calls
        ]
        assert len(set(legs)) == 4
        stems = {leg.rpartition("-")[0] for leg in legs}
        assert len(stems) == 2
        assert all(stem.startswith("same-") for stem in stems)
        for odd in (b"x" * 10_000, b"two\tparts", "grün".encode(), b""):
            response = await system.client.post(
                COMPLETIONS, json=LONG, headers={b"x-request-id": odd}
            )
            assert response.headers["x-request-id"].encode() != odd
            assert len(response.headers["x-request-id"]) == 32
    lines = [record.getMessage() for record in caplog.records if record.name == "prfaas.access"]
    assert len(lines) == 6
    assert not any("\n" in line or "x" * 200 in line for line in lines)


async def test_r32_a_body_over_the_limit_by_its_length(tmp_path: Path) -> None:
    """A Content-Length over the limit is 413 before any of the body was sent."""
    async with scripted_system(tmp_path, server={"max_body_bytes": 10_000}) as system:
        async with calling(system.url) as client:
            await client.send_head(COMPLETIONS, {"content-length": "10001"})
            status, headers = await client.read_head()
            body = await client.reader.readexactly(int(headers["content-length"]))
        assert status == 413
        assert headers["content-type"] == "application/json"
        assert json.loads(body)["error"]["code"] == "body_too_large"
        await system.counted("requests_total", code="413")
        assert not any(engine.calls for engine in system.engines.values())


async def test_r32_a_body_over_the_limit_in_chunks(tmp_path: Path) -> None:
    """A chunked body is refused at the limit, although its end never comes."""
    async with scripted_system(tmp_path, server={"max_body_bytes": 10_000}) as system:
        async with calling(system.url) as client:
            await client.send_head(COMPLETIONS, {"transfer-encoding": "chunked"})
            for _ in range(11):
                await client.send(chunk(b"x" * 1000).payload)
            assert (await client.read_head())[0] == 413
        assert not any(engine.calls for engine in system.engines.values())


async def test_r32_a_body_at_the_limit_passes(tmp_path: Path) -> None:
    """The limit itself passes, and so do eight megabytes under the default limit."""
    async with scripted_system(tmp_path, names="b0", server={"max_body_bytes": 10_000}) as system:
        bare = json.dumps({"model": "tiny", "prompt": ""}).encode()
        raw = bare[:-2] + b"a" * (10_000 - len(bare)) + bare[-2:]
        assert (await system.client.post(COMPLETIONS, content=raw)).status_code == 200
        assert system.engine("b0").calls[0].body == raw
    async with scripted_system(tmp_path, names="b0") as system:
        response = await system.complete("a" * 8_000_000)
        assert response.status_code == 200
        assert len(system.engine("b0").calls[0].body) > 8_000_000


RAW = (
    b'{"model" : "tiny","prompt":"hi", "seed": 12345678901234567890123, "temperature":1e-7,'
    b'"guided_json":{"a" :[1,  2]}, "priority": 3,"x_unknown":{"\\u00fc":null}}'
)


async def test_r34_values_reach_the_engine_as_the_client_wrote_them(tmp_path: Path) -> None:
    """One call carries the client's very bytes; a decode leg adds the hand-off and no more."""
    async with scripted_system(tmp_path, names="b0") as system:
        await system.client.post(COMPLETIONS, content=RAW)
        assert system.engine("b0").calls[0].body == RAW
    async with scripted_system(tmp_path) as system:
        await system.client.post(COMPLETIONS, content=RAW)
        seen = system.engine("d0").calls[0].body
    for literal in (b"12345678901234567890123", b"1e-7", b'{"a" :[1,  2]}', b'{"\\u00fc":null}'):
        assert literal in seen
    document = json.loads(seen)
    del document["kv_transfer_params"]
    assert document == json.loads(RAW)


async def test_r35_every_leg_gets_its_own_name_of_the_model(tmp_path: Path) -> None:
    """Aliases and served names reach each engine in its own word; the client sees its own."""
    model = {"aliases": ["little"], "served_name": "org/tiny"}
    entries = {"f0": {"served_name": "tiny-west"}}
    async with scripted_system(tmp_path, model=model, entries=entries) as system:
        response = await system.client.post(COMPLETIONS, json={**LONG, "model": "little"})
        assert system.engine("f0").calls[0].json()["model"] == "tiny-west"
        assert system.engine("d0").calls[0].json()["model"] == "org/tiny"
        assert response.json()["model"] == "little"
        streamed = await system.client.post(CHAT, json={**STREAMED, "model": "little"})
        documents = [json.loads(data) for data in events_of(streamed.text)[:-1]]
        assert {document["model"] for document in documents} == {"little"}


async def test_r35_adapters_go_by_their_engine_name(tmp_path: Path) -> None:
    """An adapter is asked for by the engines' name on both legs, and answers as the client's."""
    model = {"loras": [{"name": "poet", "served_name": "poet-v2"}]}
    async with scripted_system(tmp_path, model=model) as system:
        response = await system.client.post(COMPLETIONS, json={**LONG, "model": "poet"})
        assert routing(response) == ("prfaas", "above_threshold")
        for name in ("f0", "d0"):
            assert system.engine(name).calls[0].json()["model"] == "poet-v2"
        assert response.json()["model"] == "poet"
        assert (await system.decisions())[0]["model"] == "tiny"


async def test_r35_an_unknown_model_is_404_without_a_call(tmp_path: Path) -> None:
    """A model that nobody configured reaches no engine and makes no series of its own."""
    async with scripted_system(tmp_path) as system:
        for path in (CHAT, COMPLETIONS):
            response = await system.client.post(
                path, json={"model": "gpt-9", "messages": MESSAGES, "prompt": "x"}
            )
            assert response.status_code == 404
            error = response.json()["error"]
            assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert not any(engine.calls for engine in system.engines.values())
        metrics = await system.counted("requests_total", code="404")
        assert not any("gpt-9" in sample.labels.values() for sample in metrics.samples)


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
        (b'{"messages":[]}', "model"),
        (b'{"model":3,"messages":[]}', "model"),
        (b'{"model":"tiny"}', "messages"),
        (b'{"model":"tiny","messages":"hi"}', "messages"),
        (b'{"model":"tiny","messages":[],"stream":"yes"}', "stream"),
        (b'{"model":"tiny","messages":[],"cache_salt":7}', "cache_salt"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_bad_bodies_are_400_in_one_line(quiet: System, raw: bytes, param: str | None) -> None:
    """What cannot be read is told in the error shape, naming the field, without a call."""
    response = await quiet.client.post(CHAT, content=raw)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert "\n" not in error["message"]
    assert not any(engine.calls for engine in quiet.engines.values())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def quiet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A gateway for requests that reach no engine."""
    directory = tmp_path_factory.mktemp("quiet")
    async with scripted_system(directory, upstream={"probe": {"interval_seconds": 30}}) as system:
        yield system


async def test_unknown_paths_and_wrong_methods(tmp_path: Path) -> None:
    """Paths that are not ours are 404, wrong methods 405 with Allow, all in the error shape."""
    async with scripted_system(tmp_path) as system:
        for path in ("/", "/v1", "/v1/nothing", "/tokenize", "/reset_prefix_cache", "/docs"):
            response = await system.client.post(path, json={})
            assert (path, response.status_code) == (path, 404)
            assert response.json()["error"]["type"] == "not_found_error"
        for method, path, allowed in (
            ("GET", CHAT, "POST"),
            ("DELETE", COMPLETIONS, "POST"),
            ("POST", "/v1/models", "GET"),
            ("POST", "/health", "GET"),
        ):
            response = await system.client.request(method, path)
            assert (path, response.status_code) == (path, 405)
            assert response.headers["allow"] == allowed
            assert response.json()["error"]["code"] == 405


async def test_routing_headers_can_be_hidden(tmp_path: Path) -> None:
    """With expose_routing_headers off answers carry the request id alone."""
    server = {"expose_routing_headers": False}
    async with scripted_system(tmp_path, server=server) as system:
        good = await system.complete(500)
        system.engine("d0").reply(answer(500, b"{}"))
        bad = await system.complete(500)
    for response in (good, bad):
        assert not [name for name in response.headers if name.startswith("x-prfaas")]
        assert response.headers["x-request-id"]


async def test_errors_after_routing_say_where_they_happened(tmp_path: Path) -> None:
    """A 502 of a decode instance carries the routing headers; a 404 before routing does not."""
    async with scripted_system(tmp_path) as system:
        system.engine("d0").reply([Reset()])
        response = await system.complete(500)
        assert response.status_code == 502
        assert routing(response) == ("prfaas", "above_threshold")
        assert response.headers["x-prfaas-decode"] == "d0"
        unknown = await system.client.post(CHAT, json={**SHORT, "model": "no"})
        assert "x-prfaas-route" not in unknown.headers
        assert unknown.headers["x-request-id"]


async def test_keep_alive_survives_every_kind_of_answer(tmp_path: Path) -> None:
    """One client connection carries good answers, refusals and streams one after the other."""
    limits = httpx.Limits(max_connections=1)
    async with (
        scripted_system(tmp_path) as system,
        httpx.AsyncClient(base_url=system.url, limits=limits, trust_env=False) as client,
    ):
        codes = []
        for body in (SHORT, STREAMED, {"model": "no", "messages": []}, STREAMED, SHORT):
            response = await client.post(CHAT, json=body)
            codes.append(response.status_code)
        assert codes == [200, 200, 404, 200, 200]


async def test_pipelined_bytes_do_not_look_like_a_disconnect(tmp_path: Path) -> None:
    """A client that sends its next request early gets both answers, in order."""
    async with scripted_system(tmp_path) as system:
        client = await RawCall.open(system.url)
        await client.ask(COMPLETIONS, {"model": "tiny", "prompt": "a"})
        await client.ask(COMPLETIONS, {"model": "no", "prompt": "b"})
        for expected in (200, 404):
            status, headers = await client.read_head()
            assert status == expected
            await client.reader.readexactly(int(headers["content-length"]))
        client.leave()


async def test_tools_and_content_parts_take_the_same_route(tmp_path: Path) -> None:
    """The route depends on the tokens, not on the JSON shape that carries them."""
    tokens: dict[str, Any] = {"count": 500, "tokens": list(range(500))}
    model = {"tokenizer": {"kind": "engine"}}
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    async with scripted_system(tmp_path, model=model) as system:
        for engine in system.engines.values():
            engine.on("/tokenize", json_answer(tokens))
        for body in (SHORT, {**SHORT, "messages": parts}, {**SHORT, "tools": []}):
            response = await system.client.post(CHAT, json=body)
            assert routing(response) == ("prfaas", "above_threshold")
            assert response.headers["x-prfaas-total-tokens"] == "500"


async def test_tokenizer_drift_is_counted_once_a_request(tmp_path: Path) -> None:
    """Engines that count other prompt tokens than we did are noted; estimates cannot drift."""
    async with scripted_system(tmp_path) as system:
        for prompt, drifts in ((100, 0), ("about a hundred", 0), (500, 1), (20, 2)):
            await system.complete(prompt)  # the engines' usage says 100
            assert (await system.metrics()).total("tokenizer_drift_total") == drifts


async def test_the_pace_of_streams_is_measured(tmp_path: Path) -> None:
    """A whole stream gives one measure of its pace; a whole body and a broken stream give none."""
    name = "time_per_output_token_seconds_count"
    async with scripted_system(tmp_path) as system:
        await system.complete(10)
        system.engine("d0").then(
            stream(chat_event("tiny", "a"), chat_event("tiny", "b"), end=[Reset()])
        )
        await system.client.post(CHAT, json=STREAMED)
        assert (await system.metrics()).total(name) == 0
        await system.client.post(CHAT, json=STREAMED)
        metrics = await system.counted(name)
        assert metrics.total(name) == 1
        # Four words, of which the first has no time of its own, within a loopback's second.
        assert metrics.total("time_per_output_token_seconds_sum") < 1


@pytest.mark.parametrize(
    "metrics",
    [
        b"vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\n",
        b"vllm:num_requests_running{ 1e400\n",
        b"\xff\xfe\x00",
        b"",
    ],
)
async def test_odd_metrics_of_an_engine_harm_nobody(tmp_path: Path, metrics: bytes) -> None:
    """Metrics that make no sense are an unknown queue; the gateway goes on."""
    async with scripted_system(tmp_path) as system:
        engine = system.engine("f0")
        engine.on("/metrics", answer(200, metrics, content_type="text/plain"))
        await engine.received(len(engine.requests) + 6)
        assert routing(await system.complete(500)) == ("prfaas", "above_threshold")
        assert (await system.client.get("/ready")).status_code == 200
