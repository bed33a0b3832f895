"""Places of prefill instances: how many prompts each may be computing, and who is to be next.

A *place* is an instance's time for one prefill, and the link's bytes that it will need, from the
moment at which a prompt is bound to the instance until its leg has begun and counts for itself.

How many prefills of ours an instance may have at once says a `SlotSource`, as for decode slots:
alone it is all of them, over a store a share of them (ADR 17).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

from router.control.slack import Pending
from router.domain.topology import ClusterKind, Role
from router.service.admission import SlotSource
from router.service.fleet import Fleet
from router.service.links import LinkBooking
from router.service.members import Member
from router.service.slot_shares import Need


class Place:
    """One place, until it is released. `home` is the PD cluster where the prompt will decode."""

    def __init__(
        self, places: PrefillPlaces, instance: str, home: str, booking: LinkBooking | None
    ) -> None:
        self._places = places
        self._booking = booking
        self._held = True
        self.instance = instance
        self.home = home

    def __repr__(self) -> str:
        return f"<Place at {self.instance}{'' if self._held else ', released'}>"

    def release(self) -> None:
        """Give the place and the bytes back. Idempotent."""
        if self._held:
            self._held = False
            if self._booking is not None:
                self._booking.release()
            self._places.give_back(self.instance)


class PrefillPlaces:
    """The places of all prefill instances. Single-threaded: owned by one event loop."""

    def __init__(self, fleet: Fleet, source: SlotSource, *, concurrency: int) -> None:
        """`concurrency` are the prefills at once of an instance, for each data-parallel rank."""
        self._fleet = fleet
        self._source = source
        self._taken: Counter[str] = Counter()
        self._watchers: list[Callable[[], None]] = []
        self.concurrency = concurrency
        fleet.watch_prefills(self._came_back)

    def __repr__(self) -> str:
        return f"<PrefillPlaces {dict(self._taken)}>"

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` whenever an instance may take one more."""
        self._watchers.append(watcher)

    def servers(self) -> list[Member]:
        """Return the live prefill instances: PrfaaS clusters before the homes, as simulated."""
        ready = [
            member
            for member in self._fleet.members
            if member.instance.role is Role.PREFILL and self._fleet.is_ready(member)
        ]
        return sorted(ready, key=self._is_at_home)

    def _is_at_home(self, member: Member) -> bool:
        return self._fleet.kind_of(member.instance.cluster) is ClusterKind.PD

    def is_free(self, member: Member) -> bool:
        """Whether one more of our prompts may be bound to an instance now."""
        return self._source.room(member, self._limit(member), self.held(member)) > 0

    def held(self, member: Member) -> int:
        """Return our prefills at an instance: those that run, and those that are about to."""
        return len(member.prefills) + self._taken[member.instance.name]

    def take(self, instance: str, home: str, booking: LinkBooking | None) -> Place:
        """Return one more place of an instance; `booking` are the bytes that it will need."""
        self._taken[instance] += 1
        return Place(self, instance, home, booking)

    def give_back(self, instance: str) -> None:
        """Count one place less."""
        self._taken[instance] -= 1
        if not self._taken[instance]:
            del self._taken[instance]
        self._came_back(instance)

    def short(self) -> None:
        """Tell that a prompt found no place and waits."""
        self._source.short()

    def needs(
        self, waiting: Iterable[Pending], has_use: Callable[[Member], bool]
    ) -> dict[str, Need]:
        """Return how the places of every live instance stand.

        Who waits for a cluster counts at each of its instances for his part. An instance for which
        nobody waits is wanted where it `has_use` for what it would steal: a place that is held and
        not used is one that another gateway lacks.
        """
        lanes = Counter(pending.lane for pending in waiting)
        servers = self.servers()
        sizes = Counter(member.instance.cluster for member in servers)
        return {
            name: Need(
                limit=self._limit(member),
                held=self.held(member),
                waiting=math.ceil(lanes[name] + lanes[cluster] / sizes[cluster]) or has_use(member),
                foreign=self._fleet.others_running(member),
            )
            for member in servers
            for name, cluster in [(member.instance.name, member.instance.cluster)]
        }

    def _limit(self, member: Member) -> int:
        return self.concurrency * member.instance.ranks

    def _came_back(self, instance: str) -> None:
        self._source.came_back(instance)
        for watcher in self._watchers:
            watcher()
