"""The model's view of a situation: with t in force, with the best t, and supposed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.domain.units import from_gbps
from router.planning.live_documents import describe_live_plan
from router.planning.live_plans import (
    Lack,
    LinkIn,
    LivePlan,
    Situation,
    Suppositions,
    Unsupposable,
    examine,
    mean_length,
    suppose,
)
from router.throughput.profiles import ProfileSource
from router.throughput.stages import Stage
from tests.fakes.model_cases import CASE_WORKLOAD, case_study

CASE = case_study()
LINK = LinkIn("west-east", 19_400, ProfileSource.QUOTED)
POOL = CASE.remotes[0].name
PD = CASE.pds[0].name
NOW = Situation(
    model="m",
    pd=PD,
    deployment=CASE,
    links=(LINK,),
    workload=CASE_WORKLOAD,
    seen=1000,
    offload_share=0.4,
    bounds=(512, 131_072),
)


def view(situation: Situation) -> LivePlan:
    plan = examine(situation)
    assert isinstance(plan, LivePlan)
    return plan


def test_the_case_study_is_seen_as_it_was_planned() -> None:
    """t* is 19.6K with Lambda_max 3.2; t in force is evaluated beside it, and offloading gains."""
    plan = view(NOW)
    assert plan.best_tokens == pytest.approx(19_605, abs=1)
    assert plan.best.rate == pytest.approx(3.196, rel=1e-3)
    assert plan.held_tokens == 19_400
    assert 0.9 * plan.best.rate < plan.held.rate <= plan.best.rate
    assert plan.gain == pytest.approx(plan.held.rate / 0.6776, rel=1e-3)
    assert plan.notes == ()


def test_what_is_supposed_is_evaluated() -> None:
    """Less bandwidth raises t*, other instances move the binding stage, a held t is held."""
    narrow = view(suppose(NOW, Suppositions(egress={"west-east": from_gbps(5)})))
    assert narrow.best_tokens == pytest.approx(31_800, rel=0.005)
    assert narrow.held.rate < view(NOW).held.rate
    few = view(suppose(NOW, Suppositions(decode={PD: 1})))
    assert few.best.binding is Stage.PD_D
    held = view(suppose(NOW, Suppositions(threshold=40_000)))
    assert held.held_tokens == 40_000
    more = view(suppose(NOW, Suppositions(remote={POOL: 8})))
    assert more.best_tokens is not None
    assert more.best_tokens < 19_605
    elsewhere = Suppositions(egress={"x": from_gbps(1)}, prefill={"x": 1}, remote={"x": 1})
    assert suppose(NOW, elsewhere) == NOW


def test_lengths_are_scaled_or_replaced() -> None:
    """A mean scales what was seen; a list of lengths replaces it; neither works on nothing."""
    twice = suppose(NOW, Suppositions(mean=2 * mean_length(CASE_WORKLOAD)))
    assert view(twice).mean == pytest.approx(2 * mean_length(CASE_WORKLOAD), rel=1e-6)
    given = view(suppose(replace(NOW, workload=None), Suppositions(lengths=(1000, 3000))))
    assert given.mean == pytest.approx(2000)
    with pytest.raises(Unsupposable) as caught:
        suppose(replace(NOW, workload=None), Suppositions(mean=5.0))
    assert caught.value.field == "mean_tokens"


@pytest.mark.parametrize(
    ("link", "changes", "note"),
    [
        (replace(LINK, threshold=None), Suppositions(), f"offloading to {POOL} is off"),
        (LINK, Suppositions(remote={POOL: 0}), f"no instance of {POOL} is ready"),
        (LINK, Suppositions(egress={"west-east": from_gbps(0)}), "west-east carries nothing"),
    ],
)
def test_a_pool_that_gets_nothing_is_left_out(
    link: LinkIn, changes: Suppositions, note: str
) -> None:
    """Where the rule sends nothing everything is at home, and the plan says why."""
    plan = view(suppose(replace(NOW, links=(link,)), changes))
    assert plan.notes == (note,)
    assert plan.held_tokens is None
    assert plan.best_tokens is None
    assert plan.held.rate == plan.local_rate > 0
    assert plan.gain == 1


def test_differing_thresholds_are_told() -> None:
    """With two pools and two thresholds the least counts, and a note tells of it."""
    two = replace(CASE, remotes=(CASE.remotes[0], replace(CASE.remotes[0], name="north")))
    links = (LINK, LinkIn("north-east", 30_000, ProfileSource.QUOTED))
    plan = view(replace(NOW, deployment=two, links=links))
    assert plan.held_tokens == 19_400
    assert plan.notes == ("thresholds in force differ (19,400, 30,000): evaluated with the least",)


def test_lacks_are_told() -> None:
    """Without links or lengths the model says what it lacks."""
    assert examine(replace(NOW, workload=None)) is Lack.REQUESTS
    bare = replace(NOW, deployment=replace(CASE, remotes=()), links=())
    assert examine(bare) is Lack.LINKS


def test_every_number_says_how_it_is_known() -> None:
    """Counts are measured, suppositions quoted, all that follows is modelled."""
    supposed = suppose(
        NOW, Suppositions(prefill={PD: 4}, remote={POOL: 3}, egress={"west-east": from_gbps(9)})
    )
    for situation, source in ((NOW, "measured"), (supposed, "quoted")):
        document = describe_live_plan(view(situation))
        inputs = document["inputs"]
        assert isinstance(inputs, dict)
        assert inputs["prefill_instances"]["source"] == source
        assert inputs[f"prfaas_instances.{POOL}"]["source"] == source
        assert inputs["decode_instances"]["source"] == "measured"
        assert inputs["link_gbps.west-east"]["source"] == "quoted"
        for name in ("in_force", "best"):
            point = document[name]
            assert isinstance(point, dict)
            figures = point["figures"]
            assert {each["source"] for each in figures.values()} == {"modelled"}
            assert {"lambda_max", "theta_pd_d", "residual_7", "residual_8"} <= figures.keys()
