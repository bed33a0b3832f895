"""Probes: who lives is noticed, and told to whoever reads the log at night."""

from __future__ import annotations

import asyncio
import logging

import pytest

from router.control.health import ProbeRules
from router.domain.topology import Cluster, ClusterKind, Instance, Role
from router.domain.units import Seconds
from router.service.fleet import Fleet, FleetRules
from router.service.probing import EngineProbe, ProbeOutcome, Prober
from tests.fakes.clocks import FakeClock
from tests.fakes.engine_lines import FakeLines

URL = "http://127.0.0.1:1"


class ScriptedProbe:
    """Finds every engine as `healthy` says."""

    def __init__(self) -> None:
        self.healthy = True

    async def probe(self, instance: Instance, at: Seconds) -> ProbeOutcome:  # noqa: ARG002 - the protocol's
        return ProbeOutcome(healthy=self.healthy)


class CountedTurns:
    """Counts the changes that a prober tells of."""

    def __init__(self) -> None:
        self.changes: list[bool] = []

    def probed(self, instance: Instance, *, changed: bool) -> None:  # noqa: ARG002 - the protocol's
        self.changes.append(changed)


class HeldProbe:
    """Answers each probe when the test says so, in any order."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[ProbeOutcome]] = []

    async def probe(self, instance: Instance, at: Seconds) -> ProbeOutcome:  # noqa: ARG002 - the protocol's
        answer: asyncio.Future[ProbeOutcome] = asyncio.get_running_loop().create_future()
        self.asked.append(answer)
        return await answer


class Scene:
    """One instance that is alive, and probes of it under way."""

    def __init__(self, probe: EngineProbe) -> None:
        self.clock, self.lines = FakeClock(), FakeLines()
        self.fleet = Fleet(
            [Cluster("pd", ClusterKind.PD)],
            [Instance("d0", "pd", URL, Role.DECODE)],
            clock=self.clock,
            rules=FleetRules(probe=ProbeRules(failures=3, successes=2)),
        )
        self.fleet.record_probe("d0", ok=True)
        self.prober = Prober(
            self.fleet,
            probe,
            clock=self.clock,
            interval=1.0,
            lines=self.lines,
            hook=CountedTurns(),
        )

    @property
    def alive(self) -> bool | None:
        return self.fleet.member("d0").health.alive


async def send_probes(scene: Scene, probe: HeldProbe, count: int) -> list[asyncio.Task[None]]:
    """Send probes a second apart, none of which is answered."""
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(scene.prober.probe_all()))
        while len(probe.asked) <= number:  # noqa: ASYNC110 - the task has only to begin
            await asyncio.sleep(0)
        scene.clock.advance(1.0)
    return tasks


SILENT = ProbeOutcome(healthy=False, answered=False)


async def settle(
    scene: Scene,
    task: asyncio.Task[None],
    answer: asyncio.Future[ProbeOutcome],
    outcome: ProbeOutcome,
    after: float = 0.0,
) -> None:
    """Let one probe end."""
    scene.clock.advance(after)
    answer.set_result(outcome)
    await task


async def test_a_hanging_engine_is_out_after_the_first_timeouts() -> None:
    """Probes under way side by side: the third time-out, two seconds after the first, decides."""
    probe = HeldProbe()
    scene = Scene(probe)
    tasks = await send_probes(scene, probe, 3)
    seen = []
    for task, answer in zip(tasks, probe.asked, strict=True):
        await settle(scene, task, answer, SILENT, after=1.0)
        seen.append(scene.alive)
    assert seen == [True, True, False]


async def test_failures_that_end_at_once_are_one() -> None:
    """A gateway that was suspended finds all its time-outs over, and declares nobody down."""
    probe = HeldProbe()
    scene = Scene(probe)
    tasks = await send_probes(scene, probe, 5)
    for task, answer in zip(tasks, probe.asked, strict=True):
        await settle(scene, task, answer, SILENT)
    assert scene.alive is True


async def test_r66_an_engine_that_sends_anything_is_not_silent() -> None:
    """Time-outs of a busy engine whose streams go on are no evidence; its own 503 is."""
    probe = HeldProbe()
    scene = Scene(probe)
    scene.lines.silences[URL] = 0.5
    for outcome, alive in ((SILENT, True), (ProbeOutcome(healthy=False), False)):
        probe.asked.clear()
        tasks = await send_probes(scene, probe, 4)
        for task, answer in zip(tasks, probe.asked, strict=True):
            await settle(scene, task, answer, outcome, after=1.0)
        assert scene.alive is alive


async def test_an_answer_that_was_overtaken_does_not_count() -> None:
    """What an earlier probe finds says nothing against what a later one found."""
    probe = HeldProbe()
    scene = Scene(probe)
    tasks = await send_probes(scene, probe, 4)
    late = list(zip(tasks, probe.asked, strict=True))
    await settle(scene, *late.pop(), ProbeOutcome(healthy=True))
    for task, answer in late:
        await settle(scene, task, answer, SILENT, after=1.0)
    assert scene.alive is True


async def test_an_instance_that_goes_and_comes_is_logged_once_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line when it is down, one when it is back, none for probes that change nothing.

    The hook is told of as many changes: the first finding is none.
    """
    caplog.set_level(logging.INFO, logger="router.service.probing")
    clock, probe, turns = FakeClock(), ScriptedProbe(), CountedTurns()
    fleet = Fleet(
        [Cluster("pd", ClusterKind.PD)],
        [Instance("d0", "pd", "http://127.0.0.1:1", Role.DECODE)],
        clock=clock,
        rules=FleetRules(probe=ProbeRules(failures=3, successes=2)),
    )
    prober = Prober(fleet, probe, clock=clock, interval=1.0, lines=FakeLines(), hook=turns)
    for healthy in (True, False, False, False, False, True, True, True):
        clock.advance(1.0)
        probe.healthy = healthy
        await prober.probe_all()
    told = [(record.levelname, record.message) for record in caplog.records]
    assert told == [("WARNING", "instance d0 is down"), ("INFO", "instance d0 is alive again")]
    assert turns.changes == [False, False, False, True, False, False, True, False]
