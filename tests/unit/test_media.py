"""Prompts with pictures: matched to the first placeholder, estimated without their payload."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvmeta.types import CacheLayout
from router.adapters.engine_http import HttpEngineClient
from router.domain.decision import TokenSource
from router.domain.topology import Cluster, ClusterKind, Instance, Role
from router.service.bodies import BodyKind, ClientBody, read_body
from router.service.counting import EngineCounter, PromptCounter, estimate_tokens
from router.service.fleet import Fleet
from router.service.media import MEDIUM_TOKENS
from router.service.models import NamedModel, ServedModel, TokenizerKind
from tests.fakes.clocks import FakeClock
from tests.fakes.scripted_engine import ScriptedEngine, json_answer
from tests.fakes.standins import shipped_tokenizer, turn_tokenizer

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}}
SYSTEM = {"role": "system", "content": "Be brief, and tell what you see in one sentence."}
FIRST = {"role": "user", "content": [{"type": "text", "text": "Is it this one?"}]}
SHOWN = {"role": "user", "content": [{"type": "text", "text": "Look:"}, PICTURE]}


def chat(*messages: dict[str, Any]) -> ClientBody:
    return read_body(json.dumps({"model": "m", "messages": messages}).encode(), BodyKind.CHAT)


def named(kind: TokenizerKind) -> NamedModel:
    layout = CacheLayout(fingerprint="f", block_size=16)
    return NamedModel("m", ServedModel("m", layout, "m", tokenizer=kind))


def fleet_of(url: str) -> Fleet:
    """One live engine."""
    instance = Instance("d0", "east", url, Role.BOTH)
    fleet = Fleet([Cluster("east", ClusterKind.PD)], [instance], clock=FakeClock())
    fleet.record_probe("d0", ok=True)
    return fleet


def counter(client: HttpEngineClient, url: str) -> PromptCounter:
    engines = EngineCounter(client, fleet_of(url), clock=FakeClock(), timeout=5)
    return PromptCounter(engines, {"m": turn_tokenizer()})


async def test_r37_a_tokenizer_names_what_comes_before_the_first_picture() -> None:
    """The ids to the picture's message are those of the same text without it, and no more."""
    tokenizer = shipped_tokenizer()
    async with ScriptedEngine() as engine:
        counting = counter(HttpEngineClient(), engine.url)
        counted = await counting.count(chat(SYSTEM, FIRST, SHOWN), named(TokenizerKind.HF))
    told = {**SHOWN, "content": "Look:"}
    whole = tokenizer.encode(tokenizer.render_chat([SYSTEM, FIRST, told]), add_special_tokens=False)
    assert counted.source is TokenSource.ESTIMATE
    assert counted.ids is not None
    assert 10 < len(counted.ids) < len(whole)
    assert list(counted.ids) == whole[: len(counted.ids)]
    assert counted.total > MEDIUM_TOKENS


@pytest.mark.parametrize(
    ("places", "known"),
    [
        ({"image": [{"offset": 40, "length": 9}, {"offset": 7, "length": 9}]}, 7),
        ({"image": [{"offset": 40, "length": 9}], "audio": [{"offset": 30, "length": 1}]}, 30),
        ({"image": [{"offset": 0, "length": 9}]}, None),
        (None, None),
    ],
)
async def test_a_rendered_prompt_is_known_to_its_first_placeholder(
    places: dict[str, Any] | None, known: int | None
) -> None:
    """Render tells all ids and where media stand: the length is exact, the match stops there."""
    rendered = {"token_ids": list(range(60)), "features": {"mm_placeholders": places}}
    async with ScriptedEngine() as engine:
        engine.on("/v1/chat/completions/render", json_answer(rendered))
        client = HttpEngineClient()
        counted = await counter(client, engine.url).count(
            chat(SYSTEM, SHOWN), named(TokenizerKind.ENGINE)
        )
        await client.aclose()
    assert (counted.total, counted.source) == (60, TokenSource.ENGINE)
    assert counted.ids == (None if known is None else list(range(known)))


async def test_a_tokenized_prompt_with_a_picture_is_counted_but_unknown() -> None:
    """`/tokenize` counts a placeholder, but says not where it stands: nothing is claimed cached."""
    async with ScriptedEngine() as engine:
        engine.on("/v1/chat/completions/render", json_answer({}, 403))
        engine.on("/tokenize", json_answer({"count": 3, "tokens": [1, 2, 3]}))
        client = HttpEngineClient()
        counted = await counter(client, engine.url).count(chat(SHOWN), named(TokenizerKind.ENGINE))
        await client.aclose()
    assert (counted.total, counted.ids) == (3, None)


@pytest.mark.parametrize("pictures", [1, 3])
def test_estimates_leave_the_payload_out(pictures: int) -> None:
    """Half a megabyte of base64 is no half million bytes of prompt."""
    body = chat(SYSTEM, *[SHOWN] * pictures)
    text = len(SYSTEM["content"]) + pictures * len("Look:")
    assert estimate_tokens(body, 4.0) == round(text / 4) + pictures * MEDIUM_TOKENS


@pytest.mark.parametrize(
    ("kind", "path", "body"),
    [
        (
            BodyKind.MESSAGES,
            "/v1/messages/render",
            {"messages": [{"role": "user", "content": "Hi"}], "system": "Be.", "max_tokens": 3},
        ),
        (BodyKind.RESPONSES, "/v1/responses/render", {"input": "Hi", "instructions": "Be."}),
    ],
)
async def test_r37_each_endpoint_is_counted_by_its_own_render(
    kind: BodyKind, path: str, body: dict[str, Any]
) -> None:
    """The engine renders the very body; one that does not is given the chat that it stands for."""
    raw = json.dumps({"model": "m", **body}).encode()
    async with ScriptedEngine() as engine:
        engine.on(path, json_answer({"token_ids": [1, 2, 3, 4]}))
        engine.on("/tokenize", json_answer({"count": 3, "tokens": [1, 2, 3]}))
        client = HttpEngineClient()
        counting = counter(client, engine.url)
        asked = read_body(raw, kind)
        assert (await counting.count(asked, named(TokenizerKind.ENGINE))).total == 4
        assert engine.requests[0].json() == {"model": "m", **body}
        engine.on(path, json_answer({}, 403))
        for _ in range(2):
            assert (await counting.count(asked, named(TokenizerKind.ENGINE))).total == 3
        await client.aclose()
    paths = [each.path for each in engine.requests]
    assert paths == [path, path, "/tokenize", "/tokenize"], "a refusal is remembered"
    system = {"role": "system", "content": "Be."}
    assert engine.requests[-1].json() == {
        "model": "m",
        "messages": [system, {"role": "user", "content": "Hi"}],
    }
