"""What gateways of one deployment tell each other, many times a second: how busy they make it.

Each tells its legs at every instance, the prefill time that it expects to be queued there, the
bytes that it has booked on every link, what its hand-offs there say of it, the telemetry that was
reported to it, and the lengths of the prompts that it saw. The others count that in: the choice of
instances, the queue limit, the link budget and the inferred bandwidth are then about everybody's
dispatches, a moment old (`pause_after`), and not about one's own alone; thresholds are solved for
everybody's prompts. Reports age out with their
lease, so a process that was killed is forgotten; without a store nobody is heard of and each goes
by its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from router.control.crossings import Crossed
from router.control.links import Telemetry
from router.domain.errors import StoreAway
from router.domain.units import NO_BYTES, Bytes, BytesPerSecond, Seconds
from router.ports import Clock
from router.service.crossings import Traffic
from router.service.fleet import Fleet
from router.service.lengths import OperatingLengths, ToldLengths
from router.service.links import LinkBoard
from router.service.members import Member, PeerLoad

_LOG = logging.getLogger(__name__)

TELL_SECONDS: Final[Seconds] = 0.25
"""A quarter of the probes' interval: what peers sent is known well before engines tell of it."""

SOONEST_SECONDS: Final[Seconds] = 0.05
"""A tenth of the shortest profiled prefill (0.44 s). Until they hear of each other, gateways send
to the same idle instance: told every 0.25 s, each counting down its own prefills alone, two of them
had a mean TTFT an eighth higher at 80 % of what the case study sustains (`make live`, scene p)."""

_BYTES_PER_SECOND: Final = 1_000_000
"""Reports told and heard by a process: some percent of a processor. Where many processes tell of
hundreds of instances, they do so less often."""

FORGET_SECONDS: Final[Seconds] = 3.0
"""After so long without an answer of the store nothing is known of the others."""

_MOST_SENT: Final = 64
"""Prefills whose age is told for each instance: well over any queue limit."""


class ReportBoard(Protocol):
    """Where processes leave reports for each other; each call is one round trip."""

    async def exchange(self, report: bytes) -> Sequence[bytes]:
        """Leave a report in place of one's last, and return the others' that still count.

        An empty one takes back the last. Raises StoreAway.
        """
        ...


class ToldLoad(Struct, frozen=True, array_like=True):
    """One process's load at one instance, see `PeerLoad`. `ages` are of its prefills in flight.

    An instance computes the prompts of all gateways in turn. So they tell what theirs take from
    beginning to end, and each counts down the queue of all: what each had left by itself would
    shrink twice as fast as the instance works.
    """

    promised: int
    inflight: int
    peak: int
    work: Seconds
    ages: tuple[Seconds, ...] = ()
    ended: int = 0


class ToldTelemetry(Struct, frozen=True, array_like=True):
    """One link's telemetry, by its age, since clocks differ."""

    age: Seconds
    egress: float
    available: float | None
    loss_ratio: float
    retransmit_ratio: float
    rtt: Seconds | None


class ToldCrossed(Struct, frozen=True, array_like=True):
    """Sums over hand-offs (`control.crossings.Crossed`)."""

    size: float
    link_seconds: Seconds
    waited: Seconds
    count: int
    late: int = 0
    beside: float = 0.0


class ToldTraffic(Struct, frozen=True, array_like=True):
    """One process's hand-offs on one link."""

    crossing: int
    arrived: ToldCrossed
    waiting: ToldCrossed


class Report(Struct, frozen=True):
    """What one process tells; of what it does not use it tells nothing.

    `process` is its name: sums since its beginning are compared with those that it told before.
    """

    instances: dict[str, ToldLoad]
    links: dict[str, int]
    telemetry: dict[str, ToldTelemetry]
    process: str = ""
    lengths: dict[str, ToldLengths] = {}
    traffic: dict[str, ToldTraffic] = {}


_DECODER: Final = msgspec.json.Decoder(Report)


class Peers:
    """Tells of this process and hears of the others. Single-threaded: owned by one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        links: LinkBoard,
        lengths: OperatingLengths,
        board: ReportBoard,
        clock: Clock,
        *,
        me: str,
    ) -> None:
        """`me` is this process: new with every start, since counts begin anew."""
        self._me = me
        self._fleet = fleet
        self._links = links
        self._lengths = lengths
        self._board = board
        self._clock = clock
        self._heard_at = clock.monotonic()

    async def run(self) -> None:
        """Tell and hear until cancelled."""
        while True:
            size = await self.exchange()
            await asyncio.sleep(pause_after(size))

    async def exchange(self) -> int:
        """Tell and hear once; after a while without an answer, forget the others.

        Returns how many bytes that were.
        """
        now = self._clock.monotonic()
        report = self.report()
        try:
            reports = await self._board.exchange(report)
        except StoreAway:
            if now - self._heard_at > FORGET_SECONDS:
                self._forget()
            return len(report)
        self._heard_at = now
        self.hear(reports)
        return len(report) + sum(map(len, reports))

    async def leave(self) -> None:
        """Take back what was told; where the store does not answer it ages out."""
        try:
            await self._board.exchange(b"")
        except StoreAway:
            return

    def report(self) -> bytes:
        """Return what there is to tell."""
        now = self._clock.monotonic()
        return msgspec.json.encode(
            Report(
                instances={
                    member.instance.name: _tell(member, now)
                    for member in self._fleet.members
                    if member.promised or member.peak
                },
                links={
                    state.link.name: int(state.booked)
                    for state in self._links.states
                    if state.booked
                },
                telemetry={
                    name: _tell_telemetry(telemetry, now)
                    for name, telemetry in self._links.reported.items()
                },
                process=self._me,
                lengths=self._lengths.tell(),
                traffic={
                    name: _tell_traffic(traffic)
                    for name, traffic in self._links.crossings.tell().items()
                },
            )
        )

    def hear(self, reports: Iterable[bytes]) -> None:
        """Count what the others told, and only that; what is no report is left out."""
        now = self._clock.monotonic()
        loads: dict[str, list[ToldLoad]] = defaultdict(list)
        booked: dict[str, Bytes] = defaultdict(lambda: NO_BYTES)
        telemetry: list[tuple[str, Telemetry]] = []
        lengths: dict[str, dict[str, ToldLengths]] = {}
        traffic: dict[str, dict[str, Traffic]] = {}
        for text in reports:
            try:
                report = _DECODER.decode(text)
            except msgspec.DecodeError:
                _LOG.warning("a gateway's report cannot be read: is it of another version?")
                continue
            for name, load in report.instances.items():
                loads[name].append(load)
            for name, size in report.links.items():
                booked[name] = Bytes(booked[name] + size)
            if report.process:
                lengths[report.process] = report.lengths
                traffic[report.process] = {
                    name: _hear_traffic(told) for name, told in report.traffic.items()
                }
            telemetry += [(name, _hear_telemetry(t, now)) for name, t in report.telemetry.items()]
        self._fleet.hear_of_peers({name: _sum(each, now) for name, each in loads.items()})
        self._links.hear_of_peers(booked, telemetry)
        self._links.crossings.hear(traffic)
        self._lengths.hear(lengths)

    def _forget(self) -> None:
        """Count nobody's load but one's own; lengths are of the past, and stay."""
        self._fleet.hear_of_peers({})
        self._links.hear_of_peers({}, [])
        self._links.crossings.hear({})


def pause_after(size: int) -> Seconds:
    """Return how long to wait after an exchange of `size` bytes."""
    return min(TELL_SECONDS, max(SOONEST_SECONDS, size / _BYTES_PER_SECOND))


def _tell(member: Member, now: Seconds) -> ToldLoad:
    return ToldLoad(
        promised=member.promised,
        inflight=member.inflight,
        peak=max(member.peak, member.inflight),
        work=member.work,
        ages=tuple(now - leg.sent_at for leg in member.prefills[-_MOST_SENT:]),
        ended=member.ended,
    )


def _sum(loads: Sequence[ToldLoad], now: Seconds) -> PeerLoad:
    return PeerLoad(
        at=now,
        promised=sum(load.promised for load in loads),
        inflight=sum(load.inflight for load in loads),
        peak=sum(load.peak for load in loads),
        work=sum(load.work for load in loads),
        ended=sum(load.ended for load in loads),
        sent=tuple(now - age for load in loads for age in load.ages),
    )


def _tell_traffic(traffic: Traffic) -> ToldTraffic:
    return ToldTraffic(
        traffic.crossing, _tell_crossed(traffic.arrived), _tell_crossed(traffic.waiting)
    )


def _tell_crossed(sums: Crossed) -> ToldCrossed:
    return ToldCrossed(
        sums.size, sums.link_seconds, sums.waited, sums.count, sums.late, sums.beside
    )


def _hear_traffic(told: ToldTraffic) -> Traffic:
    return Traffic(told.crossing, _hear_crossed(told.arrived), _hear_crossed(told.waiting))


def _hear_crossed(told: ToldCrossed) -> Crossed:
    return Crossed(told.size, told.link_seconds, told.waited, told.count, told.late, told.beside)


def _tell_telemetry(telemetry: Telemetry, now: Seconds) -> ToldTelemetry:
    return ToldTelemetry(
        age=now - telemetry.observed_at,
        egress=telemetry.egress,
        available=telemetry.available,
        loss_ratio=telemetry.loss_ratio,
        retransmit_ratio=telemetry.retransmit_ratio,
        rtt=telemetry.rtt,
    )


def _hear_telemetry(told: ToldTelemetry, now: Seconds) -> Telemetry:
    return Telemetry(
        egress=BytesPerSecond(told.egress),
        observed_at=now - told.age,
        available=None if told.available is None else BytesPerSecond(told.available),
        loss_ratio=told.loss_ratio,
        retransmit_ratio=told.retransmit_ratio,
        rtt=told.rtt,
    )
