"""Traces and the prompts that are made of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.sim.replay.prompts import (
    PromptForm,
    PromptWriter,
    Vocabulary,
    make_block,
    make_prompt,
)
from router.sim.replay.traces import BLOCK_TOKENS, TraceFault, TraceRequest, parse_trace

LINE = b'{"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}\n'


def make_request(*blocks: int, tokens: int) -> TraceRequest:
    return TraceRequest(index=0, at=0.0, input_tokens=tokens, output_tokens=9, blocks=blocks)


def test_a_trace_is_read_in_order_and_starts_at_zero() -> None:
    """Times are seconds since the first request; empty lines and further fields are no matter."""
    later = LINE.replace(b"3000", b"4500").replace(b'"output_length": 5', b'"output_length": 0')
    first, second = parse_trace([LINE, b"\n", later.replace(b"{", b'{"x": [1], ', 1)])
    assert (first.index, first.at, first.input_tokens, first.blocks) == (0, 0.0, 700, (0, 1))
    assert (second.index, second.at, second.output_tokens) == (1, 1.5, 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 2: not a request: Input data was truncated"),
        (
            LINE.replace(b"700", b'"700"'),
            "line 2: not a request: Expected `int`, got `str` - at `$.input_length`",
        ),
        (
            LINE.replace(b"700", b"0"),
            "line 2: not a request: Expected `int` >= 1 - at `$.input_length`",
        ),
        (
            LINE.replace(b'"timestamp": 3000, ', b""),
            "line 2: not a request: Object missing required field `timestamp`",
        ),
        (LINE.replace(b"[0, 1]", b"[0]"), "line 2: input_length 700 needs 2 hash_ids, has 1"),
        (LINE.replace(b"[0, 1]", b"[0, 1, 2]"), "line 2: input_length 700 needs 2 hash_ids, has 3"),
        (LINE.replace(b"3000", b"2999"), "line 2: timestamp 2999 after 3000"),
        (b'"\xff"', "line 2: not a request: "),
        (b"[]", "line 2: not a request: Expected `object`, got `array`"),
    ],
)
def test_a_faulty_line_is_named(line: bytes, message: str) -> None:
    """The first line that cannot be used is told with its number and what is wrong."""
    with pytest.raises(TraceFault) as caught:
        list(parse_trace([LINE, line]))
    assert str(caught.value).startswith(message)
    assert caught.value.line == 2


@given(
    blocks=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=6),
    rest=st.integers(1, BLOCK_TOKENS),
)
def test_prompts_have_exactly_the_length_of_the_trace(blocks: list[int], rest: int) -> None:
    """Whatever the ids, a prompt has input_length tokens, all of them in the vocabulary."""
    tokens = (len(blocks) - 1) * BLOCK_TOKENS + rest
    vocabulary = Vocabulary(300, 310)
    prompt = make_prompt(make_request(*blocks, tokens=tokens), vocabulary)
    assert len(prompt) == tokens
    assert set(prompt) <= set(range(300, 310))


@given(left=st.integers(0, 2**63 - 1), right=st.integers(0, 2**63 - 1))
def test_equal_ids_are_equal_blocks_and_only_those(left: int, right: int) -> None:
    """A block is a function of its id alone, and different ids differ."""
    vocabulary = Vocabulary()
    assert (make_block(left, vocabulary) == make_block(right, vocabulary)) == (left == right)


def test_blocks_never_change() -> None:
    """Two releases replay the same prompts, so that their results compare."""
    assert make_block(0, Vocabulary())[:4] == [1600, 3049, 1809, 2223]
    assert make_block(182789, Vocabulary())[-2:] == [1978, 678]


def test_shared_leading_ids_are_a_shared_prefix() -> None:
    """Two prompts agree exactly as far as their ids do."""
    first = make_prompt(make_request(7, 8, 9, tokens=1400), Vocabulary())
    second = make_prompt(make_request(7, 8, 10, tokens=1100), Vocabulary())
    assert first[:1024] == second[:1024]
    assert first[1024:1100] != second[1024:1100]


def test_a_body_carries_the_prompt_as_ids() -> None:
    """The body is a streaming completion of exactly those ids, with usage."""
    writer = PromptWriter(model='m"x', form=PromptForm.IDS, vocabulary=Vocabulary())
    request = make_request(7, 8, tokens=600)
    for _ in range(2):  # the second one from remembered blocks
        body = json.loads(writer.body(request))
        assert body == {
            "model": 'm"x',
            "prompt": make_prompt(request, Vocabulary()),
            "max_tokens": 9,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    assert json.loads(writer.body(request, max_output=4))["max_tokens"] == 4
    assert json.loads(writer.body(request, max_output=40))["max_tokens"] == 9


def test_a_body_carries_the_prompt_as_words() -> None:
    """As text, there is one word for each token, the same one for the same token."""
    writer = PromptWriter(model="m", form=PromptForm.TEXT, vocabulary=Vocabulary())
    request = make_request(7, 8, tokens=600)
    words = json.loads(writer.body(request))["prompt"].split(" ")
    assert words == [f"w{token}" for token in make_prompt(request, Vocabulary())]


def test_remembered_blocks_are_bounded() -> None:
    """A trace of any length leaves a bounded number of encoded blocks behind."""
    writer = PromptWriter(model="m", form=PromptForm.IDS, vocabulary=Vocabulary())
    for identity in range(4200):
        writer.body(make_request(identity, tokens=512))
    assert len(writer._blocks) == 4096


def test_an_empty_vocabulary_is_refused() -> None:
    """There must be token ids to choose from."""
    with pytest.raises(ValueError, match="no token ids"):
        Vocabulary(5, 5)
