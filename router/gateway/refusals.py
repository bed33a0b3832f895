"""What is refused before it is a request: counted by cause, and a line in the access log.

No application sees it, so none of the requests' own counts and lines tell of it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from router.domain.errors import HeadTooLarge, Overloaded, RequestTimeout, RouterError
from router.gateway.access import AccessLog


class Refusal(StrEnum):
    """Why a connection was refused or cut; the label of its metric."""

    MALFORMED = "malformed"
    """What came is no HTTP request, or one that two readers could understand differently."""
    HEAD_TOO_LARGE = "head_too_large"
    TOO_SLOW = "too_slow"
    """A head or a body that did not come in time."""
    TOO_MANY = "too_many"
    """A connection over `server.max_connections`."""
    STALLED = "stalled"
    """A reader that took nothing of its answer."""


class RefusalHook(Protocol):
    """Watches refusals; metrics hang here. Implementations never raise."""

    def connection_refused(self, cause: Refusal) -> None:
        """Told of each."""
        ...


class RefusalLog:
    """Tells of refusals: to the metrics, and in the access log."""

    def __init__(self, hook: RefusalHook, access: AccessLog) -> None:
        self._hook = hook
        self._access = access

    def tell(self, cause: Refusal, status: int | None, message: str) -> None:
        """Take note of a refusal; `status` None where nothing was answered."""
        self._hook.connection_refused(cause)
        if self._access.is_on:
            line = {"status": status, "refused": cause, "error": message}
            self._access.write(msgspec.json.encode(line))


def cause_of(error: RouterError) -> Refusal:
    """Return why a connection is refused with an error."""
    match error:
        case HeadTooLarge():
            return Refusal.HEAD_TOO_LARGE
        case RequestTimeout():
            return Refusal.TOO_SLOW
        case Overloaded():
            return Refusal.TOO_MANY
        case _:
            return Refusal.MALFORMED
