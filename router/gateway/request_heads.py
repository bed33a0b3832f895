"""The heads of clients' requests: which are refused, and what is read from those that are not.

A head that two readers could understand differently is refused, since a proxy before the gateway
may have been the other reader.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterable
from typing import Final

import httptools

from router.domain.errors import BadRequest, HeadTooLarge, RouterError
from router.gateway.client_limits import ClientLimits

Field = tuple[bytes, bytes]

_UPGRADE_FIELDS: Final = frozenset({b"connection", b"upgrade", b"http2-settings"})
_PLAIN_TARGET: Final = re.compile(rb"/[0-9A-Za-z_./-]*")


class RefusedRequest(Exception):
    """A request that is refused while it is parsed."""

    def __init__(self, error: RouterError) -> None:
        super().__init__(str(error))
        self.error = error


def form_plain_head(method: bytes, target: bytes, fields: Iterable[Field]) -> bytes:
    """Return a head without its wish for another protocol; `fields` have lower-case names."""
    kept = [b"%s: %s" % (name, value) for name, value in fields if name not in _UPGRADE_FIELDS]
    return b"\r\n".join([b"%s %s HTTP/1.1" % (method, target), *kept, b"", b""])


def split_target(target: bytes) -> tuple[str, bytes, bytes]:
    """Return the path of a request target, decoded and as sent, and its query."""
    if _PLAIN_TARGET.fullmatch(target):
        return target.decode("ascii"), target, b""
    parsed = httptools.parse_url(target)
    raw_path = parsed.path or b""
    path = raw_path.decode("ascii")
    return urllib.parse.unquote(path) if "%" in path else path, raw_path, parsed.query or b""


def explain_fault(error: httptools.HttpParserError) -> RouterError:
    """Return what is wrong: our own refusal where a callback raised it, else the parser's words."""
    cause = error.__context__
    if isinstance(cause, RefusedRequest):
        return cause.error
    ours = isinstance(error, httptools.HttpParserCallbackError)
    return malformed("it is malformed" if ours else str(error))


def check_head(url: bytes, fields: Iterable[Field], version: str, limits: ClientLimits) -> None:
    """Raise for a head that is too large, or whose meaning two readers could differ about."""
    size, hosts, count = len(url), 0, 0
    for name, value in fields:
        size += len(name) + len(value) + 4
        count += 1
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and (value.lower() != b"chunked" or version != "1.1"):
            raise RefusedRequest(malformed("its transfer coding is not served"))
    if size > limits.max_head_bytes or count > limits.max_head_fields:
        raise RefusedRequest(large_head(limits))
    if version not in {"1.0", "1.1"}:
        raise RefusedRequest(malformed("its version is not served"))
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise RefusedRequest(malformed("it must have one Host"))


def malformed(why: str) -> BadRequest:
    """Return the refusal of what is no HTTP request."""
    return BadRequest(f"this is no HTTP request: {why}", code="invalid_http")


def large_head(limits: ClientLimits) -> HeadTooLarge:
    """Return the refusal of a head over its bounds."""
    return HeadTooLarge(
        f"the head is over {limits.max_head_bytes} bytes or {limits.max_head_fields} fields",
        code="head_too_large",
    )
