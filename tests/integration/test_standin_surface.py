"""The stand-in answers what a real vLLM 0.32 answered: status, errors, and every body's keys."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
import pytest_asyncio

from router.sim.engines.cluster import serve_cluster
from router.sim.engines.errors import RequestError
from router.sim.engines.requests import read_body
from router.sim.engines.specs import ClusterSpec
from tests.fakes.standins import MODEL, asking, engine_spec, shipped_tokenizer

Json: TypeAlias = Any  # bodies of a foreign engine, looked into by key

EXCHANGES: dict[str, Json] = json.loads(
    (Path(__file__).parents[1] / "data" / "vllm_http_exchanges.json").read_text("utf-8")
)
# What only this engine adds, and what a version of vLLM between 0.32 and 0.33 moved.
ADDED = {"standin"}
GENERATE_ONLY = {
    "ec_transfer_params", "metrics", "mm_placeholders", "prompt_logprobs",
    "prompt_token_id_logprobs", "prompt_token_ids", "usage",
}  # fmt: skip
SAMPLING_DEFAULTS = {
    "bad_words", "frequency_penalty", "min_p", "output_kind", "presence_penalty",
    "repetition_penalty", "skip_clone", "skip_reading_prefix_cache",
}  # fmt: skip


def test_a_number_too_long_to_convert_is_malformed_json() -> None:
    """Its sender is told so; it is no failure of the engine."""
    with pytest.raises(RequestError, match="JSON decode error"):
        read_body("application/json", b'{"max_tokens": ' + b"9" * 5000 + b"}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines() -> AsyncIterator[dict[str, str]]:
    spec = ClusterSpec(
        "east",
        (
            engine_spec(
                "plain",
                max_model_len=4096,
                report_cached_tokens=False,
                decode_tokens_per_second=20.0,
                enable_request_id_headers=False,
            ),
            engine_spec(
                "scale_out",
                max_model_len=4096,
                decode_tokens_per_second=20.0,
                enable_scale_out=True,
            ),
        ),
        time_scale=2.0,  # tokens stay far enough apart to come one by one
    )
    async with serve_cluster(spec, tokenizer=shipped_tokenizer()) as cluster:
        yield {name: host.url for name, host in cluster.engines.items()}


def expand(value: Json) -> Json:
    """Undo the compaction of long repeats in the exchanges."""
    if isinstance(value, dict) and "$repeat" in value:
        item, times = value["$repeat"], value["$times"]
        return item * times if isinstance(item, str) else [item] * times
    if isinstance(value, dict):
        return {key: expand(item) for key, item in value.items()}
    return [expand(item) for item in value] if isinstance(value, list) else value


def shape(value: Json) -> Json:
    """The keys of a body, all the way down, without what only the stand-in adds."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items() if key not in ADDED}
    if isinstance(value, list):
        return [shape(value[0])] if value and isinstance(value[0], dict) else "list"
    return None


def without(value: Json, names: set[str]) -> Json:
    if isinstance(value, dict):
        return {key: without(item, names) for key, item in value.items() if key not in names}
    return [without(item, names) for item in value] if isinstance(value, list) else value


async def ask(url: str, request: dict[str, Json]) -> httpx.Response:
    content = request.get("raw_body")
    if "body" in request:
        content = json.dumps(expand(request["body"])).replace('"tiny"', f'"{MODEL}"')
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        return await client.request(
            request["method"], url + request["path"], content=content, headers=request["headers"]
        )


def known_differences(name: str, body: Json) -> Json:
    if name.endswith("generate_tokens") and "choices" in body:
        body = without(body, GENERATE_ONLY)
        allowed = ("finish_reason", "index", "logprobs", "stop_reason", "token_ids")
        return {**body, "choices": [dict.fromkeys(allowed)]}
    if name.endswith("_render"):
        return without(body, SAMPLING_DEFAULTS)
    return body


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.asyncio(loop_scope="module")
async def test_answers_as_the_real_engine_did(name: str, engines: dict[str, str]) -> None:
    """Same status, content type, error and keys; same number of tokens and same finish reasons."""
    exchange = EXCHANGES[name]
    expected = exchange["answer"]
    answer = await ask(engines[name.partition("/")[0]], exchange["request"])
    assert answer.status_code == expected["status"], answer.text
    assert answer.headers.get("content-type") == expected["content_type"]
    assert answer.headers.get("allow") == expected.get("allow")
    if "events" in expected:
        parts = [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part]
        told = [part if part == "[DONE]" else shape(json.loads(part)) for part in parts]
        assert list(merge_runs(told)) == list(merge_runs(expected["events"]))
    elif "text" in expected:
        assert answer.text == expected["text"]
    else:
        body = answer.json()
        assert known_differences(name, shape(body)) == known_differences(name, expected["shape"])
        if "error" in expected:
            check_error(body["error"], expected["error"])
        if "completion_tokens" in expected:
            assert body["usage"]["completion_tokens"] == expected["completion_tokens"]
            reasons = [choice["finish_reason"] for choice in body["choices"]]
            assert reasons == expected["finish_reasons"]


def merge_runs(events: list[Json]) -> Iterator[Json]:
    """Events without repeats of a shape: a late engine puts several tokens into one event."""
    return (event for event, _ in itertools.groupby(events))


def check_error(error: dict[str, Json], expected: dict[str, Json]) -> None:
    for key in ("type", "param", "code"):
        assert error[key] == expected[key]
    # Messages agree up to numbers that depend on the tokenizer, and up to ways of counting.
    assert error["message"].split(" ")[:4] == expected["message"].split(" ")[:4]


GIVEN_IDS = "kv_transfer_params.prompt_token_ids"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"n": 0}, 400, None),
        ({"min_tokens": 9, "max_tokens": 8}, 400, None),
        ({"max_completion_tokens": 0}, 400, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, 400, "prompt_logprobs"),
        ({"priority": 3}, 400, None),
        ({"priority": 0}, 200, None),
        ({"top_p": 0}, 400, "top_p"),
        ({"stop": ""}, 400, None),
        ({"prompt": [4096]}, 400, None),
        ({"prompt": [-1]}, 400, None),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": None}, 400, "prompt"),
        ({"prompt": [[1, 2], "a"]}, 200, None),
        ({"cache_salt": "x" * 1025}, 400, "cache_salt"),
        ({"max_tokens": "many"}, 400, "body.max_tokens"),
        ({"stream": "yes"}, 400, "body.stream"),
        ({"kv_transfer_params": {"prompt_token_ids": []}}, 400, GIVEN_IDS),
        ({"kv_transfer_params": {"prompt_token_ids": [7, 8]}}, 200, None),
        ({"some_unknown_field": 1}, 200, None),
        ({"model": None}, 200, None),
        ({"n": 3}, 200, None),
        ({"logprobs": 1, "echo": True}, 200, None),
    ],
)  # fmt: skip
@pytest.mark.asyncio(loop_scope="module")
async def test_r05_legal_and_illegal_combinations(
    body: dict[str, Json], status: int, param: str | None, engines: dict[str, str]
) -> None:
    """Requests that vLLM refuses are refused with its parameter, others are served."""
    request = {
        "method": "POST",
        "path": "/v1/completions",
        "headers": {"content-type": "application/json"},
        "body": asking(**{"prompt": [5, 6, 7], **body}),
    }
    answer = await ask(engines["plain"], request)
    assert answer.status_code == status, answer.text
    if status == 400:
        assert answer.json()["error"]["param"] == param


@pytest.mark.asyncio(loop_scope="module")
async def test_choices_echo_logprobs_and_ids_are_legal(engines: dict[str, str]) -> None:
    """Several choices differ, echo repeats the prompt, logprobs and ids fit the tokens told."""
    async with httpx.AsyncClient(trust_env=False) as client:
        url = engines["scale_out"] + "/v1/completions"
        body = asking(prompt="the prefix cache", n=2, echo=True, logprobs=1, max_tokens=4)
        answer = (await client.post(url, json=body)).json()
        first, second = answer["choices"]
        assert first["text"].startswith("the prefix cache")
        assert first["token_ids"] != second["token_ids"]
        assert len(first["logprobs"]["tokens"]) == len(first["token_ids"]) == 4
        assert answer["usage"]["completion_tokens"] == 8
        listed = await client.get(engines["scale_out"] + "/v1/models")
        assert [card["id"] for card in listed.json()["data"]] == [MODEL]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
async def test_template_arguments_that_the_engine_gives_itself_are_refused(
    engines: dict[str, str], name: str
) -> None:
    """A client cannot make an engine fail, and with it its breaker, by what it sends."""
    async with httpx.AsyncClient(base_url=engines["plain"], trust_env=False) as client:
        response = await client.post(
            "/v1/chat/completions",
            json={
                "model": MODEL,
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 1,
                "chat_template_kwargs": {name: [1]},
            },
        )
    assert response.status_code == 400, response.text


@pytest.mark.asyncio(loop_scope="module")
async def test_rendered_chat_has_the_ids_that_are_computed(engines: dict[str, str]) -> None:
    """`/render`, `/tokenize` and the completion itself count and see the same tokens."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hello there"}]}
    async with httpx.AsyncClient(trust_env=False) as client:
        base = engines["scale_out"]
        rendered = await client.post(base + "/v1/chat/completions/render", json=chat)
        tokenized = await client.post(base + "/tokenize", json=chat)
        whole = {**chat, "max_tokens": 1, "return_token_ids": True}
        answer = await client.post(base + "/v1/chat/completions", json=whole)
    ids = rendered.json()["token_ids"]
    assert ids == tokenized.json()["tokens"] == answer.json()["prompt_token_ids"]
    assert answer.json()["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.asyncio(loop_scope="module")
async def test_metrics_have_the_names_that_routers_read(engines: dict[str, str]) -> None:
    """The exposition carries vLLM's names and labels."""
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(engines["plain"] + "/metrics")).text
    labels = f'engine="0",model_name="{MODEL}"'
    for name in (
        f"vllm:num_requests_running{{{labels}}}",
        f"vllm:num_requests_waiting{{{labels}}}",
        f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}}',
        f"vllm:kv_cache_usage_perc{{{labels}}}",
        f"vllm:prefix_cache_queries_total{{{labels}}}",
        f"vllm:external_prefix_cache_hits_total{{{labels}}}",
        f'vllm:prompt_tokens_by_source_total{{{labels},source="local_compute"}}',
        f"vllm:nixl_bytes_transferred_sum{{{labels}}}",
        f"vllm:nixl_xfer_time_seconds_count{{{labels}}}",
        f"vllm:time_to_first_token_seconds_count{{{labels}}}",
    ):
        assert name in text
