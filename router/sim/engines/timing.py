"""Simulated time: the clock, places in a queue that do not drift, and the pace of decoding.

All seconds here are simulated: `time_scale` of them pass in one second of the wall. Work is
planned by absolute times. A request that waited starts when its place became free, not when the
loop got round to it, so that late timers never slow an engine down.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable

from router.sim.engines.specs import EngineProfile

TICK_SECONDS = 0.001
"""Wall time below which sleeping is not worth a timer: event loops keep about 1 ms."""


class SimClock:
    """Simulated seconds since the clock was made, `scale` times as fast as `monotonic`."""

    def __init__(self, monotonic: Callable[[], float], scale: float) -> None:
        self._monotonic = monotonic
        self._origin = monotonic()
        self.scale = scale

    def now(self) -> float:
        """Return the simulated time in seconds."""
        return (self._monotonic() - self._origin) * self.scale

    @property
    def tick(self) -> float:
        """The shortest sleep worth taking, in simulated seconds."""
        return TICK_SECONDS * self.scale

    def wall_until(self, when: float) -> float:
        """Return the wall seconds left until simulated `when`; negative when past."""
        return (when - self.now()) / self.scale

    async def sleep_until(self, when: float) -> None:
        """Return at simulated `when`, or less than half a tick before it."""
        left = self.wall_until(when)
        if left > TICK_SECONDS / 2:
            await asyncio.sleep(left)


class Places:
    """`count` places served first come, first served, each free again at a simulated time."""

    def __init__(self, count: int) -> None:
        self._free = [0.0] * count
        self._waiting: deque[asyncio.Future[float]] = deque()

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return sum(not future.done() for future in self._waiting)

    async def take(self, since: float) -> float:
        """Wait for a place; return when work can start: at `since` or when the place was free."""
        if self._free and not self._waiting:
            return max(since, heapq.heappop(self._free))
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            return max(since, await future)
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give_back(future.result())  # granted in the same turn as the cancellation
            raise

    def give_back(self, at: float) -> None:
        """Free a place as of simulated `at`; the longest waiting request gets it."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(at)
                return
        heapq.heappush(self._free, at)


def measure_prefill(profile: EngineProfile, start: int, end: int) -> float:
    """Return the seconds that a prefill of the tokens [start, end) takes.

    T(end) - T(start): a cached prefix saves what computing it would have cost, and the rest is as
    dear as it is at its depth. Never negative, whatever the profile says.
    """
    return max(0.0, profile.prefill_seconds(end) - profile.prefill_seconds(start))


class DecodePace:
    """When each output token is due: token `i` at `start + i / rate`."""

    def __init__(self, start: float, rate: float, count: int) -> None:
        self._start = start
        self._interval = 1.0 / rate
        self.count = count

    @property
    def end(self) -> float:
        """When the last token is due."""
        return self.due(self.count - 1)

    def due(self, index: int) -> float:
        """Return when token `index` is due."""
        return self._start + index * self._interval

    def count_due(self, now: float, tolerance: float) -> int:
        """Return how many tokens are due by `now`, forgiving timers `tolerance` seconds."""
        passed = now + tolerance - self._start
        return min(self.count, max(0, int(passed / self._interval) + 1)) if passed >= 0 else 0
