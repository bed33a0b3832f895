"""Decode slots under any course of requests, departures, failures and recoveries."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from router.domain.errors import NobodyAlive, Overloaded
from router.domain.topology import InstanceState
from router.service.admission import Slot
from router.service.tenants import Tenant
from tests.fakes.decode_slots import TINY, Scene, settled

SLOTS, QUEUE = 2, 6
TENANTS = [Tenant("a"), Tenant("b", weight=3.0)]
NAMES = ("d0", "d1", "e0")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from((0, 1))),
        st.tuples(st.just("ask"), st.sampled_from((0, 1))),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("move"), st.integers(0, 30)),
        st.tuples(st.just("drain"), st.integers(0, 2)),
        st.tuples(st.just("revive"), st.integers(0, 2)),
        st.tuples(st.just("die"), st.integers(0, 2)),
    ),
    max_size=50,
)


class Course:
    """Plays steps; checks after each that slots and requests add up."""

    def __init__(self) -> None:
        self.scene = Scene(SLOTS, names=" ".join(NAMES), size=QUEUE)
        self.admission = self.scene.admission
        self.asked: list[asyncio.Task[Slot]] = []
        self.held: list[Slot] = []
        self.ended = 0
        self.total = 0

    async def play(self, step: tuple[str, int]) -> None:
        kind, which = step
        fleet = self.scene.fleet
        match kind:
            case "ask":
                self.total += 1
                self.asked.append(self.scene.ask(TINY, TENANTS[which]))
            case "leave" if self.asked:
                self.asked[which % len(self.asked)].cancel()
            case "end" if self.held:
                self.held.pop(which % len(self.held)).release()
                self.ended += 1
                # Whoever is let in by this may leave before it learns of it.
                if self.asked and which % 2:
                    self.asked[which % len(self.asked)].cancel()
            case "move" if self.held:
                slot = self.held[which % len(self.held)]
                free = [name for name in NAMES if name not in self.admission.full("tiny")]
                if free:
                    slot.move(free[which % len(free)])
            case "drain":
                fleet.set_state(NAMES[which], InstanceState.DRAINING)
            case "die":
                self.scene.die(NAMES[which])
            case "revive":
                fleet.set_state(NAMES[which], InstanceState.ACTIVE)
                for _ in range(3):
                    fleet.record_probe(NAMES[which], ok=True)
            case _:
                pass
        await settled()
        self.collect()
        self.check()

    def collect(self) -> None:
        for task in [task for task in self.asked if task.done()]:
            self.asked.remove(task)
            if task.cancelled() or isinstance(task.exception(), NobodyAlive | Overloaded):
                self.ended += 1
            else:
                self.held.append(task.result())

    def check(self) -> None:
        counts = Counter(slot.instance for slot in self.held)
        for name in NAMES:
            assert self.admission.held(name) == counts[name] <= SLOTS
        assert self.admission.waiting == len(self.asked) <= QUEUE
        assert self.total == self.ended + len(self.held) + len(self.asked)
        # Nobody waits while a slot is free that would do.
        ready = [member for member in self.scene.fleet.members if self.scene.fleet.is_ready(member)]
        assert not self.asked or all(counts[member.instance.name] == SLOTS for member in ready)
        assert not self.asked or ready

    async def finish(self) -> None:
        for task in self.asked:
            task.cancel()
        await settled()
        self.collect()
        for slot in self.held:
            slot.release()
        assert self.admission.waiting == 0
        assert self.admission._held == {}
        assert self.admission._turns == {}


@given(steps)
@settings(max_examples=150, deadline=None)
def test_r09_slots_and_requests_add_up(course: list[tuple[str, int]]) -> None:
    """Grants never exceed slots, nobody is lost or kept, no slot is idle while somebody waits."""

    async def run() -> None:
        played = Course()
        for step in course:
            await played.play(step)
        await played.finish()

    asyncio.run(run())
