"""A breaker before a store: after failures in a row nobody asks it for a while, then one does.

Pure: time is an argument, the caller acts on the change of state that a step returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    """Whether the store is asked."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """One look-up is trying it; the others are answered as if it were open."""


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When to stop asking, and when to try again.

    `failures` in a row open it: at 20 ms each a tenth of a second is lost. After
    `cooldown_seconds` one look-up tries, so the store is back within that time of its return.
    """

    failures: int = 5
    cooldown_seconds: float = 2.0


@dataclass(slots=True)
class LookUpBreaker:
    """Counts failures in a row. `since` is when the state began, by the caller's clock."""

    rules: BreakerRules
    state: BreakerState = BreakerState.CLOSED
    since: float = 0.0
    _failures: int = 0

    def admits(self, now: float) -> bool:
        """Whether to ask the store; a True in the open state is the one trial."""
        if self.state is BreakerState.CLOSED:
            return True
        if now - self.since < self.rules.cooldown_seconds:
            return False
        # Also where a trial never came back (its caller was cancelled): the next one tries.
        self.state = BreakerState.HALF_OPEN
        self.since = now
        return True

    def succeeded(self, now: float) -> bool:
        """Note an answer in time; True if that closes the breaker."""
        self._failures = 0
        if self.state is BreakerState.CLOSED:
            return False
        self.state = BreakerState.CLOSED
        self.since = now
        return True

    def failed(self, now: float) -> bool:
        """Note an error or no answer in time; True if that opens a closed breaker."""
        self._failures += 1
        if self.state is BreakerState.CLOSED and self._failures < self.rules.failures:
            return False
        was_closed = self.state is BreakerState.CLOSED
        self.state = BreakerState.OPEN
        self.since = now
        return was_closed
