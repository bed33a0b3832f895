"""The short loop's solve and step, without a clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.control.thresholds import (
    InForce,
    Solved,
    StepRules,
    Today,
    solve_today,
    step_threshold,
)
from router.domain.decision import ThresholdMode
from router.service.operator import Operator, ThresholdRules
from router.throughput.planner import tabulate
from router.throughput.stages import Deployment
from tests.fakes.clocks import FakeClock
from tests.fakes.model_cases import CASE_WORKLOAD, case_study

RULES = StepRules(low=512, high=131_072, dwell=5.0, relax_by=0.25, worth=0.03)


TODAY = Today(case_study(), CASE_WORKLOAD)
TABLE = tabulate(TODAY.deployment, TODAY.workload)


def solved(tokens: int) -> Solved:
    return Solved(tokens, 3.0, 1.0, TODAY, TABLE)


def test_the_case_study_is_solved_as_planned() -> None:
    """Today's solve is the planner's: 19.6K, and what it gains over home."""
    today = solve_today(Today(case_study(), CASE_WORKLOAD), RULES)
    assert today.tokens == pytest.approx(19_605, abs=1)
    assert today.rate == pytest.approx(3.196, rel=1e-3)
    assert today.gain is not None
    assert today.gain == pytest.approx(3.196 / 0.6776, rel=1e-3)


def test_a_throttled_link_raises_the_threshold_within_bounds() -> None:
    """At 5 Gbit/s t is 31.8K; without any bandwidth it is at its bound."""
    assert solve_today(Today(case_study(gbps=5), CASE_WORKLOAD), RULES).tokens == pytest.approx(
        31_800, rel=0.005
    )
    narrow = replace(RULES, high=25_000)
    assert solve_today(Today(case_study(gbps=0), CASE_WORKLOAD), narrow).tokens == 25_000


def test_shared_instances_count_in_part() -> None:
    """A PrfaaS cluster that serves two PD clusters alike is worth half to each."""
    whole = case_study()
    pool = whole.remotes[0]
    half = Deployment((replace(pool, share=0.5),), whole.pds)
    two = Deployment((replace(pool, instances=2),), whole.pds)
    assert (
        solve_today(Today(half, CASE_WORKLOAD), RULES).tokens
        == solve_today(Today(two, CASE_WORKLOAD), RULES).tokens
    )


def test_nobody_alive_is_no_division_by_zero() -> None:
    """Without live instances on either side there is a threshold and no gain."""
    dead = case_study(prefill=0, decode=0)
    today = solve_today(Today(dead, CASE_WORKLOAD), RULES)
    assert today.rate == 0
    assert today.gain is None


def test_other_thresholds_can_be_looked_at() -> None:
    """What a manual t sustains is told by the same pools and lengths."""
    today = solve_today(TODAY, RULES)
    assert today.at(today.tokens).rate == pytest.approx(today.rate)
    assert today.at(40_000).rate < today.rate
    residual = today.at(40_000).threshold_residual
    assert residual is not None
    assert residual > 0.2


def test_the_first_solution_holds_at_once() -> None:
    """Nothing was in force, so there is nothing to step from."""
    assert step_threshold(None, solved(20_000), 7.0, RULES) == InForce(20_000, 7.0, solved(20_000))


def test_tightening_never_waits() -> None:
    """A higher t holds at once, however short ago the last change was."""
    state = InForce(20_000, 100.0, solved(20_000))
    assert step_threshold(state, solved(90_000), 100.1, RULES).tokens == 90_000


def test_relaxing_waits_and_goes_in_parts() -> None:
    """A lower t waits for the dwell time and goes down by a quarter at a time."""
    state = InForce(80_000, 100.0, solved(80_000))
    early = step_threshold(state, solved(20_000), 104.9, RULES)
    assert (early.tokens, early.changed_at, early.solved.tokens) == (80_000, 100.0, 20_000)
    steps = []
    now = 105.0
    while state.tokens > 20_000:
        state = step_threshold(state, solved(20_000), now, RULES)
        steps.append(state.tokens)
        now += 5.0
    assert steps == [60_000, 45_000, 33_750, 25_312, 20_000]


def test_what_trembles_is_left_alone() -> None:
    """Three percent up or down is what counting lengths does by itself."""
    state = InForce(20_000, 0.0, solved(20_000))
    for tokens in (20_600, 19_400):
        after = step_threshold(state, solved(tokens), 1000.0, RULES)
        assert (after.tokens, after.solved.tokens) == (20_000, tokens)
    assert step_threshold(state, solved(20_601), 1000.0, RULES).tokens == 20_601


def test_relaxing_never_passes_the_lower_bound() -> None:
    """A step of a quarter ends at `low`."""
    state = InForce(600, 0.0, solved(600))
    assert step_threshold(state, solved(512), 1000.0, RULES).tokens == 512


def test_a_reload_that_narrows_the_bounds_holds_at_once() -> None:
    """What was solved within other bounds is held to those of now until it is solved again."""
    operator = Operator(ThresholdRules(ThresholdMode.AUTO), clock=FakeClock())
    operator.solved.put("m", "east", InForce(20_000, 0.0, solved(20_000)))
    assert operator.threshold("m", "west", "east").tokens == 20_000
    operator.rules = ThresholdRules(ThresholdMode.AUTO, low=500, high=8_000)
    assert operator.threshold("m", "west", "east").tokens == 8_000
    operator.rules = ThresholdRules(ThresholdMode.AUTO, low=30_000, high=40_000)
    assert operator.threshold("m", "west", "east").tokens == 30_000
