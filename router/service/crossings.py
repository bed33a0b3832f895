"""The hand-offs of all gateways on their way over each link, and what they say of it.

A gateway sees its own hand-offs and is told sums by the others (`peers`). Bytes and the time of the
link add up (`control.crossings`), so every gateway infers the same bandwidth from the same sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from router.control.bandwidth import Inference, step_inference
from router.control.crossings import Crossed, Crossings
from router.control.links import Inferred
from router.domain.topology import Link
from router.domain.units import Bytes, BytesPerSecond, Seconds
from router.ports import Clock

_NEWS: Final = 0.05
"""What the latest hand-off at home counts for: the mean is about that of the last twenty."""

_DEVIATIONS: Final = 3.0
"""Mean deviations over the mean that are usual; TCP waits four before it repeats (RFC 6298)."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """How long a cluster's decode instances need: the mean, and the mean deviation from it."""

    mean: Seconds
    deviation: Seconds

    def follow(self, waited: Seconds) -> _Answers:
        error = waited - self.mean
        return _Answers(
            self.mean + _NEWS * error, self.deviation + _NEWS * (abs(error) - self.deviation)
        )


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one gateway tells of a link: how many cross now, what arrived ever, what waits."""

    crossing: int
    arrived: Crossed
    waiting: Crossed


@dataclass(slots=True)
class _Road:
    """One link. `heard` and `peers_waiting` are the other gateways' sums."""

    target: str
    own: Crossings
    inference: Inference
    heard: Crossed = field(default_factory=Crossed)
    peers_waiting: Crossed = field(default_factory=Crossed)
    told: dict[str, Crossed] = field(default_factory=dict)


class CrossingBook:
    """Every link's hand-offs. Single-threaded: owned by one event loop.

    With `overlap` KV travels while it is computed, else once the prefill is done.
    """

    def __init__(self, clock: Clock, *, overlap: bool = False) -> None:
        self.overlap = overlap
        self._clock = clock
        self._roads: dict[str, _Road] = {}
        self._answers: dict[str, _Answers] = {}

    def follow(self, links: Mapping[str, Link]) -> None:
        """Know these links: of one that is new nothing is known, one that is gone is forgotten."""
        now = self._clock.monotonic()
        self._roads = {
            name: self._roads.get(name)
            or _Road(link.target, Crossings(now, link.capacity), Inference(now))
            for name, link in links.items()
        }

    def forget(self, name: str) -> None:
        """Know nothing of a link: it is another one now."""
        self._roads.pop(name, None)

    def book(self, name: str, size: Bytes, begins_in: Seconds, *, timed: bool) -> Crossing | None:
        """Follow a hand-off whose prefill should begin in so many seconds.

        Without `timed` its answer does not tell when it has arrived. None for a link that is gone.
        """
        road = self._roads.get(name)
        if road is None:
            return None
        now = self._clock.monotonic()
        begins_at = now + begins_in if self.overlap else None
        return Crossing(road.own, self._clock, road.own.book(now, size, begins_at, timed=timed))

    def note_answer(self, cluster: str, waited: Seconds) -> None:
        """Learn how long a decode instance let a hand-off wait that crossed no link."""
        known = self._answers.get(cluster)
        self._answers[cluster] = (
            _Answers(waited, waited / 2) if known is None else known.follow(waited)
        )

    def infer(
        self, name: str, nominal: BytesPerSecond, transfers: Seconds | None = None
    ) -> Inferred | None:
        """Return what the hand-offs say of a link now; None where nothing speaks against it.

        `transfers` are the seconds of all transfers into the link's target, as engines tell.
        """
        road, now = self._roads[name], self._clock.monotonic()
        answers = self._answers.get(road.target)
        if answers is not None:
            road.own.answer = answers.mean
            road.own.patience = answers.mean + _DEVIATIONS * answers.deviation
        arrived = road.own.arrived + road.heard
        waiting = road.own.waiting(now) + road.peers_waiting
        road.inference = step_inference(road.inference, arrived, waiting, now, nominal, transfers)
        rate = road.inference.rate
        road.own.rate = nominal if rate is None else rate
        return None if rate is None else Inferred(rate, road.inference.measured_at)

    # -- other gateways

    def tell(self) -> Mapping[str, Traffic]:
        """Return what there is to tell of each link that was used."""
        now = self._clock.monotonic()
        told = {}
        for name, road in self._roads.items():
            waiting, crossing = road.own.waiting(now), road.own.crossing
            if crossing or road.own.arrived.count:
                told[name] = Traffic(crossing, road.own.arrived, waiting)
        return told

    def hear(self, told: Mapping[str, Mapping[str, Traffic]]) -> None:
        """Count what others told, by their names. Of a new one, only what arrives from now on."""
        now = self._clock.monotonic()
        crossing: dict[str, int] = defaultdict(int)
        waiting: dict[str, Crossed] = defaultdict(Crossed)
        for teller, links in told.items():
            for name, traffic in links.items():
                road = self._roads.get(name)
                if road is not None:
                    before = road.told.get(teller, traffic.arrived)
                    road.heard += traffic.arrived - before
                    road.told[teller] = traffic.arrived
                    crossing[name] += traffic.crossing
                    waiting[name] += traffic.waiting
        for name, road in self._roads.items():
            road.own.hear(now, crossing[name])
            road.peers_waiting = waiting[name]
            road.told = {teller: sums for teller, sums in road.told.items() if teller in told}


class Crossing:
    """One hand-off on its way over a link."""

    __slots__ = ("_clock", "_crossings", "_number")

    def __init__(self, crossings: Crossings, clock: Clock, number: int) -> None:
        self._crossings = crossings
        self._clock = clock
        self._number = number

    def depart(self) -> None:
        """Its prefill is done."""
        self._crossings.depart(self._clock.monotonic(), self._number)

    def arrive(self) -> None:
        """The first byte of its answer is here."""
        self._crossings.arrive(self._clock.monotonic(), self._number)

    def drop(self) -> None:
        """It is no longer on its way. Idempotent."""
        self._crossings.drop(self._clock.monotonic(), self._number)


class HomeHandoff:
    """A hand-off within a cluster: it tells how long decode instances need by themselves."""

    __slots__ = ("_book", "_clock", "_cluster", "_departed_at", "_timed")

    def __init__(self, book: CrossingBook, clock: Clock, cluster: str, *, timed: bool) -> None:
        self._book = book
        self._clock = clock
        self._cluster = cluster
        self._timed = timed
        self._departed_at: Seconds | None = None

    def depart(self) -> None:
        """Its prefill is done."""
        if self._timed:
            self._departed_at = self._clock.monotonic()

    def arrive(self) -> None:
        """The first byte of its answer is here."""
        departed, self._departed_at = self._departed_at, None
        if departed is not None:
            self._book.note_answer(self._cluster, self._clock.monotonic() - departed)

    def release(self) -> None:
        """Nothing was reserved."""
