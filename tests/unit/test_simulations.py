"""A simulated system: what is conserved, what is repeatable, what happens when things break."""

from __future__ import annotations

import math

import pytest

from router.control.slack import SlackRules
from router.control.thresholds import StepRules
from router.domain.decision import Rule
from router.domain.topology import ClusterKind, Role
from router.domain.units import BytesPerSecond, from_gbps
from router.sim.arrivals import PoissonArrivals
from router.sim.plants import (
    Conversion,
    DecodeSpec,
    LinkChange,
    LinkSpec,
    PlantFault,
    PlantSpec,
    PoolSpec,
    Reference,
    RuleSpec,
)
from router.sim.records import Outcome, write_csv
from router.sim.simulations import Simulation
from router.sim.statistics import measure_run
from router.sim.traffic import SessionTraffic, draw_demands
from router.throughput.workloads import Atoms
from tests.fakes.plants import (
    H200,
    Exponential,
    a_case_study,
    a_linear_profile,
    a_queue,
    a_reference,
    demands,
    simulate,
)

OUTAGE = (LinkChange(60, "wire", BytesPerSecond(0)), LinkChange(120, "wire", from_gbps(100)))


def test_equal_seeds_give_equal_bytes() -> None:
    """Runs with one seed write the same bytes; another seed writes others."""
    first, again, other = (
        write_csv(simulate(a_case_study(), 2.4, 300, seed=seed, incidents=OUTAGE))
        for seed in (7, 7, 8)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("reserved", [True, False])
@pytest.mark.parametrize("rule", list(Rule))
def test_requests_are_conserved(reserved: bool, rule: Rule) -> None:
    """Every request is recorded once, and its times are in the order of its way."""
    plant = a_case_study(reserved=reserved, rule=RuleSpec(rule=rule, queue_size=10**6))
    records = simulate(plant, 4.5, 1_500, incidents=OUTAGE)
    assert [record.number for record in records] == list(range(1, 1_501))
    for each in records:
        assert each.outcome == Outcome.SERVED
        assert (
            each.arrived <= each.admitted <= each.started < each.prefilled <= each.answered
            < each.finished
        )  # fmt: skip


@pytest.mark.parametrize("rule", list(Rule))
def test_bytes_are_conserved(rule: Rule) -> None:
    """What a link sent is what arrived by it and what was wasted, through an outage too."""
    plant = a_case_study(gbps=10, rule=RuleSpec(rule=rule))
    simulation = a_simulation(plant, 2.6, 1_000, OUTAGE)
    records = simulation.run()
    (wire,) = simulation.system.wires.values()
    counted = sum(record.kv_bytes + record.wasted_bytes for record in records)
    assert wire.link.sent == pytest.approx(counted, rel=1e-6, abs=1e3)
    assert wire.state.booked == 0
    assert not wire.booked_jobs()


@pytest.mark.parametrize("rule", [Rule.PAPER, Rule.SLACK])
def test_a_full_queue_turns_away_and_counts(rule: Rule) -> None:
    """Beyond the queue's size requests are rejected, each recorded with no answer."""
    short = RuleSpec(rule=rule, queue_size=10, slack=SlackRules(queue_size=10))
    records = simulate(a_case_study(rule=short), 20, 400)
    turned = [record for record in records if record.outcome == Outcome.REJECTED]
    assert turned
    assert all(math.isnan(record.ttft) for record in turned)
    assert len(records) == 400


def test_an_outage_keeps_prompts_at_home() -> None:
    """Within a second of an outage nothing goes out; what was under way is prefilled at home."""
    records = simulate(a_case_study(), 1.2, 300, incidents=OUTAGE)
    during = [record for record in records if 61 < record.admitted < 120]
    assert {record.route for record in during} == {"local"}
    assert {"link_down", "below_threshold"} == {record.reason for record in during}
    rescued = [record for record in records if record.attempts > 1]
    assert rescued
    assert {record.reason for record in rescued} == {"remote_prefill_failed"}
    assert any(record.route == "prfaas" for record in records if record.admitted > 122)


def test_a_slow_link_fills_its_budget_and_spills() -> None:
    """At 2 Gb/s the bytes booked reach the budget, and long prompts stay local as congested."""
    slow = (LinkChange(10, "wire", from_gbps(2)),)
    records = simulate(a_case_study(), 1.6, 300, incidents=slow)
    assert "link_congested" in {record.reason for record in records}


def test_a_conversion_moves_an_instance() -> None:
    """A drained prefill instance decodes after its conversion, and prefills no more."""
    change = Conversion(30, "pd-p0", Role.DECODE, seconds=20)
    records = simulate(a_case_study(), 2.0, 400, incidents=(change,))
    assert any(record.decode == "pd-p0" for record in records)
    assert all(record.admitted <= 30 for record in records if record.prefill == "pd-p0")
    assert all(record.admitted >= 50 for record in records if record.decode == "pd-p0")


def test_one_line_is_served_first_come_first_served() -> None:
    """Prefills on equal instances start in the order of arrival, and none idles while some wait."""
    records = simulate(a_queue(a_linear_profile(1e-4), 3), 2.9, 800, lengths=Exponential(10_000))
    starts = [record.started for record in records]
    assert starts == sorted(starts)
    for each in records:
        if each.started > each.arrived:
            busy = sum(other.started <= each.arrived < other.prefilled for other in records)
            assert busy == 3


def test_late_binding_serves_more_in_time_under_load() -> None:
    """Ordering by slack keeps half as many promises again as first come, first served, at 2.9/s."""
    kept = {}
    for rule in (Rule.PAPER, Rule.SLACK):
        records = simulate(a_case_study(rule=RuleSpec(rule=rule, tokens=19_606)), 2.9, 2_500)
        kept[rule] = measure_run(records, warmup=300, cooldown=300).attainment
    assert kept[Rule.SLACK] > 1.5 * kept[Rule.PAPER]


def test_bound_late_a_dead_link_leaves_long_prompts_to_the_home() -> None:
    """In an outage prompts of the lane that nobody serves are stolen, and all are answered."""
    plant = a_case_study(rule=RuleSpec(rule=Rule.SLACK, tokens=19_606))
    records = simulate(plant, 1.2, 300, incidents=OUTAGE)
    during = [record for record in records if 61 < record.admitted < 120]
    assert {record.route for record in during} == {"local"}
    assert any(record.total > 19_606 for record in during)


def test_sessions_find_their_prefix() -> None:
    """Agents' turns reuse what their instance holds: only new tokens are computed."""
    plant = a_case_study(cache_blocks=10_000)
    traffic = SessionTraffic(
        PoissonArrivals(0.5), Atoms.of({8_000: 1}), Atoms.of({2_000: 1}),
        turns=5, pause=120, output=1024, shared=4_096,
    )  # fmt: skip
    reference = Reference(19_606, plant.pd.profile, H200, plant.links[0].rate, plant.fabric)
    records = Simulation(plant, draw_demands(traffic, 1), 400, reference).run()
    later = [record for record in records if record.fresh < record.total]
    assert sum(record.computed == record.fresh for record in later) > 0.8 * len(later)


@pytest.mark.parametrize(
    "broken",
    [
        {"pools": ()},
        {"links": ()},
        {"pools": (PoolSpec("pd", ClusterKind.PD, H200, 1, 0),), "links": ()},
        {"pools": (PoolSpec("pd", ClusterKind.PD, H200, 1, 1),) * 2, "links": ()},
        {"links": (LinkSpec("a", "prfaas", from_gbps(1)), LinkSpec("b", "prfaas", from_gbps(1)))},
    ],
)
def test_impossible_plants_are_refused(broken: dict[str, object]) -> None:
    """One PD cluster that decodes, names told apart, and one link a PrfaaS cluster."""
    case = a_case_study()
    parts: dict[str, object] = {"pools": case.pools, "links": case.links} | broken
    with pytest.raises(PlantFault):
        PlantSpec(decode=DecodeSpec(20, 0.025), **parts)  # type: ignore[arg-type]


def a_simulation(
    plant: PlantSpec, rate: float, count: int, incidents: tuple[LinkChange, ...]
) -> Simulation:
    """A run of Poisson traffic that can be looked into."""
    traffic = demands(PoissonArrivals(rate))
    return Simulation(plant, traffic, count, a_reference(plant), incidents)


@pytest.mark.parametrize("steps", [None, StepRules(dwell=5.0, relax_by=0.25)])
def test_auto_moves_as_in_production_where_it_has_its_steps(steps: StepRules | None) -> None:
    """The threshold rises at once with a link that starves, and by steps it falls in parts."""
    starved = BytesPerSecond(1e9)
    plant = a_case_study(rule=RuleSpec(tokens=20_000))
    simulation = Simulation(
        plant,
        demands(PoissonArrivals(2.0), Atoms.of({1000: 1.0}), 1),
        300,
        a_reference(plant),
        (LinkChange(30, "wire", starved), LinkChange(60, "wire", from_gbps(100))),
        lambda rates: 40_000 if min(rates.values()) <= starved else 20_000,
        steps=steps,
    )
    records = sorted(simulation.run(), key=lambda record: record.arrived)
    seen = [(record.arrived, record.threshold) for record in records]
    assert {t for at, t in seen if at < 30} == {20_000}
    assert {t for at, t in seen if 31 < at < 60} == {40_000}
    after = list(dict.fromkeys(t for at, t in seen if at > 61))
    assert after == ([20_000] if steps is None else [30_000, 22_500, 20_000])
