"""Calls to engines and their answers' heads: which headers go up, which come back. Pure.

Both directions are allow-lists. Upwards, because what a client says about peers, ranks,
priorities and keys must not reach an engine (CASES R25, R27) and nobody can list all the names
for that; downwards, because an engine's CORS, cookies and server names are not ours.
"""

from __future__ import annotations

import re
from typing import Final

from router.domain.decision import Placement
from router.ports import EngineRequest, Headers, Timeouts
from router.service.relay_ports import Leg, Target, Verbatim

_UPWARDS: Final = frozenset(
    {
        b"accept",  # what the answer may be
        b"traceparent",  # W3C Trace Context: one trace over gateway and engines
        b"tracestate",
        b"x-session-id",  # vLLM repeats it in KV events
    }
)
_DOWNWARDS: Final = frozenset(
    {b"content-type", b"content-language", b"cache-control", b"retry-after", b"warning"}
)
_MAX_FORWARDED_BYTES: Final = 4096
"""W3C asks for at least 512 bytes of `tracestate`; engines' servers take heads of 64 KiB."""

_PRINTABLE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_ORDINARY: Final = Verbatim()
_SUFFIXES: Final = {Leg.PREFILL: "p", Leg.DECODE: "d"}


def form_call(
    *,
    leg: Leg,
    target: Target,
    placement: Placement,
    path: str,
    body: bytes,
    client_headers: Headers,
    request_id: str,
    attempt: int,
    timeouts: Timeouts,
    verbatim: Verbatim | None = None,
) -> EngineRequest:
    """Return the call of one leg.

    Engines see `request_id` with the leg and, from the second attempt on, its number: distinct per
    call, with one stem (CASES R30). They are asked for plain bytes, which may be rewritten.
    """
    suffix = _SUFFIXES[leg] + (str(attempt) if attempt > 1 else "")
    verbatim = verbatim or _ORDINARY
    headers = [
        (b"content-type", verbatim.content_type),
        (b"accept-encoding", b"identity"),
        (b"x-request-id", f"{request_id}-{suffix}".encode("ascii")),
    ]
    headers += [field for field in client_headers if field[0] in _UPWARDS and _is_sound(field[1])]
    if target.instance.api_key:
        headers.append((b"authorization", b"Bearer " + target.instance.api_key.encode()))
    if placement.rank is not None:
        headers.append((b"x-data-parallel-rank", b"%d" % placement.rank))
    return EngineRequest(
        instance=target.instance.name,
        base_url=target.instance.url,
        path=path,
        body=body,
        method=verbatim.method,
        headers=headers,
        timeouts=timeouts,
        upload=verbatim.upload,
    )


def _is_sound(value: bytes) -> bool:
    """Whether a client's header value can and may go on."""
    return len(value) <= _MAX_FORWARDED_BYTES and _PRINTABLE.fullmatch(value) is not None


def select_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return those of an engine's header fields that are for the client."""
    return [field for field in headers if field[0] in _DOWNWARDS]


def find_header(headers: Headers, name: bytes) -> bytes:
    """Return the first value of a field, empty without it."""
    for key, value in headers:
        if key == name:
            return value
    return b""
