"""Whole answers: what is rewritten, what is read, and that the rest keeps its bytes."""

from __future__ import annotations

import pytest

from router.service.answers import Edits, Rewriter
from router.service.relay_ports import Usage


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"not json with usage",
        b'[{"usage":{}}]',
        b'{ "usage" : null, "model" :"m" }',
        b'{"kv_transfer_params": null, "usage": {"prompt_tokens": 3}}',
        b'{"text":"\\"kv_transfer_params\\":{}"}',
        b'{"usage":"odd","kv_transfer_params":null}',
        b'{"usage":{"prompt_tokens":"odd","prompt_tokens_details":[1]}}',
    ],
)
def test_answers_that_need_nothing_keep_their_bytes(text: bytes) -> None:
    """Spacing, order and oddities stay."""
    assert Rewriter(Edits()).rewrite(text).text == text


def test_only_the_changed_member_changes() -> None:
    """Numbers, order and unknown members of a rewritten answer keep their text."""
    text = b'{"b":9007199254740993,"kv_transfer_params":{"remote_host":"h"},"a":[1e-7, 2],"z":1.0}'
    expected = b'{"b":9007199254740993,"kv_transfer_params":null,"a":[1e-7, 2],"z":1.0}'
    assert Rewriter(Edits()).rewrite(text).text == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (b'{"prompt_tokens":10}', b'{"prompt_tokens":10}'),
        (
            b'{"prompt_tokens":10,"prompt_tokens_details":null}',
            b'{"prompt_tokens":10,"prompt_tokens_details":null}',
        ),
        (
            b'{"prompt_tokens":10,"prompt_tokens_details":{"audio_tokens":1}}',
            b'{"prompt_tokens":10,"prompt_tokens_details":{"audio_tokens":1}}',
        ),
        (
            b'{"prompt_tokens":10,"prompt_tokens_details":{"a":1,"cached_tokens":9}}',
            b'{"prompt_tokens":10,"prompt_tokens_details":{"a":1,"cached_tokens":7}}',
        ),
        (
            b'{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}',
            b'{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":5}}',
        ),
    ],
)
def test_r28_cached_tokens_are_the_prefills_where_they_are_told(
    usage: bytes, expected: bytes
) -> None:
    """Details are corrected, never invented, and never exceed the prompt."""
    rewritten = Rewriter(Edits(cached_tokens=7)).rewrite(b'{"usage":' + usage + b"}")
    assert rewritten.text == b'{"usage":' + expected + b"}"


def test_r35_the_model_is_the_clients_name() -> None:
    """A name is replaced as a JSON string, whatever is in it."""
    rewritten = Rewriter(Edits(model='a"b\n')).rewrite(b'{"id":1,"model":"served"}')
    assert rewritten.text == b'{"id":1,"model":"a\\"b\\n"}'


def test_usage_is_read_in_every_dialect() -> None:
    """Chat, Responses and Messages count under different names."""
    rewriter = Rewriter(Edits())
    chat = b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}'
    responses = (
        b'{"usage":{"input_tokens":1,"output_tokens":2,"input_tokens_details":{"cached_tokens":0}}}'
    )
    messages = b'{"usage":{"input_tokens":1,"output_tokens":2,"cache_read_input_tokens":1}}'
    assert rewriter.rewrite(chat).usage == Usage(1, 2, None)
    assert rewriter.rewrite(responses).usage == Usage(1, 2, 0)
    assert rewriter.rewrite(messages).usage == Usage(1, 2, 1)


@pytest.mark.parametrize(
    "usage",
    [
        b'{"prompt_tokens":1,"\xff":2}',
        b'{"prompt_tokens_details":{"cached_tokens":1,"\xff":2}}',
        b'{"prompt_tokens":' + b"9" * 5000 + b"}",
        b'{"prompt_tokens":-1,"prompt_tokens_details":[]}',
    ],
)
def test_malformed_usage_hides_no_parameters(usage: bytes) -> None:
    """What cannot be read of an answer tells nothing; internal hosts stay hidden all the same."""
    answer = b'{"kv_transfer_params":{"remote_host":"10.0.0.1"},"usage":' + usage + b"}"
    rewritten = Rewriter(Edits(cached_tokens=7)).rewrite(answer)
    assert b"10.0.0.1" not in rewritten.text
    assert rewritten.usage in (None, Usage(None, None, None), Usage(None, None, 7))
