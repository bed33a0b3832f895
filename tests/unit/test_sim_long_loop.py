"""The long loop in simulations: the same windows, grid and conversions as in production."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from router.control.balance import BalanceRules
from router.control.conversions import ConversionRules, Phase
from router.control.thresholds import StepRules
from router.domain.topology import Role
from router.sim.arrivals import PoissonArrivals
from router.sim.long_loops import LongLoop, LongLoopSpec
from router.sim.plants import PlantSpec, RuleSpec
from router.sim.records import Record
from router.sim.simulations import Simulation
from router.sim.statistics import measure_run
from router.sim.traffic import Demand
from router.throughput.workloads import TruncatedLogNormal, Workload
from tests.fakes.plants import CASE, a_case_study, a_reference, demands

SHORT = TruncatedLogNormal(8.4, 0.8, 128, 128_000)
SPEC = LongLoopSpec(
    output_tokens=1024,
    period=30,
    rules=BalanceRules(windows=2, gain=0.05, dwell=60),
    conversion=ConversionRules(lease=10),
    changeover=20,
)
NEVER = BalanceRules(windows=10**9)


def shifting(rate: float, before: int) -> Iterator[Demand]:
    """Short prompts first, then those of the case study, at one rate."""
    last = 0.0
    for demand in islice(demands(PoissonArrivals(rate), SHORT), before):
        last = demand.at
        yield demand
    for demand in demands(PoissonArrivals(rate), CASE, seed=2):
        yield demand._replace(at=last + demand.at)


def run(
    plant: PlantSpec, traffic: Iterator[Demand], count: int, loop: LongLoop | None
) -> list[Record]:
    records = Simulation(plant, traffic, count, a_reference(plant), long_loop=loop).run()
    return sorted(records, key=lambda record: record.number)


def test_when_prompts_grow_long_a_conversion_raises_goodput() -> None:
    """Divided for short prompts, the system gets the prefill instances that long ones need."""
    plant = a_case_study(prefills=1, decodes=7)
    fixed = replace(plant, rule=RuleSpec(tokens=19_606))
    loop = LongLoop(SPEC)
    with_loop = run(fixed, shifting(2.4, 300), 2500, loop)
    without = run(fixed, shifting(2.4, 300), 2500, LongLoop(replace(SPEC, rules=NEVER)))
    settled = [each for each in loop.history if each.phase is Phase.SETTLED]
    assert [each.conversion.target for each in settled] == [Role.PREFILL] * len(settled)
    assert settled
    figures, others = (
        measure_run(each, warmup=1200, cooldown=100) for each in (with_loop, without)
    )
    assert figures.goodput > 2 * others.goodput
    assert {each.outcome for each in with_loop} == {"served"}


def test_a_system_in_balance_is_left_alone() -> None:
    """The case study at three quarters of what it bears is divided as it should be."""
    loop = LongLoop(SPEC)
    run(a_case_study(), demands(PoissonArrivals(2.4)), 1500, loop)
    assert loop.history == []


def test_a_prefill_that_nobody_needs_becomes_a_decode() -> None:
    """Six prefill and two decode instances: decode binds, and prefills are drained for it."""
    loop = LongLoop(SPEC)
    records = run(a_case_study(prefills=6, decodes=2), demands(PoissonArrivals(2.4)), 1500, loop)
    first = loop.history[:4]
    assert [each.phase for each in first] == [
        Phase.DRAINING, Phase.ACTING, Phase.VERIFYING, Phase.SETTLED,
    ]  # fmt: skip
    assert first[0].conversion.target is Role.DECODE
    assert first[1].since - first[0].since >= 12, "blocks are kept for decodes until then"
    assert first[3].since - first[2].since == pytest.approx(20, abs=1)
    converted = first[0].conversion.instance
    drained, serving = first[0].since, first[3].since
    started = [each.started for each in records if each.prefill == converted]
    assert all(each <= drained + 120 for each in started)
    assert any(each.decode == converted and each.admitted >= serving for each in records)
    assert not any(each.decode == converted and each.admitted < serving for each in records)


def test_equal_arguments_give_equal_runs() -> None:
    """Loops and all: nothing but the seed decides."""
    plant = a_case_study(prefills=1, decodes=7)
    one, other = (run(plant, shifting(2.4, 200), 700, LongLoop(SPEC)) for _ in range(2))
    assert one == other


@pytest.mark.parametrize("lengths", [CASE, SHORT])
def test_a_loop_that_converts_nothing_lets_t_follow_the_lengths(lengths: Workload) -> None:
    """Within its bounds, t is the planner's for the prompts of late; without bounds it stays."""
    plant = a_case_study()
    bounded = LongLoop(
        replace(SPEC, rules=NEVER, threshold=StepRules(low=1000, high=15_000, relax_by=1.0))
    )
    simulation = Simulation(
        plant, demands(PoissonArrivals(2.0), lengths), 600, a_reference(plant), long_loop=bounded
    )
    simulation.run()
    assert 1000 <= simulation.system.threshold <= 15_000
    kept = Simulation(
        plant, demands(PoissonArrivals(2.0), lengths), 300, a_reference(plant),
        long_loop=LongLoop(replace(SPEC, rules=NEVER, threshold=None)),
    )  # fmt: skip
    kept.run()
    assert kept.system.threshold == plant.rule.tokens
