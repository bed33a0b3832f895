"""The event stream's rules, one by one."""

from __future__ import annotations

import json

import pytest

from router.service.answers import Edits, Rewriter
from router.service.relay_ports import Usage
from router.service.sse import MAX_HELD_BYTES, EventStream


def a_stream(**edits: object) -> EventStream:
    return EventStream(Rewriter(Edits(**edits)))  # type: ignore[arg-type]


def test_lines_end_only_at_cr_lf_and_crlf() -> None:
    """Other characters that Unicode takes for line ends are part of a line."""
    line = 'data: {"a":"\u2028\u2029\x0b\x0c\x85\x1c","usage":null}\n\n'.encode()
    assert a_stream().feed(line) == line


def test_a_crlf_cut_in_two_is_one_line_end() -> None:
    """The LF that follows a CR in the next piece does not end an event."""
    stream = a_stream()
    assert stream.feed(b"event: x\r") == b"event: x\r"
    assert stream.feed(b"\ndata: [DO") == b"\n"
    assert stream.feed(b"NE]\r\n\r") == b"data: [DONE]\r\n\r"
    assert stream.feed(b"\n") == b"\n"
    assert stream.ended


def test_an_incomplete_line_waits_and_is_rewritten_whole() -> None:
    """What may have to change is held until it is complete, and nothing else is."""
    stream = a_stream()
    assert stream.feed(b': ping\ndata: {"kv_transfer_') == b": ping\n"
    assert stream.feed(b'params":{"a":1},"b":2}') == b""
    assert stream.feed(b"\n\n") == b'data: {"kv_transfer_params":null,"b":2}\n\n'


def test_an_object_over_several_lines_is_read_whole() -> None:
    """Data over several lines is one text: what must not pass does not pass in pieces."""
    stream = a_stream()
    lines = b'event: e\ndata: {"kv_transfer_params":\ndata: {"a":1},\nid: 7\ndata: "b":2}\n\n'
    out = b"".join(stream.feed(lines[n : n + 1]) for n in range(len(lines)))
    assert out == b'event: e\ndata: {"kv_transfer_params":null,"b":2}\nid: 7\n\n'
    plain = b'data: {"a":\ndata: 1}\n\n'
    assert stream.feed(plain) == plain


def test_usage_and_content_are_noted_without_being_changed() -> None:
    """Tokens are counted off a stream that is only copied."""
    stream = a_stream()
    text = b'data: {"choices":[{"text":"a"}]}\n\n' * 3
    last = (
        b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,'
        b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
    )
    assert stream.feed(text + last) == text + last
    assert stream.content_events == 3
    assert stream.usage == Usage(9, 3, 4)
    assert not stream.ended


@pytest.mark.parametrize(
    "last",
    [
        b"data: [DONE]\n\n",
        b"data:[DONE]\n\n",
        b"data: [DONE]",
        b'data: {"error":{"message":"x"}}\n\n',
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
        b'event: response.completed\ndata: {"type":"response.completed"}\n\n',
        b"event: error\ndata: {}\n\n",
    ],
)
def test_the_last_word_is_recognised(last: bytes) -> None:
    """Every protocol's own end, and an engine's own error, end a stream."""
    stream = a_stream()
    assert stream.feed(last) + stream.finish() == last
    assert stream.ended


@pytest.mark.parametrize(
    ("before", "start"),
    [
        (b"", b""),
        (b"data: x\n\n", b""),
        (b"data: x\n", b"\n"),
        (b"data: x", b""),
        (b'data: {"a":\n', b""),
        (b"event: x\nda", b"\n"),
    ],
)
def test_an_error_ends_what_is_open_first(before: bytes, start: bytes) -> None:
    """The error is an event of its own, whatever was under way."""
    stream = a_stream()
    stream.feed(before)
    event = stream.break_off("gone", kind="upstream_error", code=502)
    assert event.startswith(start + b"data: {")
    assert event.endswith(b"}\n\n")
    error = json.loads(event[len(start) + 6 :])["error"]
    assert error == {"message": "gone", "type": "upstream_error", "param": None, "code": 502}


def test_held_bytes_are_bounded() -> None:
    """A line over the bound passes as it is, and the stream goes on after it."""
    stream = a_stream()
    piece = b"x" * (MAX_HELD_BYTES // 4)
    out = [stream.feed(b"data: ")] + [stream.feed(piece) for _ in range(6)]
    assert sum(map(len, out)) > MAX_HELD_BYTES
    assert stream.feed(b"yz\n\n") == b"yz\n\n"
    assert (
        stream.feed(b'data: {"kv_transfer_params":{}}\n') == b'data: {"kv_transfer_params":null}\n'
    )


def test_wrapped_answers_are_rewritten_too() -> None:
    """Responses and Messages put the answer inside an event; names and counts change there."""
    stream = a_stream(cached_tokens=5, model="mine")
    line = (
        b'data: {"type":"response.completed","response":{"model":"theirs","x":1e-7,'
        b'"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":8}}}}\n'
    )
    response = json.loads(stream.feed(line)[6:])["response"]
    assert response["model"] == "mine"
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 5
    start = b'data: {"message":{"usage":{"input_tokens":9,"cache_read_input_tokens":8}}}\n'
    message = json.loads(stream.feed(start)[6:])["message"]
    assert message["usage"] == {"input_tokens": 9, "cache_read_input_tokens": 5}


def test_plain_events_are_copied_and_counted_as_single_ones_are() -> None:
    """A piece of many whole events is what they are one by one: bytes, counts, usage and end."""
    token = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
    hidden = b'data: {"choices":[{"index":0}],"kv_transfer_params":{"host":"h"}}\n\n'
    last = b"data: [DONE]\n\n"
    for events in (
        [token] * 5,
        [token, token, usage, last],
        [token, hidden, token, usage, last],
        [b": ping\n\n", token, b"event: x\n" + token, b'data: {"error":{}}\n\n', token],
    ):
        whole, single = a_stream(), a_stream()
        together = whole.feed(b"".join(events)) + whole.finish()
        alone = b"".join(map(single.feed, events)) + single.finish()
        assert together == alone
        assert b'"host"' not in together
        for name in ("content_events", "ended", "usage"):
            assert getattr(whole, name) == getattr(single, name)
