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
from tests.fakes.live_engines import LiveEngine
from tests.fakes.raw_clients import calling
from tests.fakes.scripted_engine import (
    Hold,
    Recorded,
    Script,
    Send,
    Until,
    answer,
    head,
    json_answer,
    stream,
)
from tests.fakes.systems import System, fresh_ids, routing, scripted_system, write_configuration

EMBEDDINGS = "/v1/embeddings"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
ASKED = {"model": "tiny", "input": "Hello"}
NEVER = (
    "/load /version /ping /kv_event_sources /scale_elastic_ep /is_scaling_elastic_ep "
    "/start_profile /reset_prefix_cache /reset_mm_cache /reset_encoder_cache /sleep /wake_up "
    "/is_sleeping /release_kv_cache_memory /collective_rpc /server_info /pause /resume /is_paused "
    "/abort_requests /update_weights /get_world_size /v1/load_lora_adapter "
    "/v1/unload_lora_adapter /inference/v1/abort_requests"
).split()
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
    """Same path, same values, the served name for a model, no prefill leg, the client's name back."""
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
            await engine.peer_closed(call, within=2)
        await system.settled()


async def until_asked(engine: LiveEngine, path: str, count: int = 1) -> Recorded:
    """Wait until an engine was asked on a path so many times; return the last request."""
    async with asyncio.timeout(5), engine._changed:
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
            await engine.peer_closed(call, within=2)
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
        engine.early = b"HTTP/1.1 404 No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
            len(refusal),
            refusal,
        )
        async with calling(system.url) as client:
            told = {"content-type": kind, "content-length": str(len(raw))}
            await client.send_head(TRANSCRIPTIONS, told)
            await client.send(raw[:100_000])
            status, _ = await client.read_head()
        assert status == 404
        engine.early = None
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
