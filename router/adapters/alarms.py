"""A timer that is set and unset for every request and seldom goes off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router.domain.units import Seconds


class Alarm:
    """Calls back once its time has come. Setting it again moves it; unsetting it costs nothing.

    The loop's own timer is left where it is: when it fires too early it is set anew for the time
    that is due by then. So a connection that is busy makes one timer each time-out, not two each
    request.
    """

    __slots__ = ("_callback", "_due", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._due: Seconds | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, delay: Seconds) -> None:
        """Go off in `delay` seconds, and not when it was set for before."""
        due = self._due = self._loop.time() + delay
        if self._timer is None:
            self._timer = self._loop.call_later(delay, self._fire)
        elif self._timer.when() > due:
            self._timer.cancel()
            self._timer = self._loop.call_later(delay, self._fire)

    def unset(self) -> None:
        """Do not go off."""
        self._due = None

    def close(self) -> None:
        """Leave no timer behind."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._due is None:
            return
        left = self._due - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._fire)
            return
        self._due = None
        self._callback()
