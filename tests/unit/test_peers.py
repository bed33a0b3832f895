"""What gateways tell each other, and how it counts in the fleet and on the links."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from router.control.links import RegimeBounds, Telemetry
from router.domain.errors import StoreAway
from router.domain.topology import Cluster, ClusterKind, Instance, Link, Role
from router.domain.units import Bytes, from_gbps
from router.service.fleet import Fleet
from router.service.lengths import OperatingLengths
from router.service.links import LinkBoard
from router.service.members import EngineReading
from router.service.peers import (
    FORGET_SECONDS,
    SOONEST_SECONDS,
    TELL_SECONDS,
    Peers,
    pause_after,
)
from tests.fakes.clocks import FakeClock


class Board:
    """A `ReportBoard` in memory, shared by the processes of a test."""

    def __init__(self) -> None:
        self.reports: dict[str, bytes] = {}
        self.away = False

    def seat(self, name: str) -> Seat:
        return Seat(self, name)


class Seat:
    """One process's way to the board."""

    def __init__(self, board: Board, name: str) -> None:
        self._board = board
        self._name = name

    async def exchange(self, report: bytes) -> Sequence[bytes]:
        if self._board.away:
            raise StoreAway("away")
        self._board.reports[self._name] = report
        if not report:
            del self._board.reports[self._name]
        return [each for name, each in self._board.reports.items() if name != self._name]


class Process:
    """One gateway's fleet and links, with clocks that differ from the others'."""

    def __init__(self, board: Board, name: str, *, start: float) -> None:
        self.clock = FakeClock(start)
        clusters = [Cluster("east", ClusterKind.PD), Cluster("west", ClusterKind.PRFAAS)]
        instances = [
            Instance("p0", "east", "http://p0", Role.PREFILL),
            Instance("d0", "east", "http://d0", Role.DECODE),
        ]
        self.fleet = Fleet(clusters, instances, clock=self.clock)
        for instance in instances:
            self.fleet.record_probe(instance.name, ok=True)
        self.links = LinkBoard(
            [Link("west-east", "west", "east", from_gbps(8))],
            clock=self.clock,
            bounds=RegimeBounds(),
            budget=1.0,
        )
        self.lengths = OperatingLengths()
        self.peers = Peers(
            self.fleet, self.links, self.lengths, board.seat(name), self.clock, me=name
        )

    def load(self, name: str) -> tuple[float, int | None, int]:
        """Seconds ahead, queue depth and requests in flight, as a decision sees them."""
        load = self.fleet.load(self.fleet.member(name), self.clock.monotonic(), 1.0)
        return load.ahead, load.queue_depth, load.inflight

    def scrape(self, name: str, *, waiting: int, running: int) -> None:
        reading = EngineReading(at=self.clock.monotonic(), waiting=waiting, running=running)
        self.fleet.record_probe(name, ok=True, reading=reading)


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def one(board: Board) -> Process:
    return Process(board, "one", start=5.0)


@pytest.fixture
def two(board: Board) -> Process:
    return Process(board, "two", start=900.0)


async def test_what_others_sent_counts_in_every_choice(one: Process, two: Process) -> None:
    """Their queue ahead, their prefills since the scrape and their legs, until they end."""
    two.scrape("p0", waiting=0, running=0)
    two.clock.advance(0.5)
    with one.fleet.prefill_leg("p0", 4.0), one.fleet.decode_due("d0"):
        await one.peers.exchange()
        await two.peers.exchange()
        assert two.load("p0") == (4.0, 1, 1)
        assert two.load("d0")[2] == 1
        two.clock.advance(1.5)
        assert two.load("p0")[0] == pytest.approx(2.5)
    await one.peers.exchange()
    await two.peers.exchange()
    assert (two.load("p0")[0], two.load("p0")[2], two.load("d0")[2]) == (0.0, 0, 0)


async def test_an_instance_works_off_the_queue_of_all_once(one: Process, two: Process) -> None:
    """Both count the same queue down a second a second, and begin the next leg when one ends."""

    async def tell() -> None:
        for process in (one, two, one):
            await process.peers.exchange()

    def pass_time(seconds: float) -> None:
        for process in (one, two):
            process.clock.advance(seconds)

    def ahead() -> list[float]:
        return [process.load("p0")[0] for process in (one, two)]

    first = ExitStack()
    with first, two.fleet.prefill_leg("p0", 3.0):
        first.enter_context(one.fleet.prefill_leg("p0", 4.0))
        await tell()
        assert ahead() == pytest.approx([7.0, 7.0])
        pass_time(2.0)
        await tell()
        assert ahead() == pytest.approx([5.0, 5.0])
        with one.fleet.prefill_leg("p0", 1.0):
            await tell()
            assert ahead() == pytest.approx([6.0, 6.0])
            pass_time(1.0)  # the first one ends a second early
            first.close()
            await tell()
            assert ahead() == pytest.approx([4.0, 4.0])


def test_telling_is_as_frequent_as_it_is_cheap() -> None:
    """Twenty times a second where little is told, four times where most is."""
    pauses = [pause_after(size) for size in (100, 100_000, 10_000_000)]
    assert pauses == [SOONEST_SECONDS, 0.1, TELL_SECONDS]


async def test_own_requests_are_not_heard_of(one: Process) -> None:
    """What one told oneself counts once."""
    with one.fleet.decode_leg("d0"):
        await one.peers.exchange()
        await one.peers.exchange()
        assert one.load("d0")[2] == 1


@pytest.mark.parametrize("scraped_first", [False, True])
async def test_what_a_scrape_saw_of_others_is_not_counted_twice(
    one: Process, two: Process, *, scraped_first: bool
) -> None:
    """Whether the engine or the other gateway tells of its legs first; strangers' remain."""
    with one.fleet.decode_leg("d0"), one.fleet.decode_leg("d0"):
        if scraped_first:
            two.scrape("d0", waiting=0, running=5)
            assert two.fleet.others_running(two.fleet.member("d0")) == 5
        await one.peers.exchange()
        await two.peers.exchange()
        if not scraped_first:
            two.scrape("d0", waiting=0, running=5)
        assert two.fleet.others_running(two.fleet.member("d0")) == 3
        assert two.load("d0")[2] == 3 + 2


async def test_bytes_are_booked_once_for_all(one: Process, two: Process) -> None:
    """The budget that is left is what nobody has booked."""
    whole = two.links.view("west-east").free
    booking = one.links.book("west-east", Bytes(whole - 10))
    two.links.book("west-east", Bytes(4))
    await one.peers.exchange()
    await two.peers.exchange()
    assert two.links.view("west-east").free == 6
    booking.release()
    await one.peers.exchange()
    await two.peers.exchange()
    assert two.links.view("west-east").free == whole - 4


async def test_telemetry_that_one_was_told_all_know_by_its_age(one: Process, two: Process) -> None:
    """Clocks differ, ages do not; nobody makes an old report young by telling it again."""
    telemetry = Telemetry(from_gbps(3), one.clock.monotonic() - 1.0, available=from_gbps(4))
    one.links.report("west-east", telemetry)
    for _ in range(5):
        await one.peers.exchange()
        await two.peers.exchange()
        one.clock.advance(1.0)
        two.clock.advance(1.0)
    view = two.links.view("west-east")
    assert view.utilization == pytest.approx(0.75)
    assert view.telemetry_age == pytest.approx(6.0)
    assert not two.links.reported
    two.links.report("west-east", Telemetry(from_gbps(1), two.clock.monotonic()))
    await one.peers.exchange()
    await two.peers.exchange()
    assert two.links.view("west-east").telemetry_age == 0.0


async def test_what_hand_offs_say_of_a_link_adds_up(one: Process, two: Process) -> None:
    """Each share of the link is told; what one did before it was heard of first counts nowhere."""
    size = Bytes(10**9)
    for process in (one, two):
        process.links.book("west-east", size, timed=True).arrive()
        await process.peers.exchange()
    begun = {}
    for process in (one, two):
        begun[process] = process.links.book("west-east", size, timed=True)
        begun[process].depart()
    for _ in range(16):
        for process in (one, two):
            await process.peers.exchange()
            process.clock.advance(0.25)
            process.links.look()
    for process in (one, two):
        # Two of 1 GB, each with half of the link for four seconds: it carries at most 0.5 GB/s.
        assert process.links.state("west-east").inferred is not None
        assert process.links.view("west-east").rate == pytest.approx(0.5e9, rel=0.1)
        begun[process].arrive()
        begun[process].release()


async def test_who_leaves_and_who_is_not_heard_of_is_forgotten(
    board: Board, one: Process, two: Process
) -> None:
    """At once, or a while after the store went away; what one does oneself stays."""
    with one.fleet.decode_leg("d0"), two.fleet.decode_leg("d0"):
        await one.peers.exchange()
        await two.peers.exchange()
        await one.peers.leave()
        assert two.load("d0")[2] == 2
        await two.peers.exchange()
        assert two.load("d0")[2] == 1
        await one.peers.exchange()
        await two.peers.exchange()
        board.away = True
        await two.peers.exchange()
        assert two.load("d0")[2] == 2
        two.clock.advance(FORGET_SECONDS + 0.1)
        await two.peers.exchange()
        assert two.load("d0")[2] == 1
        await two.peers.leave()


async def test_what_is_no_report_is_left_out(board: Board, one: Process, two: Process) -> None:
    """A report of another version costs what it tells, and nothing else."""
    board.reports["strange"] = b'{"instances": 7}'
    newer = b'{"instances":{"d0":[1,1,1,0.5,[],0,"new"],"x9":[1,1,1,0,[]]},"links":{"moon":5},'
    board.reports["newer"] = newer + b'"telemetry":{},"mood":"fine"}'
    with one.fleet.decode_leg("d0"):
        await one.peers.exchange()
        await two.peers.exchange()
        assert two.load("d0")[2] == 2


async def test_prompts_that_others_saw_are_remembered_here(board: Board) -> None:
    """Each once, and also after the one who saw them is gone, or the store is away for long."""
    one, two = Process(board, "one", start=0.0), Process(board, "two", start=50.0)
    for process in (one, two, one):
        await process.peers.exchange()
    for _ in range(60):
        one.lengths.of("m").note(uncached=100, computed=100, offloaded=False)
        two.lengths.of("m").note(uncached=100, computed=100, offloaded=True)
    for process in (one, two, one, two):
        await process.peers.exchange()
    assert one.lengths.of("m").seen == two.lengths.of("m").seen == 120
    await two.peers.leave()
    board.away = True
    one.clock.advance(FORGET_SECONDS + 1)
    await one.peers.exchange()
    board.away = False
    await one.peers.exchange()
    assert one.lengths.of("m").seen == 120
