"""The paths beside chat and completions: passed on, stored, shared with pages (CASES E)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.settings import SettingsError, load
from tests.fakes.live_engines import LiveEngine, handoff
from tests.fakes.raw_clients import calling
from tests.fakes.scripted_engine import (
    LAST_CHUNK,
    Hold,
    Recorded,
    Reset,
    Script,
    Send,
    Step,
    Until,
    head,
    json_answer,
    stream,
)
from tests.fakes.systems import System, fresh_ids, routing, scripted_system, write_configuration

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
ASKED = {"model": "tiny", "input": "Hello"}
NEVER = (
    "/load",
    "/version",
    "/ping",
    "/kv_event_sources",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
    "/start_profile",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/release_kv_cache_memory",
    "/collective_rpc",
    "/server_info",
    "/pause",
    "/resume",
    "/is_paused",
    "/abort_requests",
    "/update_weights",
    "/get_world_size",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/inference/v1/abort_requests",
)
"""What engines answer and clients must not reach, besides `/health` and `/metrics`."""


def asked_of(engine: LiveEngine, path: str) -> list[Recorded]:
    """What an engine was asked on a path, whatever its query."""
    return [each for each in engine.requests if each.path.partition("?")[0] == path]


def told(model: str = "tiny", **members: object) -> Script:
    """An answer with a model in it."""
    return json_answer({"object": "list", "data": [], "model": model, **members})


# -- what one instance answers by itself


@pytest.mark.parametrize(
    "path",
    [
        EMBEDDINGS,
        "/v1/rerank",
        "/rerank",
        "/v1/score",
        "/score",
        "/v1/messages/count_tokens",
        "/tokenize",
    ],
)
async def test_r34_passed_paths_go_to_one_instance(tmp_path: Path, path: str) -> None:
    """Same path and values, the engine's own name of the model, and no prefill leg."""
    entries = {"d0": {"served_name": "org/tiny-d"}}
    server = {"passthrough_paths": ["/tokenize"]}
    async with scripted_system(tmp_path, entries=entries, server=server) as system:
        engine = system.engine("d0")
        engine.on(path, told("org/tiny-d"))
        raw = b'{"model":"tiny","input":["a"],"big":9007199254740993,"small":1e-7,"odd":{"x":[]}}'
        response = await system.client.post(path, content=raw)
        assert (response.status_code, response.json()["model"]) == (200, "tiny")
        assert routing(response) == ("local", "not_disaggregable")
        assert response.headers["x-prfaas-decode"] == "d0"
        assert "x-prfaas-prefill" not in response.headers
        [call] = asked_of(engine, path)
        assert call.body == raw.replace(b'"tiny"', b'"org/tiny-d"')
        assert not any(asked_of(system.engine(name), path) for name in ("p0", "f0"))
        await system.settled()
        await system.counted("requests_total", code="200", reason="not_disaggregable")


async def test_r34_an_aggregated_instance_comes_first(tmp_path: Path) -> None:
    """Where an instance does both, it takes what is passed on."""
    async with scripted_system(tmp_path, names="p0 d0 b0") as system:
        system.engine("b0").on(EMBEDDINGS, told())
        response = await system.client.post(EMBEDDINGS, json=ASKED)
    assert response.headers["x-prfaas-decode"] == "b0"


async def test_paths_that_nobody_listed_do_not_exist(tmp_path: Path) -> None:
    """Everything that steers an engine or tells of it is 404 here and reaches no engine."""
    async with scripted_system(tmp_path) as system:
        for path in [*NEVER, "/tokenize", "/detokenize", TRANSCRIPTIONS, "/inference/v1/generate"]:
            for method in ("GET", "POST"):
                response = await system.client.request(method, path, json=ASKED)
                assert response.status_code == 404, path
                assert response.json()["error"]["message"]
        for name in ("p0", "d0", "f0"):
            asked = {each.path for each in system.engine(name).requests}
            assert asked <= {"/health", "/metrics"}


@pytest.mark.parametrize("path", [*NEVER, "/health", "/metrics", "/pause/", "/v1/models", "/ready"])
def test_paths_for_operators_cannot_be_listed(tmp_path: Path, path: str) -> None:
    """The configuration refuses to pass on what steers an engine, and what is the gateway's own."""
    document: dict[str, Any] = {
        "models": [{"name": "tiny"}],
        "clusters": [{"name": "east", "kind": "pd"}],
        "server": {"passthrough_paths": [path]},
    }
    with pytest.raises(SettingsError, match="passthrough_paths"):
        load(write_configuration(tmp_path, document), {})


async def test_passed_paths_refuse_as_the_others(tmp_path: Path) -> None:
    """Unknown models, missing keys, wrong methods and bad JSON reach no engine."""
    tenants = [{"name": "acme", "api_keys": ["sk-acme"]}]
    async with scripted_system(tmp_path, tenants=tenants) as system:
        key = {"authorization": "Bearer sk-acme"}
        for body, headers, status in (
            (ASKED, {}, 401),
            ({**ASKED, "model": "gpt-9"}, key, 404),
            ({"input": "x"}, key, 400),
            ([], key, 400),
        ):
            response = await system.client.post(EMBEDDINGS, json=body, headers=headers)
            assert response.status_code == status
        assert (await system.client.get(EMBEDDINGS, headers=key)).status_code == 405
        unknown = await system.client.post(
            EMBEDDINGS, json={**ASKED, "model": "gpt-9"}, headers=key
        )
        assert unknown.json()["error"]["code"] == "model_not_found"
        assert not asked_of(system.engine("d0"), EMBEDDINGS)


async def test_salts_of_passed_bodies(tmp_path: Path) -> None:
    """A tenant's salt replaces the client's; a body without one gets none."""
    tenants = [{"name": "acme", "api_keys": ["sk-acme"]}]
    async with scripted_system(tmp_path, tenants=tenants) as system:
        key = {"authorization": "Bearer sk-acme"}
        engine = system.engine("d0")
        engine.on(EMBEDDINGS, told())
        for extra in ({}, {"cache_salt": "mine"}):
            await system.client.post(EMBEDDINGS, json={**ASKED, **extra}, headers=key)
        bare, salted = (each.json() for each in asked_of(engine, EMBEDDINGS))
    assert "cache_salt" not in bare
    assert len(salted["cache_salt"]) == 64


async def test_a_client_that_leaves_ends_the_call(tmp_path: Path) -> None:
    """A passed call is cut when its client leaves, and nothing stays counted."""
    async with scripted_system(tmp_path) as system:
        engine = system.engine("d0")
        engine.on(EMBEDDINGS, [Hold()])
        async with calling(system.url) as client:
            await client.ask(EMBEDDINGS, ASKED)
            call = await until_asked(engine, EMBEDDINGS)
            client.leave()
            await engine.peer_closed(call, within=10)
        await system.settled()


async def until_asked(engine: LiveEngine, path: str, count: int = 1) -> Recorded:
    """Wait until an engine was asked on a path so many times; return the last request."""
    async with asyncio.timeout(30), engine._changed:
        await engine._changed.wait_for(lambda: len(asked_of(engine, path)) >= count)
    return asked_of(engine, path)[count - 1]


async def test_a_dead_instance_is_replaced(tmp_path: Path) -> None:
    """What cannot have been processed is asked of another instance."""
    async with scripted_system(tmp_path, names="d0 d1") as system:
        system.engine("d0").on(EMBEDDINGS, json_answer({}, 503))
        system.engine("d1").on(EMBEDDINGS, told())
        response = await system.client.post(EMBEDDINGS, json=ASKED)
        assert (response.status_code, response.headers["x-prfaas-decode"]) == (200, "d1")


async def test_answers_that_are_not_json_stream(tmp_path: Path) -> None:
    """Audio passes as it comes: the first bytes are here before the last were sent."""
    path = "/v1/audio/speech"
    gate = asyncio.Event()
    async with scripted_system(tmp_path, server={"passthrough_paths": [path]}) as system:
        first, second = b"\xff\xf3model", b"\x00" * 100
        fields = [("content-type", "audio/mpeg"), ("content-length", str(len(first + second)))]
        steps = [head(200, fields), Send(first), Until(gate), Send(second)]
        system.engine("d0").on(path, steps)
        async with system.client.stream("POST", path, json=ASKED) as response:
            assert response.headers["content-type"] == "audio/mpeg"
            pieces = response.aiter_raw()
            assert await anext(pieces) == first
            gate.set()
            assert b"".join([piece async for piece in pieces]) == second


@pytest.mark.parametrize("end", ["clean", "cut"])
async def test_streams_of_passed_paths_end_as_they_like(tmp_path: Path, end: str) -> None:
    """A stream of another API is whole where HTTP ends it; one that is cut ends with an error."""
    path = "/v1/audio/speech"
    events = b'data: {"type":"speech.audio.delta"}\n\n', b'data: {"type":"speech.audio.done"}\n\n'
    last: list[Step] = [LAST_CHUNK] if end == "clean" else [Reset()]
    async with scripted_system(tmp_path, server={"passthrough_paths": [path]}) as system:
        system.engine("d0").on(path, stream(*events, end=last))
        response = await system.client.post(path, json={**ASKED, "stream_format": "sse"})
        assert response.content.startswith(b"".join(events))
        assert (b'"error"' in response.content) is (end == "cut")
        await system.settled()


# -- forms with files


def form(size: int, *, model: str | None = "tiny") -> tuple[bytes, str]:
    """A form with a model and a file, as OpenAI's client writes it; return its content type too."""
    fields = {} if model is None else {"model": model}
    request = httpx.Request(
        "POST",
        "http://gateway",
        data={"language": "en", **fields},
        files={"file": ("a.wav", bytes(size), "audio/wav")},
    )
    return request.read(), request.headers["content-type"]


TRANSCRIBING = {"server": {"passthrough_paths": [TRANSCRIPTIONS], "max_body_bytes": 1_000_000}}


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_forms_pass_byte_for_byte(tmp_path: Path, *, chunked: bool) -> None:
    """A form reaches the engine as the client sent it, with its own boundary and framing."""
    raw, kind = form(300_000)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), 50_000):
            yield raw[start : start + 50_000]

    async with scripted_system(tmp_path, **TRANSCRIBING) as system:
        engine = system.engine("d0")
        engine.on(TRANSCRIPTIONS, json_answer({"text": "hello", "model": "tiny"}))
        response = await system.client.post(
            TRANSCRIPTIONS, content=pieces() if chunked else raw, headers={"content-type": kind}
        )
        assert response.json() == {"text": "hello", "model": "tiny"}
        [call] = asked_of(engine, TRANSCRIPTIONS)
        assert (call.body, call.header("content-type")) == (raw, kind)
        assert call.header("content-length") == (None if chunked else str(len(raw)))
        assert response.headers["x-prfaas-decode"] == "d0"
        await system.settled()


async def test_forms_are_not_held(tmp_path: Path) -> None:
    """The engine has the first part of a form while the client still holds back the rest."""
    raw, kind = form(200_000)
    async with scripted_system(tmp_path, **TRANSCRIBING) as system:
        engine = system.engine("d0")
        engine.on(TRANSCRIPTIONS, json_answer({"text": ""}))
        async with calling(system.url) as client:
            told = {"content-type": kind, "content-length": str(len(raw))}
            await client.send_head(TRANSCRIPTIONS, told)
            await client.send(raw[:100_000])
            await system.until(lambda state: any(each["inflight"] for each in state["instances"]))
            assert not asked_of(engine, TRANSCRIPTIONS)
            await client.send(raw[100_000:])
            status, _ = await client.read_head()
        assert status == 200
        await system.settled()


async def test_a_client_that_leaves_in_its_form_ends_the_call(tmp_path: Path) -> None:
    """Half a form whose client leaves is cut at the engine, which sees no whole request."""
    raw, kind = form(200_000)
    async with scripted_system(tmp_path, **TRANSCRIBING) as system:
        async with calling(system.url) as client:
            told = {"content-type": kind, "content-length": str(len(raw))}
            await client.send_head(TRANSCRIPTIONS, told)
            await client.send(raw[:100_000])
            await system.until(lambda state: any(each["inflight"] for each in state["instances"]))
            client.leave()
        await system.settled()
        assert not asked_of(system.engine("d0"), TRANSCRIPTIONS)
        await system.counted("requests_total", code="499")


async def test_a_client_that_leaves_after_its_form_ends_the_call(tmp_path: Path) -> None:
    """With the whole form sent, a client that leaves takes the engine's work with it."""
    raw, kind = form(1000)
    async with scripted_system(tmp_path, **TRANSCRIBING) as system:
        engine = system.engine("d0")
        engine.on(TRANSCRIPTIONS, [Hold()])
        async with calling(system.url) as client:
            told = {"content-type": kind, "content-length": str(len(raw))}
            await client.send_head(TRANSCRIPTIONS, told)
            await client.send(raw)
            call = await until_asked(engine, TRANSCRIPTIONS)
            client.leave()
            await engine.peer_closed(call, within=10)
        await system.settled()


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_r32_forms_over_the_limit(tmp_path: Path, *, chunked: bool) -> None:
    """A form over the limit is 413, by its length at once, in chunks as soon as it is over."""
    raw, kind = form(1_000_000)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), 50_000):
            yield raw[start : start + 50_000]

    async with scripted_system(tmp_path, **TRANSCRIBING) as system:
        response = await system.client.post(
            TRANSCRIPTIONS, content=pieces() if chunked else raw, headers={"content-type": kind}
        )
        assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
        await system.settled()
        assert not asked_of(system.engine("d0"), TRANSCRIPTIONS)


async def test_forms_need_a_known_model(tmp_path: Path) -> None:
    """A form without a model is 400, one with an unknown model 404; no engine is asked."""
    async with scripted_system(tmp_path, **TRANSCRIBING) as system:
        for model, status in ((None, 400), ("gpt-9", 404)):
            raw, kind = form(100, model=model)
            response = await system.client.post(
                TRANSCRIPTIONS, content=raw, headers={"content-type": kind}
            )
            assert (response.status_code, response.json()["error"]["param"]) == (status, "model")
        assert not asked_of(system.engine("d0"), TRANSCRIPTIONS)


async def test_an_engine_that_answers_before_the_form_has_ended(tmp_path: Path) -> None:
    """An early refusal reaches the client, who need not have sent the rest."""
    raw, kind = form(200_000)
    async with scripted_system(tmp_path, **TRANSCRIBING) as system:
        engine = system.engine("d0")
        refusal = b'{"error":{"message":"no audio here"}}'
        fields = [("content-type", "application/json"), ("content-length", str(len(refusal)))]
        engine.interrupt(TRANSCRIPTIONS, head(404, fields).payload + refusal)
        async with calling(system.url) as client:
            told = {"content-type": kind, "content-length": str(len(raw))}
            await client.send_head(TRANSCRIPTIONS, told)
            await client.send(raw[:100_000])
            status, _ = await client.read_head()
        assert status == 404
        await system.settled()


async def test_forms_to_a_dead_instance_go_to_another(tmp_path: Path) -> None:
    """A form of which nothing was read yet can go elsewhere; one that has begun cannot."""
    raw, kind = form(1000)
    async with scripted_system(tmp_path, names="d0 d1", **TRANSCRIBING) as system:
        system.engine("d0").on(TRANSCRIPTIONS, json_answer({}, 503))
        system.engine("d1").on(TRANSCRIPTIONS, json_answer({"text": ""}))
        headers = {"content-type": kind}
        begun = await system.client.post(TRANSCRIPTIONS, content=raw, headers=headers)
        assert begun.status_code == 502
        await system.engine("d0").stop()
        fresh = await system.client.post(TRANSCRIPTIONS, content=raw, headers=headers)
        assert (fresh.status_code, fresh.headers["x-prfaas-decode"]) == (200, "d1")


# -- responses

SERVED_AS = {"d0": {"served_name": "tiny-d"}}


def response_of(model: str, response_id: str, **members: object) -> Script:
    """A whole response."""
    document = {"id": response_id, "object": "response", "model": model, "output": []}
    return json_answer(document | members)


def response_events(model: str, response_id: str) -> Script:
    """A streamed response."""
    begun = {"id": response_id, "object": "response", "model": model}
    events = [("response.created", begun), ("response.completed", begun)]
    return stream(
        *(
            f"event: {kind}\ndata: {json.dumps({'type': kind, 'response': told})}\n\n".encode()
            for kind, told in events
        )
    )


async def make_response(system: System, *, streamed: bool) -> str:
    """Have a response made by `d0`; return its id."""
    system.engine("d0").on(
        RESPONSES,
        response_events("tiny-d", "resp_1") if streamed else response_of("tiny-d", "resp_1"),
    )
    response = await system.client.post(RESPONSES, json={**ASKED, "stream": streamed})
    assert response.status_code == 200
    assert '"tiny-d"' not in response.text
    return "resp_1"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_stored_responses_go_to_their_instance(tmp_path: Path, *, streamed: bool) -> None:
    """Read, cancel and continue ask the instance that made a response, under its own name."""
    async with scripted_system(tmp_path, names="d0 d1", entries=SERVED_AS) as system:
        await system.order("PATCH", "instances/d1", {"state": "disabled"})
        made = await make_response(system, streamed=streamed)
        await system.order("PATCH", "instances/d1", {"state": "active"})
        engine = system.engine("d0")
        engine.on(f"{RESPONSES}/{made}", response_of("tiny-d", made))
        engine.on(f"{RESPONSES}/{made}/cancel", response_of("tiny-d", made, status="cancelled"))
        read = await system.client.get(f"{RESPONSES}/{made}?include=x&stream=false")
        assert (read.status_code, read.json()["model"]) == (200, "tiny")
        cancelled = await system.client.post(f"{RESPONSES}/{made}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        engine.on(RESPONSES, response_of("tiny-d", "resp_2"))
        following = {**ASKED, "previous_response_id": made}
        assert (await system.client.post(RESPONSES, json=following)).status_code == 200
        got, cancel = (
            asked_of(engine, f"{RESPONSES}/{made}{order}")[0] for order in ("", "/cancel")
        )
        assert (got.method, got.path) == ("GET", f"{RESPONSES}/{made}?include=x&stream=false")
        assert (cancel.method, cancel.body) == ("POST", b"")
        [_, continued] = asked_of(engine, RESPONSES)
        assert continued.json()["previous_response_id"] == made
        assert all(each.path in {"/health", "/metrics"} for each in system.engine("d1").requests)
        await system.settled()


async def test_unknown_responses_are_404_without_a_call(tmp_path: Path) -> None:
    """An id that nobody here made, and what is no order, are 404 in the API's shape."""
    async with scripted_system(tmp_path) as system:
        for method, path, status in (
            ("GET", "/resp_9", 404),
            ("POST", "/resp_9/cancel", 404),
            ("GET", "/resp_9/input_items", 404),
            ("DELETE", "/resp_9", 405),
            ("GET", "/resp_9/cancel", 405),
        ):
            response = await system.client.request(method, RESPONSES + path)
            assert response.status_code == status
            assert ("allow" in response.headers) is (status == 405)
            assert response.json()["error"]["message"]
        asked = {each.path for each in system.engine("d0").requests}
        assert asked <= {"/health", "/metrics"}


async def test_responses_are_their_tenants(tmp_path: Path) -> None:
    """Nobody reads or continues another tenant's response, nor any without a key."""
    tenants = [{"name": name, "api_keys": [f"sk-{name}"]} for name in ("acme", "zeta")]
    async with scripted_system(tmp_path, tenants=tenants) as system:
        engine = system.engine("d0")
        engine.on(RESPONSES, response_of("tiny", "resp_1"))
        engine.on(f"{RESPONSES}/resp_1", response_of("tiny", "resp_1"))
        key = {"authorization": "Bearer sk-acme"}
        await system.client.post(RESPONSES, json=ASKED, headers=key)
        for headers, status in (
            (key, 200),
            ({"authorization": "Bearer sk-zeta"}, 404),
            ({}, 401),
        ):
            read = await system.client.get(f"{RESPONSES}/resp_1", headers=headers)
            assert read.status_code == status
            following = {**ASKED, "previous_response_id": "resp_1"}
            continued = await system.client.post(RESPONSES, json=following, headers=headers)
            assert continued.status_code == status
        assert len(asked_of(engine, RESPONSES)) == 2


async def test_a_response_whose_instance_is_away(tmp_path: Path) -> None:
    """While its instance is drained a response cannot be read: 503, and nobody else is asked."""
    async with scripted_system(tmp_path, names="d0 d1", entries=SERVED_AS) as system:
        await system.order("PATCH", "instances/d1", {"state": "disabled"})
        made = await make_response(system, streamed=False)
        await system.order("PATCH", "instances/d1", {"state": "active"})
        await system.order("PATCH", "instances/d0", {"state": "disabled"})
        read = await system.client.get(f"{RESPONSES}/{made}")
        assert read.status_code == 503
        assert not asked_of(system.engine("d1"), f"{RESPONSES}/{made}")


# -- messages


async def test_messages_take_both_legs(tmp_path: Path) -> None:
    """A long conversation is prefilled elsewhere with one token, and decoded as the client said."""
    said = [{"role": "user", "content": "word " * 400}]
    asked = {"model": "tiny", "max_tokens": 50, "messages": said, "stop_sequences": ["x"]}
    async with scripted_system(tmp_path) as system:
        document = {"id": "msg_1", "type": "message", "model": "tiny", "content": []}
        usage = {"input_tokens": 400, "output_tokens": 4, "cache_read_input_tokens": 399}
        given = {**document, "usage": {**usage, "cache_read_input_tokens": 7}}
        system.engine("f0").on(MESSAGES, json_answer(given | {"kv_transfer_params": handoff("m")}))
        system.engine("d0").on(MESSAGES, json_answer({**document, "usage": usage}))
        response = await system.client.post(MESSAGES, json=asked)
        assert routing(response) == ("prfaas", "above_threshold")
        assert response.json()["usage"]["cache_read_input_tokens"] == 7
        [first], [second] = (asked_of(system.engine(name), MESSAGES) for name in ("f0", "d0"))
        assert first.json()["max_tokens"] == 1
        assert "stop_sequences" not in first.json()
        assert second.json() == asked | {"kv_transfer_params": handoff("m")}


async def test_messages_have_their_own_key_and_errors(tmp_path: Path) -> None:
    """`x-api-key` is the key there, goes no further, and refusals have Anthropic's shape."""
    tenants = [{"name": "acme", "api_keys": ["sk-acme"]}]
    asked = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    async with scripted_system(tmp_path, tenants=tenants) as system:
        for engine in (system.engine("p0"), system.engine("d0")):
            engine.on(MESSAGES, json_answer({"id": "msg_1", "type": "message", "model": "tiny"}))
        good = await system.client.post(MESSAGES, json=asked, headers={"x-api-key": "sk-acme"})
        assert good.status_code == 200
        bad = await system.client.post(MESSAGES, json=asked, headers={"x-api-key": "sk-other"})
        assert (bad.status_code, bad.json()["type"]) == (401, "error")
        assert bad.json()["error"]["type"] == "authentication_error"
        for path in ("/v1/chat/completions", EMBEDDINGS):
            elsewhere = await system.client.post(
                path, json={**asked, "input": "x"}, headers={"x-api-key": "sk-acme"}
            )
            assert (elsewhere.status_code, "type" in elsewhere.json()) == (401, False)
        for name in ("p0", "d0"):
            for call in system.engine(name).requests:
                assert not any(b"sk-acme" in value for _, value in call.headers)


# -- pages


CORS = {"server": {"cors": {"allow_origins": ["https://app.example"]}}}
ORIGIN = {"origin": "https://app.example"}


async def test_r31_preflights_and_streams_of_pages(tmp_path: Path) -> None:
    """A preflight needs no key and echoes what it asks for; streams and refusals are marked."""
    tenants = [{"name": "acme", "api_keys": ["sk-acme"]}]
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with scripted_system(tmp_path, tenants=tenants, **CORS) as system:
        wanted = "authorization,x-stainless-os"
        preflight = await system.client.options(
            CHAT,
            headers={
                **ORIGIN,
                "access-control-request-method": "POST",
                "access-control-request-headers": wanted,
            },
        )
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-headers"] == wanted
        assert preflight.headers["access-control-max-age"] == "600"
        key = {"authorization": "Bearer sk-acme"}
        streamed = await system.client.post(CHAT, json=asked, headers={**ORIGIN, **key})
        assert streamed.headers["content-type"].startswith("text/event-stream")
        refused = await system.client.post(CHAT, json=asked, headers=ORIGIN)
        listed = await system.client.get("/v1/models", headers=ORIGIN)
        assert (refused.status_code, listed.status_code) == (401, 401)
        for response in (preflight, streamed, refused, listed):
            assert response.headers["access-control-allow-origin"] == ORIGIN["origin"]
        assert "x-request-id" in streamed.headers["access-control-expose-headers"]


async def test_r31_strangers_and_operators_paths_are_not_shared(tmp_path: Path) -> None:
    """Other origins get no mark; the admin API and metrics get none for anybody."""
    async with scripted_system(tmp_path, **CORS) as system:
        asked = {"model": "tiny", "prompt": [1, 2, 3]}
        stranger = await system.client.post(
            "/v1/completions", json=asked, headers={"origin": "https://evil.example"}
        )
        operators = await system.client.get("/admin/v1/state", headers=ORIGIN)
        metrics = await system.client.get("/metrics", headers=ORIGIN)
    for response in (stranger, operators, metrics):
        assert response.status_code == 200
        assert "access-control-allow-origin" not in response.headers


async def test_r31_off_by_default(tmp_path: Path) -> None:
    """Without configured origins a preflight is refused and nothing is marked."""
    async with scripted_system(tmp_path) as system:
        wanted = {**ORIGIN, "access-control-request-method": "POST"}
        preflight = await system.client.options(CHAT, headers=wanted)
        plain = await system.complete(5, headers=ORIGIN)
    assert (preflight.status_code, plain.status_code) == (405, 200)
    for response in (preflight, plain):
        assert not any(name.startswith("access-control") for name in response.headers)


# -- names and bodies


async def test_r35_an_alias_with_nobody_behind_it(tmp_path: Path) -> None:
    """A configured name without a live instance is 503 with Retry-After on every path."""
    model = {"aliases": ["org/little"]}
    async with scripted_system(tmp_path, model=model) as system:
        await system.order("PATCH", "instances/d0", {"state": "disabled"})
        for path, body in (
            (CHAT, {"messages": [{"role": "user", "content": "Hi"}]}),
            (RESPONSES, {"input": "Hi"}),
            (EMBEDDINGS, {"input": "Hi"}),
        ):
            response = await system.client.post(path, json={"model": "org/little", **body})
            assert response.status_code == 503
            assert response.headers["retry-after"]
        names = [each["id"] for each in (await system.client.get("/v1/models")).json()["data"]]
    assert names == ["tiny", "org/little"]


@pytest.mark.parametrize("name", ["tiny", "org/little", "poet"])
async def test_r35_every_name_on_every_path(tmp_path: Path, name: str) -> None:
    """Each name goes up as the engine's own and comes back as the client's, in every document."""
    served = {"tiny": "tiny-d", "org/little": "tiny-d", "poet": "poet-7"}[name]
    model = {"aliases": ["org/little"], "loras": [{"name": "poet", "served_name": "poet-7"}]}
    entries = {"b0": {"served_name": "tiny-d"}}
    async with scripted_system(tmp_path, names="b0", model=model, entries=entries) as system:
        engine = system.engine("b0")
        message = {"type": "message_start", "message": {"model": served}}
        last = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
        engine.on(EMBEDDINGS, told(served))
        engine.on(RESPONSES, response_events(served, "resp_1"))
        engine.on(
            MESSAGES,
            stream(b"event: message_start\ndata: " + json.dumps(message).encode() + b"\n\n", last),
        )
        for path, body in (
            (EMBEDDINGS, {"input": "Hi"}),
            (RESPONSES, {"input": "Hi", "stream": True}),
            (MESSAGES, {"messages": [], "max_tokens": 3, "stream": True}),
        ):
            response = await system.client.post(path, json={"model": name, **body})
            assert response.status_code == 200
            [call] = asked_of(engine, path)
            assert call.json()["model"] == served
            assert json.dumps(name) in response.text
            assert json.dumps(served) not in response.text


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 2},
        {"best_of": 3},
        {"echo": True},
        {"prompt_logprobs": 0},
        {"prompt": [[1, 2], [3]]},
        {"prompt": ["a", "b"]},
    ],
    ids=str,
)
async def test_r24_what_one_instance_must_do(tmp_path: Path, extra: dict[str, Any]) -> None:
    """A hand-off serves one sequence and hides the prompt's own pass: such requests stay whole."""
    async with scripted_system(tmp_path) as system:
        body = {"prompt": fresh_ids(500), **extra}
        response = await system.complete(body.pop("prompt"), **body)
        assert routing(response) == ("local", "not_disaggregable")
        [call] = system.engine("d0").calls
        assert {name: call.json()[name] for name in extra} == extra
        assert not system.engine("p0").calls
        assert not system.engine("f0").calls


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 1},
        {"logprobs": 2},
        {"prompt_logprobs": None},
        {"structured_outputs": {"regex": "a+"}},
        {"response_format": {"type": "json_object"}},
    ],
    ids=str,
)
async def test_what_both_legs_carry(tmp_path: Path, extra: dict[str, Any]) -> None:
    """What shapes the answer alone reaches the decode leg as it is, beside the hand-off."""
    async with scripted_system(tmp_path) as system:
        response = await system.complete(500, **extra)
        assert routing(response) == ("prfaas", "above_threshold")
        told = system.engine("d0").calls[0].json()
    assert {name: told[name] for name in extra} == extra
    assert told["kv_transfer_params"]["do_remote_prefill"] is True
