"""The one table from the error tree to HTTP, and the one shape of an error (DESIGN 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from router.domain.errors import (
    BadRequest,
    BodyTooLarge,
    Changed,
    ClientFault,
    Conflict,
    Forbidden,
    HeadTooLarge,
    MethodNotAllowed,
    NobodyAlive,
    NotFound,
    NotLeading,
    Overloaded,
    RateLimited,
    RequestTimeout,
    RouterError,
    StoreAway,
    Unauthenticated,
    UpstreamBroken,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from router.domain.units import Seconds

_RETRY_AFTER: Seconds = 1.0
_NEVER: Seconds = 60.0
"""`Retry-After` of what no wait will help: a period of the limits, after which they may differ."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How an error is told: a status, and the `type` that OpenAI's clients know."""

    status: int
    type: str
    retry: bool = False


_TABLE: tuple[tuple[type[RouterError], Answer], ...] = (
    (Unauthenticated, Answer(401, "authentication_error")),
    (Forbidden, Answer(403, "permission_error")),
    (NotFound, Answer(404, "not_found_error")),
    (MethodNotAllowed, Answer(405, "invalid_request_error")),
    (Conflict, Answer(409, "conflict_error")),
    (Changed, Answer(412, "precondition_failed_error")),
    (BodyTooLarge, Answer(413, "invalid_request_error")),
    (HeadTooLarge, Answer(431, "invalid_request_error")),
    (RequestTimeout, Answer(408, "timeout_error")),
    (BadRequest, Answer(400, "invalid_request_error")),
    (ClientFault, Answer(400, "invalid_request_error")),
    (RateLimited, Answer(429, "rate_limit_error", retry=True)),
    (Overloaded, Answer(503, "overloaded_error", retry=True)),
    (NobodyAlive, Answer(503, "service_unavailable_error", retry=True)),
    (StoreAway, Answer(503, "service_unavailable_error", retry=True)),
    (NotLeading, Answer(503, "service_unavailable_error", retry=True)),
    (UpstreamTimeout, Answer(504, "upstream_timeout_error")),
    (UpstreamUnreachable, Answer(503, "service_unavailable_error", retry=True)),
    (UpstreamBroken, Answer(502, "upstream_error")),
)
_UNKNOWN = Answer(500, "internal_error")

_MESSAGES = "/v1/messages"

_LAST_OF_CONNECTION = (BodyTooLarge, RequestTimeout)
"""Errors after which the rest of a request may be on its way still."""

RawResponse = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, header fields and body of a response."""


def answer_for(error: BaseException) -> Answer:
    """Return how an error is told; what the tree does not know is an internal error."""
    for kind, answer in _TABLE:
        if isinstance(error, kind):
            return answer
    return _UNKNOWN


def error_document(error: BaseException, *, named: bool = False) -> dict[str, object]:
    """Return the JSON document of an error. Internal errors tell nothing of themselves.

    `named` adds the `type` that Anthropic's errors have at their top.
    """
    answer = answer_for(error)
    known = isinstance(error, RouterError)
    top: dict[str, object] = {"type": "error"} if named else {}
    return top | {
        "error": {
            "message": str(error) if known else "the gateway failed on this request",
            "type": answer.type,
            "param": error.param if isinstance(error, ClientFault) else None,
            "code": _code(error, answer),
        }
    }


def speaks_anthropic(path: str) -> bool:
    """Whether a path's errors have the shape that Anthropic's clients look for."""
    return path == _MESSAGES or path.startswith(_MESSAGES + "/")


def error_response(error: BaseException, *, named: bool = False) -> RawResponse:
    """Return the whole response to an error; `named` as in `error_document`."""
    answer = answer_for(error)
    body = msgspec.json.encode(error_document(error, named=named))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if answer.retry:
        headers += _retry_headers(error)
    if isinstance(error, MethodNotAllowed) and error.allow is not None:
        headers.append((b"allow", error.allow.encode()))
    if isinstance(error, _LAST_OF_CONNECTION):
        headers.append((b"connection", b"close"))
    if answer.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return answer.status, headers, body


def write_response(response: RawResponse) -> bytes:
    """Return a response as it goes over a connection that ends with it."""
    status, headers, body = response
    phrase = HTTPStatus(status).phrase.encode()
    told = [(name, value) for name, value in headers if name != b"connection"]
    fields = b"".join(b"%s: %s\r\n" % field for field in (*told, (b"connection", b"close")))
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, phrase, fields, body)


def _retry_headers(error: BaseException) -> list[tuple[bytes, bytes]]:
    """Return when to come back: in whole seconds, as HTTP has it, and exactly, as OpenAI does.

    OpenAI's clients prefer the exact number, and obey `x-should-retry`.
    """
    match error:
        case RateLimited(retry_after=None):
            return [(b"retry-after", b"%d" % _NEVER), (b"x-should-retry", b"false")]
        case RateLimited(retry_after=seconds) if seconds is not None:
            exact = (b"retry-after-ms", b"%d" % math.ceil(seconds * 1000))
            return [(b"retry-after", b"%d" % max(1, math.ceil(seconds))), exact]
        case Overloaded(retry_after=seconds):
            return [(b"retry-after", b"%d" % max(1, math.ceil(seconds)))]
        case _:
            return [(b"retry-after", b"%d" % _RETRY_AFTER)]


def _code(error: BaseException, answer: Answer) -> str | int:
    if isinstance(error, ClientFault) and error.code is not None:
        return error.code
    if isinstance(error, RateLimited):
        return "rate_limit_exceeded"  # the code that OpenAI's clients look for
    return answer.status
