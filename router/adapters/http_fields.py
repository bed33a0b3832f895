"""What HTTP/1.1 heads may hold and what they mean. Pure: bytes and fields in, facts out."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

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
_NOT_IN_NAMES: Final = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_NOT_IN_VALUES: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")
_METHOD: Final = re.compile(rb"[A-Z]+")
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
_KEEP_ALIVE_TIMEOUT: Final = re.compile(rb"timeout=(\d+)")


class Head(Struct, frozen=True):
    """What a response head says, besides its status.

    `framed` is whether the body's end is marked by something else than the end of the connection,
    `chunked` whether by its last chunk.
    `keep_alive` is how long the engine says that it keeps an idle connection. `fields` are those
    for the caller: hop-by-hop ones, and what Connection names, are left out (RFC 9110, 7.6.1).
    """

    framed: bool
    chunked: bool
    keep_alive: Seconds | None
    fields: list[tuple[bytes, bytes]]


def encode_start(method: str, path: str, authority: bytes, prefix: bytes) -> bytes:
    """Return the first two lines of a request's head, without the end of the second.

    Raises ValueError for a method or path that could change its framing.
    """
    verb, target = method.encode("ascii"), prefix + path.encode("ascii")
    if _METHOD.fullmatch(verb) is None or _TARGET.fullmatch(target) is None:
        raise ValueError("malformed method or path")
    return b"%b %b HTTP/1.1\r\nhost: %b" % (verb, target, authority)


def encode_request(request: EngineRequest, start: bytes) -> bytes:
    """Return the bytes of a request after its `encode_start`, or the head of one with an upload.

    Raises ValueError for anything that could change its framing or inject a field: these values
    are ours or were checked before, so a bad one is a programming error.
    """
    _check_fields(request.headers)
    lines = [start, *[b"%b: %b" % field for field in request.headers]]
    if request.upload is not None:
        length = request.upload.length
        chunked = b"transfer-encoding: chunked"
        lines.append(chunked if length is None else b"content-length: %d" % length)
    elif request.body or request.method in _WITH_BODY:
        lines.append(b"content-length: %d" % len(request.body))
    lines += (b"", b"" if request.upload is not None else request.body)
    return b"\r\n".join(lines)


def _check_fields(fields: Headers) -> None:
    """Raise ValueError for a field that HTTP does not allow, or that is the connection's own."""
    if not fields:
        return
    names, values = zip(*fields, strict=True)
    for name in names:
        if not name:
            raise ValueError("a header field has no name")
        if name.lower() in _FRAMING:
            raise ValueError(f"{name!r} belongs to the client of the connection")
    # One search each over all of them: nothing may be in any of them.
    if _NOT_IN_NAMES.search(b"".join(names)) or _NOT_IN_VALUES.search(b"".join(values)):
        raise ValueError("a header field has characters that HTTP does not allow")


def read_head(status: int, headers: list[tuple[bytes, bytes]]) -> Head:
    """Return what a head says, in one pass; names are in lower case."""
    kept: list[tuple[bytes, bytes]] = []
    codings, named = b"", b""
    length, keep_alive = False, None
    for field in headers:
        name, value = field
        if name not in _HOP_BY_HOP:
            length = length or name == b"content-length"
            kept.append(field)
        elif name == b"transfer-encoding":
            codings = codings + b"," + value
        elif name == b"connection":
            named = named + b"," + value
        elif name == b"keep-alive" and (found := _KEEP_ALIVE_TIMEOUT.search(value)):
            keep_alive = float(found[1]) if keep_alive is None else keep_alive
    if named:
        dropped = {token.strip().lower() for token in named.split(b",")}
        kept = [field for field in kept if field[0] not in dropped]
    if codings:
        framed = chunked = codings.rpartition(b",")[2].strip().lower() == b"chunked"
    else:
        framed, chunked = length or status in {204, 304}, False
    return Head(framed, chunked, keep_alive, kept)
