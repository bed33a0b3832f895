"""Thresholds that one process solves and all go by: leaders that change, stores that forget."""

from __future__ import annotations

import random
from datetime import datetime

import msgspec
import pytest

from kvmeta.types import CacheLayout
from router.control.links import RegimeBounds, Telemetry
from router.control.tenures import LeaseRules
from router.control.thresholds import StepRules
from router.domain.topology import Cluster, ClusterKind, Instance, Link, Role
from router.domain.units import BytesPerSecond, from_gbps
from router.ports import Clock
from router.service.deployments import LiveDeployments
from router.service.fleet import Fleet
from router.service.leadership import Leadership
from router.service.lengths import KeptLengths, OperatingLengths
from router.service.links import LinkBoard
from router.service.models import ServedModel
from router.service.solutions import encode_solutions
from router.service.solved_book import SOLVED, SolvedBook
from router.service.thresholds import SolvedThresholds, ThresholdLoop
from tests.fakes.clocks import FakeClock
from tests.fakes.leader_stores import LeaderStore
from tests.fakes.model_cases import case_study

CASE = case_study()
LEASE = LeaseRules(within=3.0)
RULES = StepRules(dwell=5.0)
MODEL = ServedModel(
    "m",
    CacheLayout("m@1", 64),
    "m",
    profiles={ClusterKind.PRFAAS: CASE.remotes[0].profile, ClusterKind.PD: CASE.pds[0].profile},
)


class Process:
    """One gateway's part in it. Its monotonic clock begins where it likes; walls agree."""

    def __init__(self, store: LeaderStore, name: str, *, booted: float) -> None:
        self.clock = Booted(store.clock, booted)
        clusters = [Cluster("east", ClusterKind.PD), Cluster("west", ClusterKind.PRFAAS)]
        instances = [
            Instance("p0", "east", "http://p0", Role.PREFILL),
            Instance("d0", "east", "http://d0", Role.DECODE),
            Instance("f0", "west", "http://f0", Role.PREFILL),
        ]
        fleet = Fleet(clusters, instances, clock=self.clock)
        for instance in instances:
            fleet.record_probe(instance.name, ok=True)
            fleet.record_probe(instance.name, ok=True)
        self.links = LinkBoard(
            [Link("west-east", "west", "east", from_gbps(100))],
            clock=self.clock,
            bounds=RegimeBounds(),
            budget=5.0,
        )
        self.lengths = OperatingLengths()
        self.solved = SolvedThresholds()
        seat = store.seat(name, life=LEASE.life)
        self.leadership = Leadership(seat, name=name, clock=self.clock, rules=LEASE)
        self.book = SolvedBook(store, self.leadership, self.clock)
        self.loop = ThresholdLoop(
            self.solved,
            book=self.book,
            leadership=self.leadership,
            fleet=fleet,
            deployments=LiveDeployments(fleet, self.links, self.clock),
            models=[MODEL],
            lengths=self.lengths,
            clock=self.clock,
            rules=RULES,
            period=1.0,
        )

    @property
    def tokens(self) -> int | None:
        """The threshold that is solved, as decisions here see it."""
        in_force = self.solved.of("m", "east")
        return None if in_force is None else in_force.tokens

    def serve(self, count: int = 200, *, seed: int = 1) -> None:
        """See prompts of the paper's lengths."""
        draw = random.Random(seed)
        for _ in range(count):
            length = min(128_000, max(128, int(draw.lognormvariate(9.9, 1.0))))
            self.lengths.of("m").note(uncached=length, computed=length, offloaded=length > 19_400)

    def throttle(self, gbps: float) -> None:
        """Be told that the link carries less."""
        now = self.clock.monotonic()
        told = Telemetry(BytesPerSecond(0.0), now, available=from_gbps(gbps))
        self.links.report("west-east", told)

    async def turn(self) -> None:
        """Renew, follow and solve, as the loops do all the time."""
        await self.leadership.look()
        await self.loop.refresh()
        await self.loop.look()


class Booted(FakeClock):
    """The world's clock, by a host that booted at another time."""

    def __init__(self, world: Clock, booted: float) -> None:
        super().__init__()
        self._world = world
        self._booted = booted

    def monotonic(self) -> float:
        return self._world.monotonic() + self._booted

    def now(self) -> datetime:
        return self._world.now()


@pytest.fixture
def world() -> FakeClock:
    return FakeClock(1000.0)


@pytest.fixture
def store(world: FakeClock) -> LeaderStore:
    return LeaderStore(world)


@pytest.fixture
def pair(store: LeaderStore) -> tuple[Process, Process]:
    return Process(store, "a", booted=0.0), Process(store, "b", booted=77_000.0)


async def lead(leader: Process, *others: Process) -> None:
    """Let one lead and solve, and the others follow."""
    leader.serve()
    for process in (leader, *others):
        await process.turn()


async def after_death(world: FakeClock, successor: Process) -> None:
    """Let the leader be silent for as long as it takes."""
    world.advance(LEASE.within)
    await successor.turn()
    assert successor.leadership.leads


async def test_only_the_leader_solves_and_everybody_goes_by_it(
    pair: tuple[Process, Process],
) -> None:
    """A follower has the same t, the same gain and the same capacities, however little it saw."""
    one, two = pair
    await lead(one, two)
    mine, theirs = one.solved.of("m", "east"), two.solved.of("m", "east")
    assert mine is not None
    assert theirs is not None
    assert (theirs.tokens, theirs.solved.gain) == (mine.tokens, mine.solved.gain)
    assert theirs.solved.at(10_000).rate == pytest.approx(mine.solved.at(10_000).rate)
    two.serve(seed=2)
    two.throttle(0.5)
    await two.turn()
    assert two.tokens == mine.tokens
    assert two.book.describe() == one.book.describe()
    assert one.book.describe()["by"] == "a"


async def test_a_new_leader_goes_on_where_the_old_one_died(
    world: FakeClock, pair: tuple[Process, Process]
) -> None:
    """T is unchanged by the change, though the new one saw no prompt; then it follows the link."""
    one, two = pair
    await lead(one, two)
    before = one.tokens
    await two.loop.begin()
    await after_death(world, two)
    assert two.tokens == before
    two.throttle(2)
    await two.turn()
    assert two.tokens is not None
    assert before is not None
    assert two.tokens > before
    await one.turn()
    assert not one.leadership.leads
    assert one.tokens == two.tokens


async def test_the_dwell_clock_is_carried_over(
    world: FakeClock, pair: tuple[Process, Process]
) -> None:
    """What was raised a moment ago under another leader is not lowered before its time."""
    one, two = pair
    one.throttle(2)
    await lead(one, two)
    one.throttle(1)
    await one.turn()
    raised = one.tokens
    await one.leadership.leave()
    two.lengths.of("m").restore(two.book.known.lengths["m"])
    two.throttle(100)
    await two.turn()
    assert two.leadership.leads
    assert two.tokens == raised
    world.advance(RULES.dwell - 0.5)
    two.throttle(100)
    await two.turn()
    assert two.tokens == raised
    world.advance(0.6)
    two.throttle(100)
    await two.leadership.look()
    await two.turn()
    assert raised is not None
    assert two.tokens == int(raised * (1 - RULES.relax_by))


async def test_a_leader_that_slept_changes_nothing(
    world: FakeClock, pair: tuple[Process, Process]
) -> None:
    """It wakes to a link that is narrow for it, and what it solves for that is nowhere in force."""
    one, two = pair
    await lead(one, two)
    await two.loop.begin()
    before = one.tokens
    world.advance(LEASE.within)
    one.throttle(0.5)
    await one.loop.look()
    assert one.tokens == before
    await two.turn()
    assert two.leadership.leads
    await one.loop.look()
    assert one.tokens == two.tokens == before


async def test_everything_is_known_again_after_a_restart_of_everything(
    world: FakeClock, store: LeaderStore, pair: tuple[Process, Process]
) -> None:
    """T from the first moment on, and the lengths to solve it anew when the link changes."""
    await lead(*pair)
    world.advance(3600.0)
    again = Process(store, "c", booted=5.0)
    assert again.tokens is None
    await again.loop.begin()
    assert again.tokens == pair[0].tokens
    await again.turn()
    assert again.tokens == pair[0].tokens
    again.throttle(2)
    await again.turn()
    assert again.tokens is not None
    assert pair[0].tokens is not None
    assert again.tokens > pair[0].tokens


async def test_a_store_that_is_away_or_empty_changes_nothing(
    world: FakeClock, store: LeaderStore, pair: tuple[Process, Process]
) -> None:
    """While it is away nobody moves t; what it has lost is written again, and is news to nobody."""
    one, two = pair
    await lead(one, two)
    before = one.tokens
    store.away = True
    world.advance(LEASE.within)
    one.throttle(2)
    for process in pair:
        await process.leadership.look()
        await process.loop.look()
        assert process.tokens == before
    store.away = False
    store.lose_everything()
    await two.turn()  # knows no lengths: it writes what it knows
    assert two.leadership.leads
    assert two.tokens == before
    await one.turn()
    assert one.tokens == before
    assert (await store.read(SOLVED)).version == 1
    new = Process(store, "c", booted=0.0)
    await new.loop.begin()
    assert new.tokens == before


async def test_an_older_document_is_kept_out(
    world: FakeClock, store: LeaderStore, pair: tuple[Process, Process]
) -> None:
    """A failover to a server that lagged brings nothing old into force."""
    one, two = pair
    await lead(one, two)
    old = await store.read(SOLVED)
    one.throttle(2)
    await one.turn()
    await two.turn()
    raised = one.tokens
    await store.write(SOLVED, old.document, after=(await store.read(SOLVED)).version)
    await two.turn()
    assert two.tokens == raised
    await one.turn()
    assert one.tokens == raised
    new = Process(store, "c", booted=0.0)
    await new.loop.begin()
    assert new.tokens == raised
    assert world.monotonic() == 1000.0


async def test_a_solution_without_lengths_is_left_out(
    store: LeaderStore, pair: tuple[Process, Process]
) -> None:
    """What another version wrote may not fit: what held before holds on."""
    one, two = pair
    await lead(one, two)
    before = two.tokens
    known = one.book.known
    odd = msgspec.structs.replace(
        known,
        number=known.number + 1,
        lengths={"m": KeptLengths(0, 0.0, {})},
        solutions=(msgspec.structs.replace(known.solutions[0], tokens=7),),
    )
    await store.write(SOLVED, encode_solutions(odd), after=1)
    await two.turn()
    assert two.tokens == before


async def test_what_cannot_be_read_is_kept_out(
    store: LeaderStore, pair: tuple[Process, Process]
) -> None:
    """A document of another version changes nothing here, and the next solve replaces it."""
    one, two = pair
    await lead(one, two)
    before = two.tokens
    await store.write(SOLVED, b"{", after=1)
    await two.turn()
    assert two.tokens == before
    await one.turn()
    await two.turn()
    assert one.tokens == two.tokens == before
    assert two.book.is_kept
