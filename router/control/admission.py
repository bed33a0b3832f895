"""The queue before the decode slots: who is next when there are fewer slots than requests. Pure.

**Between tenants: start-time fair queueing** (Goyal, Vin, Cheng 1996) over slot grants. Each tenant
has a virtual time; the least one is next, and its time then moves on by 1 / weight. Two tenants
that wait all the time get grants in proportion to their weights, to within one grant each
(|g_i / w_i - g_j / w_j| <= 1 / w_i + 1 / w_j), in whatever interval. Deficit round robin gives the
same shares in bursts of a whole quantum; the few tenants that wait at one gateway do not need its
O(1). A tenant's time moves only at its grants, so a request that leaves the queue has cost it
nothing; and it never starts before the last grant's, so nobody saves anything up. The times are
kept for each model and priority: only those who compete are compared.

**Priorities** are vLLM's: the lower number goes first, whatever the shares. So that nobody starves,
whoever has waited for `patience` competes, by share, with the first.

**A full queue** belongs to all: a newcomer of a tenant with less than its share of the places takes
the place of the last one of the tenant with the most (McKenney 1990). One tenant's flood fills its
own places only.

**Lanes.** Requests of one lane wait for the same instances. A lane without a free slot holds up no
other one.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from router.domain.units import Seconds


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """How many may wait, and after which wait priorities count no more."""

    queue_size: int = 1024
    patience: Seconds = 30.0


class Lane(Struct, frozen=True, gc=False):
    """Which decode slots do: of a model, in the asked-for cluster, but not of the `excluded`."""

    model: str
    home: str | None = None
    excluded: frozenset[str] = frozenset()


@dataclass(eq=False, frozen=True, slots=True)
class Waiting:
    """One request in the queue. `number` is its place in the order of arrival."""

    tenant: str
    weight: float
    priority: int
    lane: Lane
    since: Seconds
    number: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A slot of `instance` for a request that waited."""

    waiting: Waiting
    instance: str


@dataclass(slots=True)
class _Line:
    """One tenant's requests in one lane, by priority, each in the order of arrival."""

    by_priority: dict[int, OrderedDict[Waiting, None]] = field(default_factory=dict)

    def add(self, waiting: Waiting, *, ahead: bool) -> None:
        places = self.by_priority.setdefault(waiting.priority, OrderedDict())
        places[waiting] = None
        if ahead:
            places.move_to_end(waiting, last=False)

    def remove(self, waiting: Waiting) -> bool:
        """Take a request out; False if it is not here. Leaves no empty priority behind."""
        places = self.by_priority.get(waiting.priority)
        if places is None or waiting not in places:
            return False
        del places[waiting]
        if not places:
            del self.by_priority[waiting.priority]
        return True

    def heads(self) -> Iterator[Waiting]:
        """Who is next here at each priority."""
        return (next(iter(places)) for places in self.by_priority.values())

    def last(self) -> Waiting:
        """Return who would wait longest: the latest of the least urgent."""
        return next(reversed(self.by_priority[max(self.by_priority)]))


class _Class(NamedTuple):
    """Those who compete by share: of one model, at one priority."""

    model: str
    priority: int


class _Turn(NamedTuple):
    """Where a request stands: the least is next."""

    priority: int
    start: float
    number: int


@dataclass(slots=True)
class _VirtualTime:
    """A class's time: the start of its last grant, and where each tenant's last grant ended."""

    present: float = 0.0
    finished: dict[str, float] = field(default_factory=dict)

    def start(self, tenant: str) -> float:
        """Return when the tenant's next grant would start."""
        return max(self.present, self.finished.get(tenant, 0.0))

    def charge(self, tenant: str, weight: float) -> None:
        """Move on by one grant."""
        self.present = self.start(tenant)
        self.finished[tenant] = self.present + 1.0 / weight


class FairQueue:
    """All that wait. Single-threaded; time is an argument.

    The virtual times are forgotten when nobody waits any more: without contention there is
    nothing to be fair about, and nothing is left of tenants that went.
    """

    def __init__(self, rules: AdmissionRules) -> None:
        self.rules = rules
        self._lines: dict[tuple[str, Lane], _Line] = {}
        self._times: dict[_Class, _VirtualTime] = {}
        self._depths: Counter[str] = Counter()
        self._size = 0
        self._arrivals = 0

    def __repr__(self) -> str:
        return f"<FairQueue {self._size}/{self.rules.queue_size} waiting>"

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Waiting]:
        """All that wait, in no order."""
        for line in self._lines.values():
            for places in line.by_priority.values():
                yield from places

    @property
    def lanes(self) -> set[Lane]:
        """The lanes in which somebody waits."""
        return {lane for _, lane in self._lines}

    def depth(self, tenant: str) -> int:
        """Return how many of a tenant's requests wait."""
        return self._depths[tenant]

    def join(
        self,
        tenant: str,
        weight: float,
        priority: int,
        lane: Lane,
        since: Seconds,
        *,
        ahead: bool = False,
    ) -> Waiting:
        """Let a request wait, even where the queue is full: see `overflow`.

        With `ahead` it goes before its tenant's others of its priority and lane.
        """
        self._arrivals += 1
        waiting = Waiting(tenant, weight, priority, lane, since, self._arrivals)
        self._lines.setdefault((tenant, lane), _Line()).add(waiting, ahead=ahead)
        self._depths[tenant] += 1
        self._size += 1
        return waiting

    def leave(self, waiting: Waiting) -> bool:
        """Free a request's place; False where it does not wait any more."""
        key = (waiting.tenant, waiting.lane)
        line = self._lines.get(key)
        if line is None or not line.remove(waiting):
            return False
        if not line.by_priority:
            del self._lines[key]
        self._size -= 1
        self._depths[waiting.tenant] -= 1
        if not self._depths[waiting.tenant]:
            del self._depths[waiting.tenant]
        if not self._size:
            self._times.clear()
        return True

    def overflow(self) -> list[Waiting]:
        """Take out, and return, those who are over the queue's size.

        They are of the tenants with the most places for their weight, the last of the least
        urgent; between equals, whoever came last.
        """
        dropped: list[Waiting] = []
        while self._size > self.rules.queue_size:
            victim = max(
                (line.last() for line in self._lines.values()),
                key=lambda last: (
                    self._depths[last.tenant] / last.weight,
                    last.priority,
                    last.number,
                ),
            )
            self.leave(victim)
            dropped.append(victim)
        return dropped

    def grant(self, now: Seconds, find: Callable[[Lane], str | None]) -> list[Grant]:
        """Take out, and return in order, those for whom there is a slot.

        `find` takes a slot that a lane may use and returns its instance, None where all are
        taken. Costs O(tenants x lanes) a grant.
        """
        granted: list[Grant] = []
        blocked: set[Lane] = set()
        while (chosen := self._next(now, blocked)) is not None:
            turn, waiting = chosen
            instance = find(waiting.lane)
            if instance is None:
                blocked.add(waiting.lane)
                continue
            rivals = _Class(waiting.lane.model, turn.priority)
            times = self._times.setdefault(rivals, _VirtualTime())
            times.charge(waiting.tenant, waiting.weight)
            self.leave(waiting)
            granted.append(Grant(waiting, instance))
        return granted

    def _next(self, now: Seconds, blocked: set[Lane]) -> tuple[_Turn, Waiting] | None:
        first: dict[str, int] = {}
        for (_, lane), line in self._lines.items():
            urgent = min(line.by_priority)
            first[lane.model] = min(urgent, first.get(lane.model, urgent))
        turns = (
            (self._turn(head, now, first[lane.model]), head)
            for (_, lane), line in self._lines.items()
            if lane not in blocked
            for head in line.heads()
        )
        return min(turns, key=lambda each: each[0], default=None)

    def _turn(self, head: Waiting, now: Seconds, first: int) -> _Turn:
        patient = now - head.since >= self.rules.patience
        priority = first if patient else head.priority
        times = self._times.get(_Class(head.lane.model, priority))
        return _Turn(priority, times.start(head.tenant) if times else 0.0, head.number)
