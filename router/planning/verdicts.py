"""The three gates, asked of a plan: the same judgements as at a request's admission."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from router.domain.decision import WorkloadView
from router.domain.units import BytesPerSecond
from router.planning.scenarios import Scenario
from router.policy.gates import Doubt, judge_model, judge_scheduler, judge_workload
from router.throughput.stages import OperatingPoint, RemotePool, egress_demand


class Gate(StrEnum):
    """A gate before offloading."""

    MODEL = "model"
    WORKLOAD = "workload"
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class PoolKv:
    """The KV that one PrfaaS pool makes at the operating length.

    `rate` is Phi_kv of one instance, `demand` what all of them make when busy (equation 2),
    `egress` what their links carry.
    """

    name: str
    tokens: float
    rate: BytesPerSecond
    demand: BytesPerSecond
    egress: BytesPerSecond


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a gate says. It passes without doubts."""

    gate: Gate
    doubts: tuple[Doubt, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against offloading."""
        return not self.doubts


@dataclass(frozen=True, slots=True)
class Verdicts:
    """All three gates and what they looked at."""

    model: Verdict
    workload: Verdict
    scheduler: Verdict
    pools: tuple[PoolKv, ...]
    traffic: WorkloadView

    def __iter__(self) -> Iterator[Verdict]:
        yield from (self.model, self.workload, self.scheduler)

    @property
    def passed(self) -> bool:
        """Whether every gate passes."""
        return all(verdict.passed for verdict in self)


def judge(
    scenario: Scenario, point: OperatingPoint, *, gain: float | None, solved: bool
) -> Verdicts:
    """Ask the gates at an operating point.

    `gain` is Lambda_max over that of the PD pools alone; `solved` whether a threshold was found
    that both sides bear.
    """
    demands = point.demands
    length = demands.long_tokens or demands.short_tokens or scenario.workload.longest
    pools = tuple(_weigh(pool, length) for pool in scenario.deployment.remotes)
    doubts = {
        doubt
        for pool in pools
        for doubt in judge_model(pool.rate, scenario.limits, pool.egress, profile_required=True)
    }
    traffic = WorkloadView(demands.offload_share, demands.long_tokens, gain)
    return Verdicts(
        model=Verdict(Gate.MODEL, tuple(sorted(doubts))),
        workload=Verdict(Gate.WORKLOAD, judge_workload(traffic, scenario.limits)),
        scheduler=Verdict(
            Gate.SCHEDULER,
            judge_scheduler(
                metadata_trusted=scenario.knowledge.metadata,
                telemetry_fresh=scenario.knowledge.telemetry,
                threshold_solved=solved,
            ),
        ),
        pools=pools,
        traffic=traffic,
    )


def _weigh(pool: RemotePool, length: float) -> PoolKv:
    seconds, kv_bytes = pool.profile.prefill(length), pool.profile.kv(length)
    return PoolKv(
        pool.name,
        length,
        egress_demand(1, kv_bytes, seconds),
        egress_demand(pool.instances, kv_bytes, seconds),
        pool.egress,
    )
