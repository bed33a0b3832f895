"""Measures a host's egress about once a second and tells every gateway of it.

Only the latest measurement counts, so each gateway has room for one that waits: a gateway that is
away costs nothing, and hears the newest as soon as it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from router.control.egress import Egress, HostReading, compare
from router.domain.units import BytesPerSecond, Seconds, to_gbps
from router.ports import Clock

_LOG = logging.getLogger(__name__)

_LONGEST_PAUSE: Final[Seconds] = 10.0
"""Between two tries of a gateway that fails: as old as telemetry may be, by default."""


_ANY_RATE: Final = BytesPerSecond(1e14)
"""Faster than any interface."""


class HostCounters(Protocol):
    """Where a host's counters are read."""

    def read(self, at: Seconds) -> HostReading:
        """Return the counters now. Costs a millisecond; raises OSError for an interface gone."""
        ...


class NotTold(Exception):
    """A gateway did not take a measurement; the message says why, in one line."""


class GatewayDoor(Protocol):
    """Where one gateway takes telemetry."""

    @property
    def url(self) -> str:
        """Its address."""
        ...

    async def tell(self, document: Mapping[str, object]) -> None:
        """Tell one measurement; bounded in time. Raises NotTold."""
        ...


@dataclass(frozen=True, slots=True)
class AgentRules:
    """How an agent works.

    `most` is the greatest rate that the interfaces can have, `available` what the host may send at
    most, as whoever shapes it says; None where nobody does.
    """

    interval: Seconds = 1.0
    most: BytesPerSecond = _ANY_RATE
    available: BytesPerSecond | None = None


class LinkAgent:
    """One host's agent. Single-threaded: owned by one event loop."""

    def __init__(
        self,
        counters: HostCounters,
        doors: Sequence[GatewayDoor],
        *,
        clock: Clock,
        rules: AgentRules,
    ) -> None:
        self._counters = counters
        self._doors = [_Door(door) for door in doors]
        self._clock = clock
        self._rules = rules
        self._unread = False

    async def run(self, told: Callable[[Mapping[str, object]], None]) -> None:
        """Measure and tell until cancelled; `told` sees each measurement."""
        async with asyncio.TaskGroup() as tasks:
            for door in self._doors:
                tasks.create_task(door.run(self._rules.interval))
            before: HostReading | None = None
            while True:
                before, document = self._step(before)
                if document is not None:
                    told(document)
                    for door in self._doors:
                        door.put(document)
                await asyncio.sleep(self._rules.interval)

    async def measure(self) -> Mapping[str, object] | None:
        """Measure once, over one interval; None where the counters do not tell. Raises OSError."""
        before = self._counters.read(self._clock.monotonic())
        await asyncio.sleep(self._rules.interval)
        return self._compare(before, self._counters.read(self._clock.monotonic()))

    async def tell(self, document: Mapping[str, object]) -> Mapping[str, str | None]:
        """Tell every gateway once; return what was wrong, by address, None where nothing was."""
        answers = await asyncio.gather(*(door.tell(document) for door in self._doors))
        return {door.url: said for door, said in zip(self._doors, answers, strict=True)}

    def _step(
        self, before: HostReading | None
    ) -> tuple[HostReading | None, Mapping[str, object] | None]:
        try:
            after = self._counters.read(self._clock.monotonic())
        except OSError as error:
            if not self._unread:
                _LOG.warning("the counters cannot be read: %s", error)
            self._unread = True
            return None, None
        if self._unread:
            _LOG.info("the counters can be read again")
            self._unread = False
        return after, None if before is None else self._compare(before, after)

    def _compare(self, before: HostReading, after: HostReading) -> Mapping[str, object] | None:
        egress = compare(before, after, self._rules.most)
        if egress is None:
            _LOG.info("a counter began anew: this interval is unknown")
            return None
        age = self._clock.monotonic() - after.at
        return form_report(
            egress, self._rules.available, self._clock.now() - timedelta(seconds=age)
        )


def form_report(
    egress: Egress, available: BytesPerSecond | None, observed_at: datetime
) -> Mapping[str, object]:
    """Return the body for `POST links/{name}/telemetry`; what is unknown is left out."""
    document: dict[str, object] = {
        "egress_gbps": to_gbps(egress.rate),
        "observed_at": observed_at.isoformat(),
    }
    if available is not None:
        document["available_gbps"] = to_gbps(available)
    if egress.retransmit_ratio is not None:
        document["retransmit_ratio"] = egress.retransmit_ratio
    if egress.rtt is not None:
        document["rtt_ms"] = egress.rtt * 1000
    return document


class _Door:
    """One gateway, and the measurement that it has not heard of yet."""

    def __init__(self, door: GatewayDoor) -> None:
        self._door = door
        self._latest: Mapping[str, object] | None = None
        self._there = asyncio.Event()
        self._failing: str | None = None

    @property
    def url(self) -> str:
        return self._door.url

    def put(self, document: Mapping[str, object]) -> None:
        """Have the latest measurement told, in place of one that waits."""
        self._latest = document
        self._there.set()

    async def run(self, interval: Seconds) -> None:
        """Tell what is put, as soon as the gateway takes it; wait twice as long after a failure."""
        pause = interval
        while True:
            await self._there.wait()
            self._there.clear()
            if self._latest is not None and await self.tell(self._latest) is not None:
                await asyncio.sleep(pause)
                pause = min(2 * pause, max(interval, _LONGEST_PAUSE))
            else:
                pause = interval

    async def tell(self, document: Mapping[str, object]) -> str | None:
        """Tell one measurement; return, and log where it is new, what went wrong."""
        try:
            await self._door.tell(document)
        except NotTold as error:
            said = str(error)
            if said != self._failing:
                _LOG.warning("%s was not told: %s", self.url, said)
            self._failing = said
            return said
        if self._failing is not None:
            _LOG.info("%s is told again", self.url)
            self._failing = None
        return None
