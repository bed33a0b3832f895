"""Which calls are given up, and when: not those of engines that are busy."""

from __future__ import annotations

import pytest

from router.control.silence import Cut, SilenceRules, step_silence
from router.domain.topology import Cluster, ClusterKind, Instance, Role
from router.service.fleet import Fleet
from router.service.silence import SilenceWatch
from tests.fakes.clocks import FakeClock
from tests.fakes.engine_lines import FakeLines

RULES = SilenceRules(patience=5.0, stream_grace=30.0)
URL = "http://127.0.0.1:1"


def test_a_lost_engine_is_cut_at_the_second_look_and_its_streams_after_the_grace() -> None:
    """Nothing at first sight, then what has not begun, at last all."""
    since: float | None = None
    seen = []
    for now in (100.0, 101.0, 129.0, 130.0):
        since, cut = step_silence(since, down=True, silent=60.0, now=now, rules=RULES)
        seen.append(cut)
    assert seen == [Cut.NOTHING, Cut.UNBEGUN, Cut.UNBEGUN, Cut.ALL]


@pytest.mark.parametrize(("down", "silent"), [(False, 600.0), (True, 4.9), (True, 0.0)])
def test_an_engine_that_speaks_or_was_not_declared_down_is_not_lost(
    down: bool, silent: float
) -> None:
    """A long silence alone cuts nothing, nor does a verdict about one that still speaks."""
    assert step_silence(1.0, down=down, silent=silent, now=99.0, rules=RULES) == (None, Cut.NOTHING)


class _Scene:
    """One instance, watched."""

    def __init__(self) -> None:
        self.clock, self.lines = FakeClock(), FakeLines()
        self.fleet = Fleet(
            [Cluster("pd", ClusterKind.PD)],
            [Instance("d0", "pd", URL, Role.DECODE)],
            clock=self.clock,
        )
        self.watch = SilenceWatch(
            self.fleet, self.lines, clock=self.clock, interval=1.0, rules=RULES
        )
        self.fleet.record_probe("d0", ok=True)

    def pass_time(self, seconds: int, **probe: bool) -> None:
        for _ in range(seconds):
            self.clock.advance(1.0)
            if probe:
                self.fleet.record_probe("d0", **probe)
            self.watch.look()


def test_an_unwell_engine_that_answers_keeps_its_calls() -> None:
    """A draining engine may say 503 on its health and finish what it has."""
    scene = _Scene()
    scene.pass_time(60, ok=False, answered=True)
    assert scene.fleet.is_down(scene.fleet.member("d0"))
    assert scene.lines.cuts == []


def test_r66_an_engine_that_streams_keeps_its_calls() -> None:
    """Bytes on any connection prove life where the probes go unanswered."""
    scene = _Scene()
    scene.lines.silences[URL] = 2.0
    scene.pass_time(60, ok=False, answered=False)
    assert scene.lines.cuts == []


def test_a_silent_engine_is_cut_until_it_speaks_again() -> None:
    """Silent on all its lines for the patience: cut; with its first answer no more."""
    scene = _Scene()
    scene.lines.silences[URL] = 60.0
    scene.pass_time(4, ok=False, answered=False)
    assert scene.lines.cuts == []
    scene.pass_time(3, ok=False, answered=False)
    assert scene.lines.cuts == [(URL, False)] * 2
    scene.pass_time(30, ok=False, answered=False)
    assert scene.lines.cuts[-1] == (URL, True)
    before = len(scene.lines.cuts)
    scene.pass_time(2, ok=True)
    assert len(scene.lines.cuts) == before


def test_a_lost_engine_that_is_removed_is_cut_for_good() -> None:
    """Nobody probes it any more, so nothing could end what waits there; a living one is left."""
    scene = _Scene()
    scene.lines.silences[URL] = 60.0
    scene.pass_time(6, ok=False, answered=False)
    scene.lines.cuts.clear()
    scene.fleet.remove("d0")
    scene.pass_time(3)
    assert scene.lines.cuts == [(URL, True)]
    other = _Scene()
    other.fleet.remove("d0")
    other.pass_time(3)
    assert other.lines.cuts == []


def test_an_open_breaker_is_a_verdict_too() -> None:
    """Ten failed calls in seconds are sooner than probes; still only a silent engine is cut."""
    scene = _Scene()
    for _ in range(10):
        scene.fleet.record_failure("d0")
    scene.pass_time(20, ok=True)
    assert scene.lines.cuts == []
    scene.pass_time(7)
    assert scene.lines.cuts[0] == (URL, False)
