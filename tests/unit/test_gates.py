"""The three gates judge numbers and name every doubt."""

from __future__ import annotations

import pytest

from router.domain.decision import GateLimits, WorkloadView
from router.domain.units import from_gbps
from router.policy.gates import Doubt, judge_model, judge_scheduler, judge_workload


def test_a_hybrid_model_passes_and_a_dense_one_does_not() -> None:
    """At 32K a published hybrid model makes 3.87 Gbit/s an instance, a dense one 59.93."""
    limits, link = GateLimits(from_gbps(15)), from_gbps(50)
    assert judge_model(from_gbps(3.87), limits, link, profile_required=True) == ()
    assert judge_model(from_gbps(59.93), limits, link, profile_required=True) == (
        Doubt.KV_RATE_OVER_LIMIT,
        Doubt.KV_RATE_OVER_LINK,
    )


def test_an_unprofiled_model_is_doubted_where_a_profile_is_required() -> None:
    """Without a profile nothing is known of a model's KV."""
    assert judge_model(None, GateLimits(), None, profile_required=False) == ()
    assert judge_model(None, GateLimits(), None, profile_required=True) == (Doubt.UNPROFILED,)


@pytest.mark.parametrize(
    ("workload", "doubts"),
    [
        (WorkloadView(0.5, 44_000, 1.5), ()),
        (WorkloadView(0.1, 20_000, 1.1), ()),
        (WorkloadView(0.09, 44_000, 1.5), (Doubt.FEW_LONG_PROMPTS,)),
        (WorkloadView(0.5, 19_999, 1.5), (Doubt.LONG_PROMPTS_TOO_SHORT,)),
        (WorkloadView(0.5, 44_000, 1.09), (Doubt.TOO_LITTLE_GAIN,)),
        (WorkloadView(0.5, 44_000), ()),
        (WorkloadView(0.0, None), (Doubt.FEW_LONG_PROMPTS, Doubt.LONG_PROMPTS_TOO_SHORT)),
        (None, ()),
    ],
)
def test_the_workload_gate_asks_share_length_and_gain(
    workload: WorkloadView | None, doubts: tuple[Doubt, ...]
) -> None:
    """Each wish that traffic does not meet is a doubt; what nobody knows is none."""
    limits = GateLimits(long_share=0.1, long_tokens=20_000, gain=1.1)
    assert judge_workload(workload, limits) == doubts


def test_without_wishes_any_traffic_passes() -> None:
    """Limits that are left out ask nothing."""
    assert judge_workload(WorkloadView(0.0, None, 0.0), GateLimits()) == ()
    assert not GateLimits(from_gbps(15)).ask_workload
    assert GateLimits(gain=1.0).ask_workload


def test_the_scheduler_gate_asks_for_three_kinds_of_knowledge() -> None:
    """Trusted metadata, fresh telemetry, a solved threshold."""
    assert judge_scheduler(metadata_trusted=True, telemetry_fresh=True, threshold_solved=True) == ()
    assert judge_scheduler(
        metadata_trusted=False, telemetry_fresh=False, threshold_solved=False
    ) == (Doubt.METADATA_UNKNOWN, Doubt.TELEMETRY_STALE, Doubt.THRESHOLD_UNSOLVED)
