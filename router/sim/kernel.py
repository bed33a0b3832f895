"""The event loop of the discrete-event simulator: a calendar of what happens when.

Events are plain tuples in a heap, `(time, number, act, subject)`: no coroutine, no object an event.
The number breaks ties in the order of scheduling, so that a run depends on nothing but its inputs,
and subjects are never compared. Events are not taken back: who may have changed its mind since
leaves a stamp in the subject and looks at it when the event comes.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeVar

from router.domain.units import Seconds

_T = TypeVar("_T")


class PastEvent(ValueError):
    """An event was scheduled before the present."""


class Calendar:
    """Simulated time, and everything that is yet to happen."""

    __slots__ = ("_heap", "_number", "now")

    def __init__(self) -> None:
        self.now: Seconds = 0.0
        self._number = 0
        # The subject's type is known to `at`, which pairs it with its act.
        self._heap: list[tuple[Seconds, int, Callable[..., None], object]] = []

    def __repr__(self) -> str:
        return f"<Calendar at {self.now:.3f} s, {len(self._heap)} events to come>"

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, when: Seconds, act: Callable[[_T], None], subject: _T) -> None:
        """Let `act(subject)` happen at `when`, after everything scheduled for then before.

        Raises PastEvent, and schedules nothing, for a time that is over or no number.
        """
        if not when >= self.now:
            raise PastEvent(f"{when} s is before {self.now} s")
        self._number += 1
        heappush(self._heap, (when, self._number, act, subject))

    def run(self, until: Seconds | None = None) -> None:
        """Let everything happen in order, up to and at `until`; without it until nothing is left.

        Time then stands at `until`, or at the last event.
        """
        heap = self._heap
        if until is None:
            while heap:
                self.now, _, act, subject = heappop(heap)
                act(subject)
            return
        while heap and heap[0][0] <= until:
            self.now, _, act, subject = heappop(heap)
            act(subject)
        self.now = max(self.now, until)
