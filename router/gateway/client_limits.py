"""What a client's connection may take: bytes, fields and time. Pure; the shell is `clients`.

A connection owes something in each of its states: the rest of a head, the rest of a body, a next
request, or taking what was written for it. `judge` says which debt is overdue. Time runs only
against the side that owes: while the gateway itself does not read, no body is late.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from router.domain.units import Seconds

LEAST_BODY_RATE: Final = 500
"""Bytes a second that a body must come with on average (Apache's `RequestReadTimeout`)."""

FRAMING_SHARE: Final = 8
"""Bytes of chunk framing allowed for each byte of a body: chunks of one byte have five."""

LINGER_BYTES: Final = 64 * 1024 * 1024
"""How much of a body that nobody wants is read after its answer: four bodies of the default limit.

Most clients read no answer before they have sent all; one that is reset before loses its 413. What
is dropped costs no memory, and `LINGER_SECONDS` bounds it as well (Go's server reads 256 KiB, nginx
whatever comes in 30 s).
"""

LINGER_SECONDS: Final[Seconds] = 2.0
"""How long that may take. nginx lingers 5 s between reads; an answer in flight needs less."""

SURPLUS_CONNECTIONS: Final = 64
"""Connections over the limit that still get an answer of their own; more are closed at once."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Bounds of one connection, and how many there may be."""

    max_connections: int = 4096
    max_head_bytes: int = 64 * 1024
    max_head_fields: int = 100
    head: Seconds = 20.0
    body: Seconds = 30.0
    idle: Seconds = 75.0
    stall: Seconds = 60.0

    @property
    def tick(self) -> Seconds:
        """How often connections are looked at: a quarter of the shortest time, at most a second."""
        shortest = min(self.head, self.body, self.idle, self.stall, LINGER_SECONDS)
        return max(0.02, min(1.0, shortest / 4))


class Reading(Enum):
    """What a connection reads."""

    NOTHING = "between requests"
    HEAD = "a head"
    BODY = "a body"
    REST = "what nobody wants"


class Overdue(Enum):
    """What a connection owes for too long."""

    HEAD = "the head of a request did not come in time"
    BODY = "the body of a request did not come in time"
    REQUEST = "no further request"
    READER = "the client takes nothing of its answer"
    REST = "the client goes on with what nobody wants"


@dataclass(frozen=True, slots=True)
class ConnectionView:
    """One connection at one moment. Times are seconds of a monotonic clock.

    `since` is when the present state of reading began, `heard` when bytes came last, `body_bytes`
    what has come of the body. `busy` tells that an answer is being made, `fresh` that no request
    has come yet, `stalled_since` since when unsent bytes are not taken.
    """

    reading: Reading
    since: Seconds
    heard: Seconds
    body_bytes: int
    busy: bool
    fresh: bool
    stalled_since: Seconds | None


def judge(view: ConnectionView, limits: ClientLimits, now: Seconds) -> Overdue | None:
    """Return what is overdue at `now`, None for a connection in order."""
    if view.stalled_since is not None and now - view.stalled_since > limits.stall:
        return Overdue.READER
    match view.reading:
        case Reading.HEAD:
            return Overdue.HEAD if now - view.since > limits.head else None
        case Reading.BODY:
            allowed = limits.body + view.body_bytes / LEAST_BODY_RATE
            late = now - view.heard > limits.body or now - view.since > allowed
            return Overdue.BODY if late else None
        case Reading.REST:
            late = not view.busy and now - view.since > LINGER_SECONDS
            return Overdue.REST if late else None
        case Reading.NOTHING:
            patience = limits.head if view.fresh else limits.idle
            idle = not view.busy and now - view.since > patience
            return Overdue.REQUEST if idle else None
