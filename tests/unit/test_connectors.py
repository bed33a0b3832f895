"""Connectors: the bodies of both legs and what a prefill's answer tells."""

from __future__ import annotations

import json

import pytest

from kvmeta.types import CacheLayout, GroupKind, KvGroup
from router.domain.errors import NotFound
from router.service.bodies import BodyKind, ClientBody, read_body
from router.service.connectors import (
    Connector,
    Handoff,
    NixlConnector,
    NoConnector,
    PrefillAnswer,
    find_connector,
    third_party_connectors,
)


def a_body(kind: BodyKind = BodyKind.CHAT, **members: object) -> ClientBody:
    prompt = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi"}
    return read_body(json.dumps({"model": "m"} | prompt | members).encode(), kind)


SHAPES_THE_PROMPT: dict[str, object] = {
    "tools": [{"type": "function"}],
    "tool_choice": "auto",
    "chat_template": "{{ x }}",
    "chat_template_kwargs": {"thinking": True},
    "documents": [{"a": 1}],
    "add_generation_prompt": True,
    "add_special_tokens": False,
    "continue_final_message": False,
    "cache_salt": "s",
    "mm_processor_kwargs": {"a": 1},
    "reasoning_effort": "low",
    "truncate_prompt_tokens": 100,
    "response_format": {"type": "json_object"},
}


def test_r20_what_shapes_the_prompt_stays_in_the_prefill_leg() -> None:
    """Both engines must see the same prompt."""
    formed = json.loads(NixlConnector().form_prefill(a_body(**SHAPES_THE_PROMPT), "m"))
    assert {name: formed[name] for name in SHAPES_THE_PROMPT} == SHAPES_THE_PROMPT


def test_r20_what_is_illegal_or_idle_beside_one_token_goes() -> None:
    """A prefill leg is legal at an engine that would refuse the rest beside a limit of one."""
    idle = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "min_tokens": 5,
        "n": 3,
        "best_of": 3,
        "logprobs": True,
        "top_logprobs": 5,
        "stop": ["x"],
        "stop_token_ids": [1],
        "return_token_ids": True,
    }
    formed = json.loads(NixlConnector().form_prefill(a_body(**idle), "m"))
    assert formed["stream"] is False
    assert formed.keys().isdisjoint(idle.keys() - {"stream"})


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (BodyKind.CHAT, "max_tokens"),
        (BodyKind.COMPLETION, "max_tokens"),
        (BodyKind.RESPONSES, "max_output_tokens"),
        (BodyKind.MESSAGES, "max_tokens"),
    ],
)
def test_r20_a_limit_is_added_where_there_is_none(kind: BodyKind, name: str) -> None:
    """Without a limit the prefill would generate to the end; a null one is none."""
    for members in ({}, {name: None}, {name: 70}):
        formed = json.loads(NixlConnector().form_prefill(a_body(kind, **members), "m"))
        assert formed[name] == 1


def test_r20_only_present_spellings_are_capped() -> None:
    """A second spelling beside the client's own is refused by some engines."""
    formed = json.loads(NixlConnector().form_prefill(a_body(max_completion_tokens=9), "m"))
    assert formed["max_completion_tokens"] == 1
    assert "max_tokens" not in formed


def test_the_decode_leg_is_the_body_and_the_hand_off_to_the_byte() -> None:
    """The hand-off is opaque: spacing, order and big numbers pass."""
    raw = b'{"b": 9007199254740993, "a":[ 1 ],"remote_host":"h"}'
    answer = NixlConnector().read_prefill(b'{"choices":[],"kv_transfer_params":' + raw + b"}")
    assert answer.handoff is not None
    body = a_body(max_tokens=7, x=1e-7)
    formed = NixlConnector().form_decode(body, "m", answer.handoff)
    assert formed == body.form({"kv_transfer_params": raw})
    assert raw in formed


def test_a_call_without_hand_off_is_the_clients_own_bytes() -> None:
    """Where nothing changes nothing is written anew."""
    for connector in (NixlConnector(), NoConnector()):
        body = a_body()
        assert connector.form_decode(body, "m", None) is body.raw
        assert json.loads(connector.form_decode(body, "served", None))["model"] == "served"


@pytest.mark.parametrize("params", [b"null", b"{}", None])
def test_r23_no_hand_off_is_told_from_a_broken_answer(params: bytes | None) -> None:
    """Null, empty and missing parameters are an answer without a hand-off."""
    member = b"" if params is None else b',"kv_transfer_params":' + params
    answer = NixlConnector().read_prefill(b'{"usage":{"prompt_tokens":5}' + member + b"}")
    assert answer == PrefillAnswer(None, 5, None)


@pytest.mark.parametrize("raw", [b"", b"<html>", b"[]", b"7", b'{"kv_transfer_params":[1]}', b"{"])
def test_r19_a_broken_answer_is_told(raw: bytes) -> None:
    """What is not a completion is a failure of the engine, not an empty hand-off."""
    with pytest.raises(ValueError, match="prefill"):
        NixlConnector().read_prefill(raw)


@pytest.mark.parametrize(
    ("usage", "params", "cached"),
    [
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, {"a": 1}, 4),
        ({"prompt_tokens": 9}, {"remote_prefill_cached_tokens": 3}, 3),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, {"a": 1}, None),
        ({"input_tokens": 9, "cache_read_input_tokens": 2}, {"a": 1}, 2),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 1}}, {"a": 1}, 1),
        ("odd", {"a": 1}, None),
        ({"prompt_tokens": "odd"}, {"a": 1}, None),
    ],
)
def test_r28_cached_tokens_are_found_where_the_engine_tells_them(
    usage: object, params: dict[str, int], cached: int | None
) -> None:
    """Usage comes first, the transfer's own count second; oddities tell nothing."""
    raw = json.dumps({"usage": usage, "kv_transfer_params": params}).encode()
    answer = NixlConnector().read_prefill(raw)
    assert answer.cached_tokens == cached
    assert answer.handoff is not None


def test_recurrent_layouts_truncate_the_prefill_by_one() -> None:
    """The prefill engine stops before the last token where a state must stand there."""
    dense = CacheLayout("f", 16)
    hybrid = CacheLayout("f", 16, (KvGroup(GroupKind.FULL_ATTENTION), KvGroup(GroupKind.RECURRENT)))
    assert NixlConnector().prefill_truncation(dense) == 0
    assert NixlConnector().prefill_truncation(hybrid) == 1
    assert NoConnector().prefill_truncation(hybrid) == 0


def test_connectors_are_found_by_name() -> None:
    """Ours come first, third parties add theirs, and an unknown name lists what there is."""
    made: list[str] = []

    def make() -> Connector:
        made.append("theirs")
        return NoConnector()

    theirs = {"theirs": make, "nixl": make}
    assert find_connector("nixl", theirs).name == "nixl"
    assert find_connector("none").splits is False
    assert made == []
    find_connector("theirs", theirs)
    assert made == ["theirs"]
    with pytest.raises(NotFound, match="nixl, none, theirs"):
        find_connector("other", theirs)
    assert third_party_connectors() == {}


def test_a_hand_off_shows_nothing_of_itself() -> None:
    """Internal addresses do not get into logs by a repr."""
    assert "10.0.0.1" not in repr(Handoff({"kv_transfer_params": b'{"remote_host":"10.0.0.1"}'}))
