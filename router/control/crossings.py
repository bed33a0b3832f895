"""Hand-offs on their way over one link, and the time of the link that each one had.

Hand-offs that cross at the same time share a link equally, as TCP flows do. So while n of them
cross, each has the link for 1/n of the time, and one of B bytes that had it for s seconds in all
says that the link carries B/s, however many crossed beside it. Both numbers add up: over hand-offs,
and over gateways that each see only their own. What all of them had is the time in which the link
was busy.

When a hand-off begins to cross is known where the decode instance pulls it: when its prefill is
done. Where layers travel while they are computed, it is taken to begin when its prefill should;
then one that arrives without a wait may have crossed long before, and says nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Final

from router.domain.units import Bytes, BytesPerSecond, Seconds

_REMEMBERED: Final = 32
"""Waits of which the shortest is what a decode instance needs by itself: a minute of traffic."""

_LONGEST_ANSWER: Final[Seconds] = 0.2
"""Most that is taken for the decode instance's own time; more is somebody's queue."""

_SHORTEST_WAIT: Final[Seconds] = 0.05
"""A wait that is told from the decode instance's own time: a decode step."""


@dataclass(frozen=True, slots=True)
class Crossed:
    """Sums over hand-offs: bytes, seconds of the whole link, and the seconds that they waited.

    Waits are those after the prefill, beyond what decode instances usually need by themselves;
    what came sooner is below 0. `count` are all, `late` those that waited. `beside` are the bytes
    of those that had crossed when their prefill was done, which are in no other sum.
    """

    size: float = 0.0
    link_seconds: Seconds = 0.0
    waited: Seconds = 0.0
    count: int = 0
    late: int = 0
    beside: float = 0.0

    def __add__(self, other: Crossed) -> Crossed:
        return Crossed(
            self.size + other.size,
            self.link_seconds + other.link_seconds,
            self.waited + other.waited,
            self.count + other.count,
            self.late + other.late,
            self.beside + other.beside,
        )

    def __sub__(self, other: Crossed) -> Crossed:
        return Crossed(
            self.size - other.size,
            self.link_seconds - other.link_seconds,
            self.waited - other.waited,
            self.count - other.count,
            self.late - other.late,
            self.beside - other.beside,
        )

    @property
    def rate(self) -> BytesPerSecond:
        """Bytes per second of the link."""
        return BytesPerSecond(self.size / self.link_seconds if self.link_seconds > 0 else inf)

    @property
    def mean_wait(self) -> Seconds:
        """Seconds that a hand-off waited."""
        return self.waited / self.count if self.count else 0.0


@dataclass(slots=True)
class _Flow:
    """One hand-off. `begins_at` is when it should begin, where that is known before.

    `share` is what each that crossed had of the link when it began.
    """

    size: Bytes
    timed: bool
    begins_at: Seconds | None
    began_at: Seconds | None = None
    share: Seconds = 0.0
    departed_at: Seconds | None = None
    over: bool = False

    @property
    def crosses(self) -> bool:
        return self.began_at is not None and not self.over


@dataclass(slots=True)
class Crossings:
    """One gateway's hand-offs on one link. Times are readings of one clock that never go back.

    `rate` is what the link is taken to carry: those that nobody times are over when it says so.
    `answer` is how long decode instances let hand-offs wait that cross no link, `patience` the
    longest that is usual. `arrived` sums up those that arrived since the beginning.
    """

    at: Seconds
    rate: BytesPerSecond
    answer: Seconds = 0.0
    patience: Seconds = 0.0
    arrived: Crossed = Crossed()
    _others: int = 0
    _share: Seconds = 0.0
    _next: int = 0
    _flows: dict[int, _Flow] = field(default_factory=dict)
    _waits: deque[Seconds] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    @property
    def crossing(self) -> int:
        """How many of this gateway's hand-offs cross now."""
        return sum(flow.crosses for flow in self._flows.values())

    def hear(self, now: Seconds, others: int) -> None:
        """Count how many of other gateways' hand-offs cross from now on."""
        self.advance(now)
        self._others = others

    def book(self, now: Seconds, size: Bytes, begins_at: Seconds | None, *, timed: bool) -> int:
        """Expect a hand-off of `size` bytes; return the number by which to speak of it.

        It begins at `begins_at`, at the latest when it departs. Without `timed` nobody will see
        when it has arrived: the answer comes as a whole, and long after.
        """
        self.advance(now)
        self._next += 1
        self._flows[self._next] = _Flow(size, timed, begins_at)
        return self._next

    def depart(self, now: Seconds, number: int) -> None:
        """The hand-off's prefill is done."""
        self.advance(now)
        flow = self._flows.get(number)
        if flow is not None and flow.departed_at is None:
            flow.departed_at = now
            if flow.began_at is None:
                self._begin(flow)

    def arrive(self, now: Seconds, number: int) -> None:
        """The first byte of the hand-off's answer is here."""
        self.advance(now)
        flow = self._flows.pop(number, None)
        if flow is None or not flow.timed or flow.departed_at is None:
            return
        self._waits.append(now - flow.departed_at)
        self.arrived += self._judge(flow, now)

    def drop(self, now: Seconds, number: int) -> None:
        """Forget a hand-off that will not arrive, or has."""
        self.advance(now)
        self._flows.pop(number, None)

    def waiting(self, now: Seconds) -> Crossed:
        """Sum up the hand-offs that should have arrived: they have had the link, and not yet all.

        Their bytes over their time is an upper bound of what the link carries.
        """
        self.advance(now)
        total = Crossed()
        for flow in self._flows.values():
            if flow.timed and flow.departed_at is not None:
                said = self._judge(flow, now)
                if said.waited > 0:
                    total += said
        return total

    def advance(self, now: Seconds) -> None:
        """Let time pass; hand-offs begin and are over when that was foreseen."""
        while (turn := self._next_turn()) is not None and turn[0] <= now:
            at, flow = turn
            self._pass(at)
            if flow.began_at is None:
                self._begin(flow)
            else:
                flow.over = True
        self._pass(now)

    def _next_turn(self) -> tuple[Seconds, _Flow] | None:
        """Return which hand-off begins or is over next without being told, and when."""
        together = self.crossing + self._others
        turns = [
            (turn, number, flow)
            for number, flow in self._flows.items()
            if (turn := self._turn(flow, together)) is not None
        ]
        if not turns:
            return None
        at, _, flow = min(turns, key=lambda each: each[:2])
        return at, flow

    def _turn(self, flow: _Flow, together: int) -> Seconds | None:
        if flow.began_at is None:
            return flow.begins_at
        if flow.timed or flow.over or flow.departed_at is None or self.rate <= 0:
            return None
        left = flow.size / self.rate - (self._share - flow.share)
        return self.at + max(0.0, left) * together

    def _pass(self, now: Seconds) -> None:
        if now > self.at:
            together = self.crossing + self._others
            if together:
                self._share += (now - self.at) / together
            self.at = now

    def _begin(self, flow: _Flow) -> None:
        flow.began_at, flow.share = self.at, self._share

    def _judge(self, flow: _Flow, now: Seconds) -> Crossed:
        """Return what a timed hand-off that has departed says if it arrives now."""
        assert flow.began_at is not None and flow.departed_at is not None  # noqa: S101, PT018 - it has departed
        own = max(self.answer, min(_LONGEST_ANSWER, *self._waits) if self._waits else 0.0)
        waited = now - flow.departed_at - max(self.patience, 2 * own)
        if waited < _SHORTEST_WAIT and flow.began_at < flow.departed_at:
            return Crossed(waited=waited, count=1, beside=float(flow.size))
        span = now - flow.began_at
        seconds = (self._share - flow.share) * max(0.0, span - own) / span if span > 0 else 0.0
        return Crossed(float(flow.size), seconds, waited, 1, int(waited >= _SHORTEST_WAIT))
