"""What HTTP/1.1 heads may hold and what they mean. Pure: bytes and fields in, facts out."""

from __future__ import annotations

import re
from typing import Final

from router.domain.units import Seconds
from router.ports import EngineRequest, Headers

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_FRAMING: Final = frozenset({b"host", b"content-length", b"connection", b"transfer-encoding"})
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")
_METHOD: Final = re.compile(rb"[A-Z]+")
_KEEP_ALIVE_TIMEOUT: Final = re.compile(rb"timeout=(\d+)")


def encode_request(request: EngineRequest, authority: bytes, prefix: bytes) -> bytes:
    """Return the bytes of a request, or the head of one with an upload.

    Raises ValueError for anything that could change its framing or inject a field: these values
    are ours or were checked before, so a bad one is a programming error.
    """
    method = request.method.encode("ascii")
    target = prefix + request.path.encode("ascii")
    if _METHOD.fullmatch(method) is None or _TARGET.fullmatch(target) is None:
        raise ValueError("malformed method or path")
    lines = [method + b" " + target + b" HTTP/1.1", b"host: " + authority]
    for name, value in request.headers:
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise ValueError("a header field has characters that HTTP does not allow")
        if name.lower() in _FRAMING:
            raise ValueError(f"{name!r} belongs to the client of the connection")
        lines.append(name + b": " + value)
    if request.upload is not None:
        length = request.upload.length
        chunked = b"transfer-encoding: chunked"
        lines.append(chunked if length is None else b"content-length: %d" % length)
    elif request.body or method in {b"POST", b"PUT", b"PATCH"}:
        lines.append(b"content-length: %d" % len(request.body))
    lines += (b"", b"" if request.upload is not None else request.body)
    return b"\r\n".join(lines)


def has_length(status: int, headers: Headers) -> bool:
    """Whether the body's end is marked by something else than the end of the connection."""
    codings = b",".join(value for name, value in headers if name == b"transfer-encoding")
    if codings:
        return codings.rpartition(b",")[2].strip().lower() == b"chunked"
    return status in {204, 304} or any(name == b"content-length" for name, _ in headers)


def read_keep_alive(headers: Headers) -> Seconds | None:
    """Return how long the engine says that it keeps an idle connection."""
    for name, value in headers:
        if name == b"keep-alive" and (found := _KEEP_ALIVE_TIMEOUT.search(value)):
            return float(found[1])
    return None


def drop_hop_by_hop(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Drop hop-by-hop fields and those that Connection names (RFC 9110, 7.6.1)."""
    dropped = _HOP_BY_HOP
    named = b",".join(value for name, value in headers if name == b"connection")
    if named:
        dropped = dropped.union(token.strip().lower() for token in named.split(b","))
    return [field for field in headers if field[0] not in dropped]
