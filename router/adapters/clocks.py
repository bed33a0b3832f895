"""The machine's clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from router.domain.units import Seconds


class SystemClock:
    """Implements `router.ports.Clock` on the machine's own clocks."""

    monotonic: Callable[[], Seconds] = staticmethod(time.monotonic)
    """Seconds on the monotonic clock. The function itself: every request asks some twenty times."""

    def now(self) -> datetime:
        """The wall clock in UTC."""
        return datetime.now(UTC)
