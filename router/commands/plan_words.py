"""The words for what a plan holds, the same in text and page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from router.domain.units import to_gbps
from router.planning.plans import Option, Plan
from router.planning.sensitivity import Axis
from router.planning.verdicts import Gate
from router.policy.gates import Doubt
from router.throughput.planner import Allocation

DOUBTS: Final[Mapping[Doubt, str]] = {
    Doubt.UNPROFILED: "the model has no profile",
    Doubt.KV_RATE_OVER_LIMIT: "one instance makes more KV a second than gate.max_kv_gbps",
    Doubt.KV_RATE_OVER_LINK: "one instance makes more KV a second than the link carries",
    Doubt.FEW_LONG_PROMPTS: "too few prompts are over the threshold (gate.min_long_share)",
    Doubt.LONG_PROMPTS_TOO_SHORT: "prompts over the threshold are too short (gate.min_long_tokens)",
    Doubt.TOO_LITTLE_GAIN: "the PD clusters alone do nearly as well (gate.min_gain)",
    Doubt.METADATA_UNKNOWN: "nobody tells what is cached (scheduler.metadata)",
    Doubt.TELEMETRY_STALE: "nobody tells what the links carry (scheduler.telemetry)",
    Doubt.THRESHOLD_UNSOLVED: "no threshold lets any request pass",
}

OPTIONS: Final[Mapping[Option, str]] = {
    Option.PLANNED: "this plan",
    Option.CONFIGURED: "as configured",
    Option.LOCAL: "its PD clusters alone",
    Option.NAIVE: "naive: all prefill remote",
    Option.HOMOGENEOUS: "homogeneous, equal hardware",
    Option.EQUAL_COST: "homogeneous, equal cost",
}


@dataclass(frozen=True, slots=True)
class AxisWords:
    """How an axis of sensitivity is called."""

    title: str
    label: str
    about: str


AXES: Final[Mapping[Axis, AxisWords]] = {
    Axis.BANDWIDTH: AxisWords(
        "If the links carry less or more", "Gbit/s", "All links together, at the same lengths."
    ),
    Axis.LENGTHS: AxisWords(
        "If prompts are shorter or longer",
        "times the length",
        "Every uncached length multiplied by one factor.",
    ),
    Axis.CACHE_HITS: AxisWords(
        "If more of each prompt is cached",
        "cached share",
        "The same share of every prompt is cached where it is computed and where it is decoded.",
    ),
}


def say_verdict(plan: Plan) -> str:
    """Say in a sentence or two what to do."""
    if not plan.scenario.deployment.remotes:
        return f"No PrfaaS cluster: {_say_division(plan.best)}."
    if plan.verdicts.passed:
        threshold = plan.point.demands.split.threshold
        over = f"Offload prompts of more than {threshold:,.0f} uncached tokens"
        return f"{over}: {_say_division(plan.best)}."
    refusing = [verdict.gate.value for verdict in plan.verdicts if not verdict.passed]
    gates = (
        f"{refusing[0]} gate refuses"
        if len(refusing) == 1
        else f"{' and '.join(refusing)} gates refuse"
    )
    return f"Keep prefills at home: the {gates}. At home {_say_division(plan.local)}."


def _say_division(allocation: Allocation) -> str:
    return (
        f"{allocation.prefill} prefill and {allocation.decode} decode instances bear"
        f" {allocation.solution.rate:.4g} requests/s"
    )


def gate_facts(plan: Plan) -> Mapping[Gate, str]:
    """Return what each gate looked at, in words."""
    traffic, knowledge = plan.verdicts.traffic, plan.scenario.knowledge
    kv = "; ".join(
        f"{pool.name}: {to_gbps(pool.rate):.3g} Gbit/s of KV an instance, all of them"
        f" {to_gbps(pool.demand):.3g} on {to_gbps(pool.egress):.3g}"
        for pool in plan.verdicts.pools
    )
    mean = "" if traffic.long_tokens is None else f", {traffic.long_tokens:,.0f} tokens on average"
    gain = "" if traffic.gain is None else f"; {traffic.gain:.2f} times what its PD clusters bear"
    known = {"cache metadata": knowledge.metadata, "link telemetry": knowledge.telemetry}
    return {
        Gate.MODEL: kv,
        Gate.WORKLOAD: f"{traffic.long_share:.0%} of prompts are over the threshold{mean}{gain}",
        Gate.SCHEDULER: ", ".join(
            f"{'has' if there else 'lacks'} {what}" for what, there in known.items()
        ),
    }
