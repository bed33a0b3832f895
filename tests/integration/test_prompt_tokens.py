"""The tokens that engines cache are those that are looked up, and nobody waits for the counting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from router.sim.tokenizer import locate_tokenizer
from tests.fakes.kv_events import Engine, payload
from tests.fakes.kv_publisher import KvPublisher
from tests.fakes.live_engines import chat_events
from tests.fakes.scripted_engine import Hold, Recorded, Script, json_answer, stream
from tests.fakes.systems import (
    BLOCK,
    MODEL,
    System,
    fresh_ids,
    scripted_system,
    standin_system,
)

ENGINE_COUNTS = {"tokenizer": {"kind": "engine"}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Summarise the report."},
]
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
BOS = 1

Tokenize = Callable[[dict[str, Any]], list[int] | None]


@asynccontextmanager
async def caching(directory: Path, cached: list[int], tokenize: Tokenize) -> AsyncIterator[System]:
    """A gateway whose `p0` holds the blocks of `cached`, and whose engines `tokenize`."""

    def answer(request: Recorded) -> Script:
        tokens = tokenize(request.json())
        if tokens is None:
            return json_answer({"detail": "Not Found"}, 404)
        return json_answer({"count": len(tokens), "max_model_len": 8192, "tokens": tokens})

    async with KvPublisher() as publisher:
        entry = {"kv_events": publisher.endpoint, "kv_replay": publisher.replay_endpoint}
        async with scripted_system(
            directory, threshold=100, model=ENGINE_COUNTS, entries={"p0": entry}
        ) as system:
            for engine in system.engines.values():
                engine.on("/tokenize", answer)
            full = len(cached) // BLOCK
            await publisher.publish(payload(cached[: full * BLOCK], engine=Engine(BLOCK)))
            await system.until(
                lambda state: [each["blocks"] for each in state["index"]["sources"]] == [full]
            )
            yield system


async def test_r37_a_chat_hits_what_its_template_made_of_it(tmp_path: Path) -> None:
    """Messages, tools and template arguments reach `/tokenize`; every full block of T is a hit."""
    templated = fresh_ids(12 * BLOCK + 5)
    asked: list[dict[str, Any]] = []

    def tokenize(body: dict[str, Any]) -> list[int]:
        asked.append(body)
        whole = body["messages"] == MESSAGES and body.get("tools") == TOOLS
        return templated if whole else fresh_ids(300)

    async with caching(tmp_path, templated, tokenize) as system:
        answer = await system.client.post(
            "/v1/chat/completions",
            json={
                "model": "tiny",
                "messages": MESSAGES,
                "tools": TOOLS,
                "add_generation_prompt": True,
                "chat_template_kwargs": {"enable_thinking": False},
            },
        )
    assert answer.headers["x-prfaas-total-tokens"] == str(12 * BLOCK + 5)
    assert answer.headers["x-prfaas-uncached-tokens"] == "5"
    assert answer.headers["x-prfaas-route"] == "local"
    assert asked[0]["add_generation_prompt"] is True
    assert asked[0]["chat_template_kwargs"] == {"enable_thinking": False}


async def test_r37_a_completion_hits_with_the_tokenizers_own_first_token(tmp_path: Path) -> None:
    """A text prompt is counted with its BOS, as the engine caches it, or without if so asked."""
    bare = fresh_ids(10 * BLOCK)
    with_bos = [BOS, *bare][: 10 * BLOCK]

    def tokenize(body: dict[str, Any]) -> list[int]:
        return bare if body.get("add_special_tokens") is False else [BOS, *bare]

    async with caching(tmp_path, with_bos, tokenize) as system:
        plain = await system.complete("a text")
        without = await system.complete("a text", add_special_tokens=False)
    assert plain.headers["x-prfaas-uncached-tokens"] == "1"
    assert without.headers["x-prfaas-uncached-tokens"] == str(10 * BLOCK)


async def test_r37_what_nobody_can_count_is_no_hit(tmp_path: Path) -> None:
    """Without a tokenizer the whole prompt is uncached, and a counter says why."""
    text = "word " * 400
    async with caching(tmp_path, fresh_ids(10 * BLOCK), lambda _: None) as system:
        answer = await system.complete(text)
        decision = (await system.decisions())[0]
        metrics = await system.metrics()
    total = answer.headers["x-prfaas-total-tokens"]
    assert answer.status_code == 200
    assert answer.headers["x-prfaas-uncached-tokens"] == total == str(len(text) // 4)
    assert decision["token_source"] == "estimate"
    assert decision["cached_tokens"]["east"] is None
    assert metrics.total("prompts_estimated_total") == 1


async def test_a_count_that_waits_in_vain_is_the_only_one_there(tmp_path: Path) -> None:
    """An engine that hangs on one count is not asked first for the next."""
    changes = {"decision_timeout_ms": 400}
    async with scripted_system(
        tmp_path, names="p0 d0 d1", model=ENGINE_COUNTS, scheduler=changes
    ) as system:
        hanging, asked = system.engine("d0"), {"max_tokens": 1}
        hanging.on("/v1/completions/render", [Hold()])
        answers = [await system.complete("some words", **asked) for _ in range(4)]
    reasons = [answer.headers["x-prfaas-reason"] for answer in answers]
    assert reasons == ["decision_timeout", *["below_threshold"] * 3]


async def test_r38_a_hanging_tokenizer_holds_up_no_stream(tmp_path: Path) -> None:
    """Eight prompts of 500 KB wait for a count that never comes; a running stream flows on."""
    async with scripted_system(
        tmp_path, model=ENGINE_COUNTS, scheduler={"decision_timeout_ms": 700}
    ) as system:
        system.engine("d0").then(stream(*chat_events("tiny") * 8, gap=0.02))
        for engine in system.engines.values():
            engine.on("/tokenize", [Hold()])
        loop = asyncio.get_running_loop()
        body = {"model": "tiny", "prompt": fresh_ids(40), "stream": True}
        async with system.client.stream("POST", "/v1/completions", json=body) as running:
            pieces = running.aiter_raw()
            await anext(pieces)
            asked = [asyncio.create_task(system.complete("long " * 100_000)) for _ in range(8)]
            gaps, last = [], loop.time()
            async for _ in pieces:
                gaps.append(loop.time() - last)
                last = loop.time()
        answers = await asyncio.gather(*asked)
    assert len(gaps) > 10
    # The client of this very loop writes eight bodies meanwhile: one gap may be its own.
    assert sorted(gaps)[-2] < 0.5
    assert {answer.headers["x-prfaas-reason"] for answer in answers} == {"decision_timeout"}


async def test_r37_turns_that_were_remembered_count_as_the_engine_counts(tmp_path: Path) -> None:
    """Before tiktoken is proved and after, over a conversation: the engine's own number of tokens.

    The state tells who encodes, and that earlier turns were found again.
    """
    model = {"tokenizer": {"kind": "hf", "path": str(locate_tokenizer())}}
    async with standin_system(tmp_path, threshold=100_000, model=model) as system:
        messages: list[dict[str, str]] = []

        async def say(words: str) -> None:
            messages.append({"role": "user", "content": words})
            body = {"model": MODEL, "messages": messages, "max_tokens": 1}
            answer = await system.client.post("/v1/chat/completions", json=body)
            used = answer.json()["usage"]["prompt_tokens"]
            assert answer.headers["x-prfaas-total-tokens"] == str(used)

        await say("What of <|im_end|> in a question? " * 80)
        state = await system.until(
            lambda state: bool(state["models"][0]["tokenizer"]["checked"]), within=60
        )
        told = state["models"][0]["tokenizer"]
        assert (told["kind"], told["encoder"], told["notes"]) == ("hf", "tiktoken", [])
        for words in ("And of ſt, İ and 字😀? " * 90, "Of \U0001fae8 and e\u0301? " * 90, "Well?"):
            await say(words)
        told = (await system.order("GET", "state"))["models"][0]["tokenizer"]
        assert told["segments_found"] >= 3
        assert (await system.metrics()).total("tokenizer_drift_total") == 0


def asked_to_count(system: System) -> int:
    """How often engines were asked for a prompt's tokens."""
    return sum(
        request.path == "/tokenize"
        for engine in system.engines.values()
        for request in engine.requests
    )


async def test_prompts_that_stay_local_in_any_case_need_not_be_counted(tmp_path: Path) -> None:
    """With `skip_counting: short` bytes below t are enough; the decision says that it estimated."""
    async with scripted_system(
        tmp_path, threshold=8000, model=ENGINE_COUNTS, scheduler={"skip_counting": "short"}
    ) as system:
        answer = await system.complete("four" * 100)
        assert asked_to_count(system) == 0
        assert answer.headers["x-prfaas-reason"] == "below_threshold"
        assert answer.headers["x-prfaas-total-tokens"] == "100"
        (decision,) = await system.decisions()
        assert decision["token_source"] == "estimate"
        assert set(decision["cached_tokens"].values()) == {None}
        long = await system.complete("four" * 1000)
        assert asked_to_count(system) == 1
        assert long.headers["x-prfaas-total-tokens"] == "9"


async def test_what_might_change_the_route_is_counted(tmp_path: Path) -> None:
    """A lower threshold, an override, a token limit or a dry run: the number is asked for."""
    tenants = [
        {"name": "open", "api_keys": ["sk-open"]},
        {"name": "limited", "api_keys": ["sk-limited"], "tokens_per_minute": 100_000},
    ]
    scheduler = {"skip_counting": "short"}
    async with scripted_system(
        tmp_path, threshold=8000, model=ENGINE_COUNTS, scheduler=scheduler, tenants=tenants
    ) as system:

        async def ask(key: str) -> int:
            before = asked_to_count(system)
            answer = await system.complete("four", headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == 200, answer.text
            return asked_to_count(system) - before

        assert await ask("sk-open") == 0
        assert await ask("sk-limited") == 1
        await system.order("POST", "decisions:explain", {"model": "tiny", "prompt": "four"})
        assert asked_to_count(system) == 2
        await system.order("PUT", "threshold", {"mode": "manual", "tokens": 2})
        assert await ask("sk-open") == 1
        await system.order("PUT", "threshold", {"mode": "config"})
        await system.order("PUT", "override", {"route": "prfaas", "ttl_seconds": 60})
        assert await ask("sk-open") == 1


async def test_every_prompt_is_counted_by_default(tmp_path: Path) -> None:
    """Where nothing is said the index's knowledge of short prompts is worth the call."""
    async with scripted_system(tmp_path, threshold=8000, model=ENGINE_COUNTS) as system:
        await system.complete("four")
        assert asked_to_count(system) == 1
