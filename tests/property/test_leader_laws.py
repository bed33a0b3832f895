"""Leaders under anything: renewals, sleeps, expiry, a store that is away or loses everything.

Processes believe by clocks of their own, and a write may be sent long after it was decided on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.tenures import LeaseRules
from router.domain.errors import NotLeading, StoreAway
from router.ports import Fence
from router.service.leadership import Leadership
from tests.fakes.clocks import FakeClock
from tests.fakes.leader_stores import LeaderStore

RULES = LeaseRules(within=3.0)
NAMES = "abc"

processes = st.sampled_from(NAMES)
steps = st.one_of(
    st.tuples(st.just("look"), processes),
    st.tuples(st.just("look"), processes),
    st.tuples(st.just("decide"), processes),
    st.tuples(st.just("send"), processes),
    st.tuples(st.just("leave"), processes),
    st.tuples(st.just("restart"), processes),
    st.tuples(st.just("pass"), st.sampled_from((0.001, 0.4, 0.5, 1.0, 1.99, 2.5, 60.0))),
    st.tuples(st.just("away"), st.booleans()),
    st.tuples(st.just("lose"), st.none()),
)


@dataclass
class World:
    """A store, its processes, and what each has decided to write but not sent yet."""

    clock: FakeClock = field(default_factory=lambda: FakeClock(1.0))
    ends: int = 0

    def __post_init__(self) -> None:
        self.store = LeaderStore(self.clock)
        self.pending: dict[str, list[Fence]] = {name: [] for name in NAMES}
        self.terms: list[int] = []
        self.owners: dict[str, str] = {}
        self.processes = {name: self.start(name) for name in NAMES}

    def start(self, name: str) -> Leadership:
        """A new process: it knows nothing, and nobody takes it for the old one."""
        self.ends += 1
        owner = f"{name}{self.ends}"
        seat = self.store.seat(owner, life=RULES.life)
        return Leadership(seat, name=name, clock=self.clock, rules=RULES)

    async def do(self, what: str, of: object) -> None:
        match what, of:
            case "look", str(name):
                await self.look(name)
            case "decide", str(name):
                if self.processes[name].leads:
                    fence = self.processes[name].fence
                    assert fence is not None
                    self.pending[name].append(fence)
            case "send", str(name):
                await self.send(name)
            case "leave", str(name):
                await self.processes[name].leave()
            case "restart", str(name):
                self.processes[name] = self.start(name)
            case "pass", float(seconds):
                self.clock.advance(seconds)
            case "away", bool(away):
                self.store.away = away
            case "lose", None:
                # The law holds from one millisecond of the store's clock to the next.
                self.store.lose_everything()
                self.clock.advance(0.001)

    async def look(self, name: str) -> None:
        process = self.processes[name]
        before = process.fence.term if process.leads and process.fence else 0
        await process.look()
        if process.leads and process.fence and process.fence.term != before:
            self.terms.append(process.fence.term)

    async def send(self, name: str) -> None:
        """Send what was decided on, the oldest first: by now it may be an older leader's."""
        if not self.pending[name]:
            return
        fence = self.pending[name].pop(0)
        try:
            kept = await self.store.read("solved")
            written = await self.store.write("solved", b"x", after=kept.version, fence=fence)
            assert written is not None
        except (NotLeading, StoreAway):
            return


async def run(story: list[tuple[str, object]]) -> World:
    world = World()
    for what, of in story:
        await world.do(what, of)
        believers = [name for name, each in world.processes.items() if each.leads]
        held = world.store.held()
        # Two may believe to lead only after a loss: then the store lets one of them write at most.
        assert len(believers) <= 1 or any(step[0] == "lose" for step in story)
        assert held is None or held.leader.term >= max(world.terms, default=0)
    return world


@given(st.lists(steps, max_size=60))
@settings(max_examples=200, deadline=None)
def test_a_term_has_one_writer_and_terms_rise(story: list[tuple[str, object]]) -> None:
    """What is accepted of a term is one process's, and in the order of terms."""
    world = asyncio.run(run(story))
    assert world.terms == sorted(set(world.terms))
    accepted = world.store.accepted
    assert [fence.term for fence in accepted] == sorted(fence.term for fence in accepted)
    owners: dict[int, set[str]] = {}
    for fence in accepted:
        owners.setdefault(fence.term, set()).add(fence.owner)
    assert all(len(names) == 1 for names in owners.values())


@given(st.lists(steps, max_size=40))
@settings(max_examples=60, deadline=None)
def test_whatever_happened_somebody_leads_soon(story: list[tuple[str, object]]) -> None:
    """Once the store answers, one of those that look leads within the time that was promised."""

    async def tell() -> list[bool]:
        world = await run(story)
        world.store.away = False
        for _ in range(7):
            world.clock.advance(RULES.pause)
            for name in NAMES:
                await world.processes[name].look()
        return [each.leads for each in world.processes.values()]

    assert asyncio.run(tell()).count(True) == 1
