"""Late binding under any course of prompts, departures, failures, orders and starving links."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.links import LinkHealth, Telemetry
from router.domain.decision import Rule
from router.domain.errors import Overloaded
from router.domain.topology import InstanceState
from router.domain.units import BytesPerSecond, from_gbps
from router.service.places import Place
from tests.fakes.slack_benches import SlackBench, settle, with_slack

QUEUE = 6
NAMES = ("p0", "p1", "f0", "f1")
LENGTHS = (200, 900, 2000, 6000)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, len(LENGTHS) - 1)),
        st.tuples(st.just("ask"), st.integers(0, len(LENGTHS) - 1)),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.tuples(st.just("begin"), st.integers(0, 30)),
        st.tuples(st.just("give up"), st.integers(0, 30)),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("drain"), st.integers(0, 3)),
        st.tuples(st.just("revive"), st.integers(0, 3)),
        st.tuples(st.just("starve"), st.integers(0, 2)),
        st.tuples(st.just("link"), st.integers(0, 1)),
        st.tuples(st.just("switch"), st.integers(0, 1)),
        st.tuples(st.just("wait"), st.integers(1, 9)),
    ),
    max_size=40,
)


class Course:
    """Plays steps; checks after each that places, bytes and prompts add up."""

    def __init__(self) -> None:
        self.bench = SlackBench(
            prefills="p0 p1", remotes="f0 f1", rules=with_slack(queue_size=QUEUE)
        )
        self.asked: list[asyncio.Task[Place | None]] = []
        self.placed: list[Place] = []
        self.running: list[str] = []
        self.waits = 0

    async def play(self, step: tuple[str, int]) -> None:
        """Do one thing, and see what follows from it."""
        kind, which = step
        self._move_prompts(kind, which)
        self._move_world(kind, which)
        await settle()
        self._collect()

    def _move_prompts(self, kind: str, which: int) -> None:
        bench = self.bench
        match kind:
            case "ask":
                # Who has nowhere to wait for goes by the rule at once.
                self.waits += bench.look(LENGTHS[which]) is not None
                self.asked.append(bench.ask(LENGTHS[which]))
            case "leave" if self.asked:
                self.asked[which % len(self.asked)].cancel()
            case "begin" if self.placed:
                place = self.placed.pop(which % len(self.placed))
                bench.begin(place)
                self.running.append(place.instance)
            case "give up" if self.placed:
                self.placed.pop(which % len(self.placed)).release()
            case "end" if self.running:
                bench.end(self.running.pop(which % len(self.running)))
                # Whoever is bound by this may leave before it learns of it.
                if self.asked and which % 2:
                    bench.binding.let_in()
                    self.asked[which % len(self.asked)].cancel()

    def _move_world(self, kind: str, which: int) -> None:
        bench = self.bench
        match kind:
            case "drain":
                bench.fleet.set_state(NAMES[which], InstanceState.DRAINING)
            case "revive":
                bench.fleet.set_state(NAMES[which], InstanceState.ACTIVE)
            case "starve":
                rate = from_gbps((0.0001, 0.01, 8)[which])
                told = Telemetry(BytesPerSecond(0.0), bench.clock.monotonic(), available=rate)
                bench.links.report("wire", told)
            case "link":
                bench.links.set_health("wire", (LinkHealth.DOWN, LinkHealth.AUTO)[which])
            case "switch":
                bench.switch((Rule.PAPER, Rule.SLACK)[which])
            case "wait":
                bench.clock.advance(float(which))

    def _collect(self) -> None:
        """Take note of who was bound, let go or refused."""
        for task in [each for each in self.asked if each.done()]:
            self.asked.remove(task)
            if task.cancelled() or isinstance(task.exception(), Overloaded):
                continue
            place = task.result()
            if place is not None:
                self.placed.append(place)

    def check(self) -> None:
        """No instance has two, bytes are those of the places, and nobody is lost."""
        bench = self.bench
        taken = Counter(place.instance for place in self.placed) + Counter(self.running)
        for name in NAMES:
            assert bench.places.held(bench.fleet.member(name)) == taken[name] <= 1
        remote = any(place.instance in {"f0", "f1"} for place in self.placed)
        assert (bench.links.state("wire").booked > 0) == remote
        assert bench.binding.waiting == len(self.asked) <= QUEUE
        assert len(bench.hook.outcomes) + len(self.asked) == self.waits
        assert bench.operator.policy is Rule.SLACK or bench.binding.needs() == {}


async def play(course: list[tuple[str, int]]) -> None:
    scene = Course()
    for step in course:
        await scene.play(step)
        scene.check()
    # In a sound system whoever still waits is served, one after the other.
    for which in range(len(NAMES)):
        await scene.play(("revive", which))
    await scene.play(("starve", 2))
    await scene.play(("link", 1))
    for _ in range(4 * (QUEUE + len(NAMES))):
        await scene.play(("begin", 0))
        await scene.play(("end", 0))
        scene.check()
    assert not scene.asked
    assert not scene.placed
    assert scene.bench.links.state("wire").booked == 0


@given(course=steps)
@settings(max_examples=60)
def test_places_bytes_and_prompts_add_up(course: list[tuple[str, int]]) -> None:
    """Whatever happens in whatever order; and in the end everybody was served or told."""
    asyncio.run(play(course))
