"""A clock that moves only when told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Implements `router.ports.Clock`."""

    def __init__(self, start: float = 0.0) -> None:
        self.seconds = start

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return _EPOCH + timedelta(seconds=self.seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds
