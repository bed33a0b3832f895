"""Answers that no engine should give: cut, malformed, endless, or garbage in sound HTTP."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.fakes.live_engines import DONE, chat_event, handoff
from tests.fakes.scripted_engine import Close, Hold, Pause, Reset, Script, Send, Step
from tests.fakes.systems import MODEL
from tests.fuzz.mutations import split, spoil_bytes, spoil_json

_USAGE = {
    "prompt_tokens": 150,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 3},
}
_PREFILLED: dict[str, Any] = {
    "id": "cmpl-p",
    "choices": [{"index": 0, "text": "P", "finish_reason": "length"}],
    "usage": _USAGE,
    "kv_transfer_params": handoff("p"),
}
_COMPLETED: dict[str, Any] = {
    "id": "resp_d",
    "object": "text_completion",
    "model": MODEL,
    "choices": [{"index": 0, "text": "D", "finish_reason": "stop"}],
    "usage": _USAGE,
    "kv_transfer_params": None,
}
_LAST = json.dumps({"id": "c", "model": MODEL, "choices": [], "usage": _USAGE}).encode()
_EVENTS: Sequence[bytes] = (
    chat_event(MODEL, "To"),
    b": a comment\r\n\r\n",
    'event: response.created\ndata: {"response":{"id":"resp_s"},"ü":"\u2028"}\n\n'.encode(),
    b'event: message_start\ndata: {"type":"message_start","message":{"model":"tiny"}}\n\n',
    chat_event(MODEL, "\N{GRINNING FACE}" * 5),
    b'data: {"kv_transfer_params":{"a":1},"model":"tiny","choices":[]}\n\n',
    b"data: not json\n\n",
    b"data: {\ndata: }\n\n",
    b"id: 7\rretry: 3\r\rdata\r\n\r\n",
    b"data: " + _LAST + b"\n\n",
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    DONE,
)
_HEAD_FIELDS = (
    "content-type: text/html",
    "content-type: ",
    'content-type: application/json; charset="',
    "content-encoding: gzip",
    "content-encoding: br",
    "content-length: 3",
    "transfer-encoding: chunked",
    "connection: close",
    "connection: x-hop, keep-alive",
    "keep-alive: timeout=0",
    "keep-alive: timeout=x, max=-1",
    "retry-after: never",
    "x-hop: 1",
    "x-long: " + "v" * 3000,
    "x-high: \xff\xfe",
    "set-cookie: a=b",
    "x-request-id: theirs",
    "x-prfaas-route: theirs",
)
_STATUSES = (100, 102, 199, 201, 204, 206, 302, 304, 400, 401, 403, 404, 422, 429, 500, 503, 599)


@dataclass(frozen=True, slots=True)
class AnswerInput:
    """What a client asks, and how the engines of its prefill and decode leg answer."""

    path: str
    body: bytes
    prefill: Script
    decode: Script


def make_answer_input(rng: Random) -> AnswerInput:
    """Return a sound request with engines of which one at least misbehaves."""
    streams = rng.random() < 0.6
    long = rng.random() < 0.7
    path, asked = rng.choice(
        (
            ("/v1/completions", {"prompt": list(range(1, 150 if long else 9))}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 500}]}),
            ("/v1/responses", {"input": "a" * (900 if long else 9)}),
            ("/v1/messages", {"messages": [], "max_tokens": 4}),
            ("/v1/embeddings", {"input": "a"}),
        )
    )
    body = json.dumps({"model": MODEL, "stream": streams, **asked}).encode()
    prefill_fails = rng.random() < 0.4
    return AnswerInput(
        path,
        body,
        prefill=_spoilt(rng, streams=False, document=_PREFILLED) if prefill_fails else _sound(),
        decode=_spoilt(rng, streams=streams, document=_COMPLETED),
    )


def make_cut_input(number: int) -> AnswerInput:
    """Return a sound request whose answer, a stream or whole, ends at a byte of its `number`.

    Consecutive numbers try every byte of both, by FIN and by RST.
    """
    streams, reset = number % 2 == 0, number % 4 > 1
    data = _head(200, ["content-type: text/event-stream"], None) + b"".join(
        b"%x\r\n%s\r\n" % (len(event), event) for event in (*_EVENTS[:2], DONE)
    )
    if not streams:
        data = _head(200, ["content-type: application/json"], json.dumps(_COMPLETED).encode())
    at = (number // 4) % len(data)
    body = {"model": MODEL, "stream": streams, "prompt": list(range(1, 150))}
    return AnswerInput(
        "/v1/completions",
        json.dumps(body).encode(),
        prefill=_sound(),
        decode=[Send(data[:at]), Reset() if reset else Close()],
    )


def make_count(rng: Random, length: int) -> Script:
    """Return the answer to a question for a prompt's tokens, spoilt now and then."""
    tokens = list(range(1, 2 + length // 4))
    document = {"count": len(tokens), "tokens": tokens, "token_ids": tokens}
    if rng.random() < 0.3:
        return _spoilt(rng, streams=False, document=document)
    return [Send(_head(200, ["content-type: application/json"], json.dumps(document).encode()))]


def _sound() -> Script:
    return [Send(_head(200, ["content-type: application/json"], json.dumps(_PREFILLED).encode()))]


def _head(status: int, fields: Sequence[str], body: bytes | None) -> bytes:
    """Return a response with a Content-Length, or (None) a chunked head."""
    framing = "transfer-encoding: chunked" if body is None else f"content-length: {len(body)}"
    text = "\r\n".join([f"HTTP/1.1 {status} Fuzz", *fields, framing, "", ""])
    return text.encode("latin-1") + (body or b"")


def _spoilt(rng: Random, *, streams: bool, document: dict[str, Any]) -> Script:
    """Return a response that is wrong in one to three ways."""
    data = _stream(rng) if streams else _whole(rng, document)
    if rng.random() < 0.15:
        early = b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" * rng.choice((1, 3, 400, 3000))
        data = early + data
    if rng.random() < 0.5:
        data = spoil_bytes(rng, data)
    steps: list[Step] = [Send(piece) for piece in split(rng, data, 6)]
    if rng.random() < 0.3:
        steps.insert(rng.randint(0, len(steps)), Pause(rng.random() * 0.05))
    if rng.random() < 0.4:
        steps = steps[: rng.randint(0, len(steps))]
    if rng.random() < 0.6:
        steps.append(rng.choice((Close(), Reset(), Hold(), Close(), Reset())))
    return steps


def _whole(rng: Random, document: dict[str, Any]) -> bytes:
    body = json.dumps(document).encode() if rng.random() < 0.3 else spoil_json(rng, document)
    fields = ["content-type: application/json", *rng.sample(_HEAD_FIELDS, rng.choice((0, 0, 1, 2)))]
    if rng.random() < 0.1:
        body = gzip.compress(body, mtime=0)
        fields.append("content-encoding: gzip")
    status = rng.choice(_STATUSES) if rng.random() < 0.25 else 200
    if rng.random() < 0.3:
        return _head(status, fields, None) + _chunk(rng, body)
    return _head(status, fields, body)


def _stream(rng: Random) -> bytes:
    events = b"".join(rng.choices(_EVENTS, k=rng.randint(0, 12)))
    if rng.random() < 0.6:
        events += DONE
    if rng.random() < 0.1:
        events = b"data: " + b"h" * rng.choice((70_000, 2_000_000)) + b"\n\n" + events
    fields = ["content-type: text/event-stream", *rng.sample(_HEAD_FIELDS, rng.choice((0, 0, 1)))]
    if rng.random() < 0.1:
        events = gzip.compress(events, mtime=0)
        fields.append("content-encoding: gzip")
    if rng.random() < 0.2:
        return _head(200, fields, events)
    return _head(200, fields, None) + _chunk(rng, events)


def _chunk(rng: Random, body: bytes) -> bytes:
    """Return a chunked body, with extensions, trailers or no end now and then."""
    chunks = [
        b"%x%s\r\n%s\r\n" % (len(part), b";e=1" if rng.random() < 0.1 else b"", part)
        for part in split(rng, body, 12)
    ]
    end = rng.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nx-trailer: 1\r\n\r\n", b"", b"zz\r\n"))
    return b"".join(chunks) + end
