"""The router's one error tree, split by who must act.

`router.gateway.errors` maps it to HTTP in one table. Messages are shown to clients: they name
what the client may know and nothing of hosts, keys or prompts.
"""

from __future__ import annotations

from router.domain.units import Seconds


class RouterError(Exception):
    """Any failure that the gateway answers for."""


class ClientFault(RouterError):
    """The client must change its request. `param` names the field, `code` is machine-readable."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class BadRequest(ClientFault):
    """The request cannot be read: malformed JSON, a wrong type, a missing field (400)."""


class Unauthenticated(ClientFault):
    """No key or a wrong one (401)."""


class Forbidden(ClientFault):
    """A known caller without the right to do this (403)."""


class NotFound(ClientFault):
    """An unknown model, path or name (404)."""


class MethodNotAllowed(ClientFault):
    """The path exists, but not for this method (405). `allow` is one that it takes."""

    def __init__(self, message: str, *, allow: str | None = None) -> None:
        super().__init__(message)
        self.allow = allow


class Conflict(ClientFault):
    """The change contradicts the present state (409)."""


class Changed(ClientFault):
    """What the caller wanted to change is not as it saw it any more (412)."""


class BodyTooLarge(ClientFault):
    """The body is over `server.max_body_bytes` (413)."""


class HeadTooLarge(ClientFault):
    """The head has too many bytes or fields (431)."""


class RequestTimeout(ClientFault):
    """The client did not send its request in time (408)."""


class RateLimited(RouterError):
    """The tenant's own limit is reached (429 with Retry-After).

    `retry_after` None tells that this request is over the limit by itself: no wait will help.
    """

    def __init__(self, message: str, *, retry_after: Seconds | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Overloaded(RouterError):
    """The client should come back later (503 with Retry-After)."""

    def __init__(self, message: str, *, retry_after: Seconds = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NobodyAlive(RouterError):
    """No instance can take the request now (503 with Retry-After)."""


class StoreAway(RouterError):
    """The shared store does not answer: what needs it was not done (503 with Retry-After)."""


class NotLeading(RouterError):
    """Another process leads by now, or nobody: what only a leader may do was not done (503)."""


class UpstreamError(RouterError):
    """An engine failed us. `instance` is its name, `processed` whether it may have run the request.

    Only what cannot have been processed may be retried (DESIGN 7).
    """

    def __init__(self, message: str, *, instance: str, processed: bool) -> None:
        super().__init__(message)
        self.instance = instance
        self.processed = processed


class UpstreamUnreachable(UpstreamError):
    """No connection could be made: refused, unresolved, or over the connect time-out."""

    def __init__(self, message: str, *, instance: str) -> None:
        super().__init__(message, instance=instance, processed=False)


class UpstreamBroken(UpstreamError):
    """The connection was cut or spoke no valid HTTP (502)."""


class UpstreamLost(UpstreamBroken):
    """The engine was declared down and is silent; it may have run the request (502)."""

    def __init__(self, message: str, *, instance: str) -> None:
        super().__init__(message, instance=instance, processed=True)


class UpstreamTimeout(UpstreamError):
    """No byte in time (504)."""


class ActuationFailed(RouterError):
    """What carries conversions out refused or failed to; the engine may be in either role."""


class ClientGone(RouterError):
    """The client closed its connection: nobody to answer, everything to free."""
