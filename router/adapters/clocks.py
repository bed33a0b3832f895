"""The machine's clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from router.domain.units import Seconds


class SystemClock:
    """Implements `router.ports.Clock` on the machine's own clocks."""

    def monotonic(self) -> Seconds:
        """Seconds on the monotonic clock."""
        return time.monotonic()

    def now(self) -> datetime:
        """The wall clock in UTC."""
        return datetime.now(UTC)
