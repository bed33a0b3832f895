"""Plans: verdicts, comparisons and sensitivity of the shipped scenarios and of odd ones."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from router.commands.plan_page import render_page
from router.compose.scenarios import build_scenario
from router.domain.units import from_gbps
from router.planning.documents import describe_plan
from router.planning.figures import list_figures
from router.planning.plans import Comparison, Option, Plan, make_plan
from router.planning.scenarios import Knowledge, PrefixSet, Scenario
from router.planning.sensitivity import Axis
from router.policy.gates import Doubt
from router.settings.scenarios import load_scenario
from router.throughput.demands import Form
from router.throughput.prices import Prices
from router.throughput.profiles import KvLine
from router.throughput.stages import Deployment, Stage
from router.throughput.workloads import TruncatedLogNormal

EXAMPLES = Path(__file__).parents[2] / "examples/scenarios"


def example(name: str) -> Scenario:
    """A shipped scenario."""
    return build_scenario(load_scenario(EXAMPLES / f"{name}.yaml", {}))


@cache
def planned(name: str) -> Plan:
    """The plan of a shipped scenario."""
    return make_plan(example(name))


def option(plan: Plan, wanted: Option) -> Comparison:
    """One of a plan's comparisons."""
    return next(each for each in plan.comparisons if each.option is wanted)


def test_the_case_study_offloads_half_with_three_and_five() -> None:
    """The paper's allocation and, in the exact form, a threshold and rate near its own."""
    plan = planned("case-study")
    assert plan.verdicts.passed
    assert (plan.best.prefill, plan.best.decode) == (3, 5)
    assert plan.point.demands.split.threshold == pytest.approx(19_605, abs=1)
    assert plan.point.rate == pytest.approx(3.196, rel=1e-3)
    assert plan.other_form.rate == pytest.approx(3.2406, rel=1e-3)
    assert plan.headroom == pytest.approx(0.88, abs=0.01)
    assert option(plan, Option.CONFIGURED).point.rate == pytest.approx(3.183, rel=1e-3)


def test_the_case_study_is_compared_at_equal_hardware_and_cost() -> None:
    """Twelve H20 are 9 and 3; for the money of the plan there are sixteen, and the gain shrinks."""
    plan = planned("case-study")
    same, bought = option(plan, Option.HOMOGENEOUS), option(plan, Option.EQUAL_COST)
    assert [pd.prefill for pd in same.deployment.pds] == [9]
    assert sum(pd.instances for pd in bought.deployment.pds) == 16
    assert same.gain is not None
    assert bought.gain is not None
    assert same.gain == pytest.approx(1.57, abs=0.01)
    assert 1.1 < bought.gain < 1.2
    assert bought.cost is not None
    assert bought.cost <= (option(plan, Option.PLANNED).cost or 0)


def test_ttft_of_the_case_study_is_that_of_table_6() -> None:
    """Unloaded mean and P90 of all three deployments are within 1 % of the published ones."""
    plan = planned("case-study")
    published = {
        Option.CONFIGURED: (2.22, 3.51),
        Option.HOMOGENEOUS: (4.44, 9.73),
        Option.NAIVE: (1.74, 3.51),
    }
    for each, (mean, p90) in published.items():
        ttft = option(plan, each).ttft
        assert ttft is not None
        assert ttft.mean == pytest.approx(mean, rel=0.01)
        assert ttft.p90 == pytest.approx(p90, rel=0.01)


def test_a_dense_model_is_refused() -> None:
    """Thirty Gbit/s of KV an instance are over the gate, whatever the throughput model says."""
    plan = planned("dense-model")
    assert not plan.verdicts.passed
    assert plan.verdicts.model.doubts == (Doubt.KV_RATE_OVER_LIMIT,)
    assert plan.verdicts.workload.passed
    assert plan.verdicts.pools[0].demand > plan.verdicts.pools[0].egress
    assert describe_plan(plan)["verdict"] == "stay_local"


def test_the_toy_says_that_more_instances_at_home_sustain_more() -> None:
    """2.0 with the link, 1.6 naively, 2.13 with five instances: the plan tells."""
    plan = planned("walkthrough-toy")
    assert (plan.best.prefill, plan.best.decode) == (1, 2)
    assert plan.point.rate == pytest.approx(2.0)
    assert option(plan, Option.NAIVE).point.rate == pytest.approx(1.6)
    assert option(plan, Option.HOMOGENEOUS).point.rate == pytest.approx(2.1333, rel=1e-4)
    assert any("would sustain more: 2.13" in note for note in plan.notes)
    assert any("exactly 32,000 tokens" in note for note in plan.notes)


def test_a_narrower_link_is_answered_by_the_threshold() -> None:
    """With less bandwidth t rises, re-solving loses least, and choosing N_p again loses less."""
    plan = planned("case-study")
    link = next(each for each in plan.sensitivities if each.axis is Axis.BANDWIDTH)
    five = next(each for each in link.reactions if each.value == 5)
    assert five.threshold == pytest.approx(31_800, rel=0.01)
    assert five.kept == pytest.approx(1.32, rel=0.01)
    assert five.resolved == pytest.approx(1.77, rel=0.01)
    for each in link.reactions:
        assert each.kept <= each.resolved * (1 + 1e-9)
        assert each.replanned is not None
        assert each.resolved <= each.replanned * (1 + 1e-9)
    assert [each.axis for each in plan.sensitivities] == list(Axis)


def test_doubts_of_every_gate_are_told() -> None:
    """Limits that traffic and knowledge do not meet refuse, each with its own reason."""
    scenario = example("case-study")
    limits = scenario.limits
    strict = replace(
        scenario,
        limits=type(limits)(limits.kv_rate, 0.9, 100_000, 3.0),
        knowledge=Knowledge(metadata=False, telemetry=False),
    )
    verdicts = make_plan(strict).verdicts
    assert verdicts.workload.doubts == (
        Doubt.FEW_LONG_PROMPTS,
        Doubt.LONG_PROMPTS_TOO_SHORT,
        Doubt.TOO_LITTLE_GAIN,
    )
    assert verdicts.scheduler.doubts == (Doubt.METADATA_UNKNOWN, Doubt.TELEMETRY_STALE)
    narrow = replace(scenario, deployment=scenario.deployment.with_egress(0.01))
    assert Doubt.KV_RATE_OVER_LINK in make_plan(narrow).verdicts.model.doubts


def test_pd_clusters_alone_can_be_planned() -> None:
    """Without a PrfaaS cluster there is an allocation, and nothing to offload."""
    scenario = example("case-study")
    alone = replace(
        scenario, deployment=Deployment((), scenario.deployment.pds), configured=None, prices=None
    )
    plan = make_plan(alone)
    assert (plan.best.prefill, plan.best.decode) == (6, 2)
    assert plan.point.demands.offload_share == 0
    assert plan.sweep == ()
    assert plan.headroom is None
    assert [each.option for each in plan.comparisons] == [Option.PLANNED]
    assert "No PrfaaS cluster" in render_page(plan)


def test_a_dead_link_keeps_everything_home() -> None:
    """With no bandwidth the plan is that of the PD clusters alone, and nothing divides by zero."""
    scenario = example("case-study")
    dead = replace(scenario, deployment=scenario.deployment.with_egress(0))
    plan = make_plan(dead)
    assert plan.point.demands.offload_share == 0
    assert plan.point.rate == pytest.approx(option(plan, Option.LOCAL).point.rate)
    json.dumps(describe_plan(plan), allow_nan=False)


def test_several_pools_share_the_load() -> None:
    """Two PrfaaS pools of half the size on half the link sustain what one does; so do two PDs."""
    scenario = example("case-study")
    pool, pd = scenario.deployment.remotes[0], scenario.deployment.pds[0]
    halves = tuple(
        replace(pool, name=f"far-{i}", instances=2, egress=from_gbps(50)) for i in range(2)
    )
    homes = tuple(replace(pd, name=f"home-{i}", decode=4) for i in range(2))
    split = replace(
        scenario,
        deployment=Deployment(halves, homes),
        configured=None,
        prices=Prices({"far-0": 1, "far-1": 1, "home-0": 1, "home-1": 1}),
    )
    plan = make_plan(split)
    assert plan.point.rate == pytest.approx(planned("case-study").point.rate, rel=1e-6)
    assert (plan.best.prefill, plan.best.decode) == (3, 5)
    assert len(plan.allocations) == 25
    assert len(plan.transfer_pools) == 2
    assert len(plan.verdicts.pools) == 2


def test_memory_is_told() -> None:
    """Transfer caches by Little's law, prefix caches by the model's KV line."""
    plan = planned("case-study")
    pool = plan.transfer_pools[0]
    demands = plan.point.demands
    assert demands.remote is not None
    long = demands.remote[0]
    arrivals = demands.offload_share * plan.point.rate
    resident = long.seconds + long.kv_bytes / from_gbps(100)
    assert pool.in_flight == pytest.approx(arrivals * resident)
    scenario = replace(
        example("walkthrough-toy"), prefix_set=PrefixSet(10, 1000, KvLine(100.0, 2.0))
    )
    assert make_plan(scenario).prefix_bytes == 10 * 100 + 1000 * 2


def test_more_than_can_be_borne_is_noted() -> None:
    """An arrival rate over Lambda_max is told, with the load."""
    plan = make_plan(replace(example("walkthrough-toy"), rate=4.0))
    assert any("4 requests/s are asked for" in note for note in plan.notes)
    load = next(figure for figure in list_figures(plan) if figure.key == "load")
    assert load.value == pytest.approx(4 / plan.point.rate)


def test_the_representative_form_can_be_asked_for() -> None:
    """Then the paper's own numbers come first, and the exact ones stand beside them."""
    plan = make_plan(replace(example("case-study"), form=Form.REPRESENTATIVE))
    assert plan.point.demands.split.threshold == pytest.approx(19_422, abs=2)
    assert plan.other_form.rate == pytest.approx(3.196, rel=1e-3)
    assert plan.point.binding in (Stage.PRFAAS, Stage.PD_P)


@pytest.mark.parametrize("name", ["case-study", "dense-model", "walkthrough-toy"])
def test_the_document_is_json_and_every_number_has_a_source(name: str) -> None:
    """No infinity, no NaN; figures and rows say measured, modelled or quoted."""
    document = json.loads(json.dumps(describe_plan(planned(name)), allow_nan=False))
    sources = {"measured", "modelled", "quoted"}
    assert all(figure["source"] in sources for figure in document["figures"].values())
    assert all(basis["source"] in sources for basis in document["rests_on"])
    for rows in ("comparisons", "allocations", "sweep"):
        assert document[rows]["source"] in sources
        assert document[rows]["rows"]
    assert len(document["gates"]) == 3


@pytest.mark.parametrize("name", ["case-study", "dense-model", "walkthrough-toy"])
def test_the_page_stands_alone(name: str) -> None:
    """One file: plots inline, nothing loaded from elsewhere, no number that is none."""
    page = render_page(planned(name))
    assert page.count("<svg") == 5
    assert not re.search(r"(src|href)\s*=|@import|url\((?!#)", page)
    assert not re.search(r"\b(nan|inf|None)\b", page)


def test_names_cannot_break_out_of_the_page() -> None:
    """What a scenario calls itself is text, not markup."""
    evil = replace(example("walkthrough-toy"), name="<script>alert(1)</script>")
    page = render_page(make_plan(evil))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_prompts_of_which_next_to_none_is_offloaded_have_a_plan() -> None:
    """Lengths beyond the configured t whose weight rounds to nothing are nobody's requests."""
    short = TruncatedLogNormal(0.0, 1.0, 128, 128_000)
    plan = make_plan(replace(example("case-study"), workload=short))
    configured = option(plan, Option.CONFIGURED)
    assert configured.point.demands.remote is None
    assert configured.ttft is not None
    assert configured.ttft.mean > 0
