"""Requests that no client should send: spoilt on the wire, and spoilt as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from tests.fakes.systems import MODEL
from tests.fuzz.mutations import ODD_VALUES, split, spoil_bytes, spoil_json

Ending = Literal["leave", "half-close", "wait"]


@dataclass(frozen=True, slots=True)
class WireInput:
    """Bytes of a client in the pieces in which it sends them, and how it ends."""

    pieces: Sequence[bytes]
    ending: Ending


COUNTED_HERE = "tiny-hf"
"""A model whose prompts the gateway counts by itself."""

_MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hello " * 20}]},
]
_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
_EXTRAS: dict[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 4,
    "n": 2,
    "best_of": 2,
    "logprobs": 1,
    "priority": 3,
    "seed": 1 << 60,
    "cache_salt": "salt",
    "temperature": 0.5,
    "tools": _TOOLS,
    "echo": True,
    "chat_template_kwargs": {"enable_thinking": True, "messages": []},
    "add_generation_prompt": False,
    "prompt_logprobs": 1,
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.9.9.9"},
    "vllm_xargs": {"kv_cache_report_mode": "full", "x": 1},
    "previous_response_id": "resp_1",
    "background": True,
}
_RELAYED: Sequence[tuple[str, dict[str, Any]]] = (
    ("/v1/chat/completions", {"model": MODEL, "messages": _MESSAGES}),
    ("/v1/completions", {"model": MODEL, "prompt": list(range(1, 150))}),
    ("/v1/completions", {"model": MODEL, "prompt": "tell " * 40}),
    ("/v1/completions", {"model": MODEL, "prompt": ["a", "b"]}),
    ("/v1/responses", {"model": MODEL, "input": "Hello"}),
    ("/v1/responses", {"model": MODEL, "input": _MESSAGES}),
    ("/v1/messages", {"model": MODEL, "messages": _MESSAGES[1:], "max_tokens": 4}),
    ("/v1/messages/count_tokens", {"model": MODEL, "messages": _MESSAGES[1:]}),
    ("/v1/embeddings", {"model": MODEL, "input": ["a", "b"]}),
    ("/v1/rerank", {"model": MODEL, "query": "a", "documents": ["b"]}),
    ("/score", {"model": MODEL, "text_1": "a", "text_2": ["b"]}),
)
_ADMIN: Sequence[tuple[str, str, dict[str, Any]]] = (
    ("PUT", "threshold", {"mode": "manual", "tokens": 100}),
    ("PUT", "threshold?model=tiny&pd=east", {"mode": "config"}),
    ("PUT", "links/west-east", {"health": "auto", "capacity_gbps": 1.0}),
    ("POST", "links/west-east/telemetry", {"egress_gbps": 0.1, "loss_ratio": 0.0, "rtt_ms": 3.0}),
    ("PUT", "bandwidth", {"mode": "auto"}),
    ("PUT", "override", {"route": "local", "ttl_seconds": 0.01}),
    ("DELETE", "override?model=tiny", {}),
    ("POST", "instances", {"name": "x0", "url": "http://127.0.0.1:9", "role": "decode"}),
    ("PATCH", "instances/nobody", {"state": "active"}),
    ("DELETE", "instances/nobody", {}),
    ("POST", "decisions:explain", {"model": MODEL, "prompt": [1, 2, 3]}),
    ("POST", "decisions:explain", {"total_tokens": 500, "cached_tokens": {"east": 3}}),
    ("POST", "decisions:explain", {"messages": _MESSAGES, "threshold": 3, "regime": "scarce"}),
    ("GET", "decisions?limit=3&route=local", {}),
    ("POST", "plan:solve", {}),
)
_OTHERS: Sequence[tuple[str, str]] = (
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("GET", "/v1/responses/resp_1?stream=true"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("GET", "/health"),
    ("HEAD", "/ready"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/admin/v1/state"),
    ("OPTIONS", "*"),
)
_TYPES = (
    "application/json",
    "application/json; charset=utf-16",
    "text/plain",
    "",
    "multipart/form-data; boundary=x",
    "multipart/form-data",
    "application/x-www-form-urlencoded",
    "\xff/\xfe",
)
_FIELDS = (
    "x-request-id: same",
    "x-request-id: \x01two\tparts",
    "x-request-id: " + "i" * 5000,
    "x-prfaas-priority: -99999999999999999999",
    "x-prfaas-home: nowhere",
    "x-data-parallel-rank: 7",
    "authorization: Bearer ",
    "authorization: Basic \xff",
    "x-api-key: sk",
    "accept-encoding: gzip, br;q=0, *",
    "content-encoding: gzip",
    "content-encoding: br, x",
    "cookie: " + "c" * 3000,
    "range: bytes=0-1",
    "origin: null",
    "x-forwarded-for: 10.0.0.1, \xff",
    "te: trailers",
)


def make_wire_input(rng: Random) -> WireInput:
    """Return a request or several, spoilt in their bytes."""
    data = b"".join(_frame(rng, *_sound_request(rng)) for _ in range(rng.choice((1, 1, 1, 2, 5))))
    spoilt = spoil_bytes(rng, data) if rng.random() < 0.9 else data
    endings: Sequence[Ending] = ("leave", "half-close", "half-close", "wait")
    return WireInput(split(rng, spoilt), rng.choice(endings))


def make_body_input(rng: Random) -> WireInput:
    """Return one well-framed request whose JSON is spoilt."""
    method, path, document = _sound_request(rng)
    how = rng.random()
    if how < 0.65:
        body = spoil_json(rng, document)
    elif how < 0.8:
        body = spoil_bytes(rng, spoil_json(rng, document))
    elif how < 0.9:
        body = spoil_bytes(rng, json.dumps(document).encode())
    else:
        body = rng.choice(ODD_VALUES).encode("utf-8", "surrogatepass")
    if rng.random() < 0.05:
        body += rng.choice((b"\x00", b"{}", b" ", b"\xef\xbb\xbf"))
    data = _frame(rng, method, path, body, closing=True)
    return WireInput(split(rng, data, 3), "wait")


def _sound_request(rng: Random) -> tuple[str, str, Any]:
    where = rng.random()
    if where < 0.7:
        path, document = rng.choice(_RELAYED)
        chosen = rng.sample(sorted(_EXTRAS), rng.randint(0, 3))
        model = rng.choice((MODEL, COUNTED_HERE))
        return "POST", path, document | {name: _EXTRAS[name] for name in chosen} | {"model": model}
    if where < 0.9:
        method, path, document = rng.choice(_ADMIN)
        return method, f"/admin/v1/{path}", document
    return (*rng.choice(_OTHERS), {})


def _frame(
    rng: Random,
    method: str,
    path: str,
    document: Any,  # noqa: ANN401 - any JSON value, or its bytes
    *,
    closing: bool = False,
) -> bytes:
    """Return a request's bytes, in one of the ways in which a client may write them."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    kind = rng.choice(_TYPES) if rng.random() < 0.2 else _TYPES[0]
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", f"content-type: {kind}"]
    lines += rng.sample(_FIELDS, rng.choice((0, 0, 1, 2)))
    if closing:
        lines.append("connection: close")
    if rng.random() < 0.3:
        lines.append("transfer-encoding: chunked")
        parts = split(rng, body, 4)
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    else:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
