"""How a plan stands when bandwidth, lengths or cache hits turn out otherwise.

Each value is told three times: with everything left as planned, with t solved again (what the
short loop does within seconds), and with N_p and N_d chosen again too (what the long loop does in
minutes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Final

from router.domain.units import to_gbps
from router.planning.scenarios import Scenario
from router.throughput.curves import OutOfRange
from router.throughput.demands import DemandTable, Form
from router.throughput.planner import (
    best_allocation,
    list_allocations,
    solve_whole_threshold,
    tabulate,
)
from router.throughput.stages import Deployment, evaluate
from router.throughput.workloads import Split

_BANDWIDTHS: Final = (0.02, 0.05, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
_LENGTHS: Final = (0.25, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
_HITS: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

_REPLANNED_ALLOCATIONS: Final = 65
"""Up to 64 instances are divided anew at each value: a tenth of a second each."""


class Axis(StrEnum):
    """What is varied."""

    BANDWIDTH = "bandwidth"
    LENGTHS = "lengths"
    CACHE_HITS = "cache_hits"


@dataclass(frozen=True, slots=True)
class Reaction:
    """Lambda_max at one value: as planned, with t solved again, and with N_p too.

    `threshold` is the t solved again. `replanned` is None where there are too many allocations.
    """

    value: float
    kept: float
    resolved: float
    threshold: float
    offload_share: float
    replanned: float | None


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """One axis. `planned` is the value that the plan was made for."""

    axis: Axis
    planned: float
    reactions: tuple[Reaction, ...]


def vary_all(scenario: Scenario, deployment: Deployment, split: Split) -> tuple[Sensitivity, ...]:
    """Return every axis for a planned deployment and its threshold.

    Values at which a profile may not be extrapolated are left out.
    """
    axes = [_vary_lengths(scenario, deployment, split), _vary_hits(scenario, deployment, split)]
    if deployment.egress > 0:
        axes.insert(0, _vary_bandwidth(scenario, deployment, split))
    return tuple(axes)


def _vary_bandwidth(scenario: Scenario, deployment: Deployment, split: Split) -> Sensitivity:
    table = tabulate(deployment, scenario.workload)
    planned = to_gbps(deployment.egress)
    reactions = tuple(
        _react(factor * planned, deployment.with_egress(factor), table, split, scenario.form)
        for factor in _BANDWIDTHS
    )
    return Sensitivity(Axis.BANDWIDTH, planned, reactions)


def _vary_lengths(scenario: Scenario, deployment: Deployment, split: Split) -> Sensitivity:
    return Sensitivity(
        Axis.LENGTHS,
        1.0,
        tuple(_scale(scenario, deployment, split, _LENGTHS, lambda factor: factor)),
    )


def _vary_hits(scenario: Scenario, deployment: Deployment, split: Split) -> Sensitivity:
    planned = scenario.cache_hit_ratio
    values = tuple(sorted({*_HITS, planned}))
    return Sensitivity(
        Axis.CACHE_HITS,
        planned,
        tuple(_scale(scenario, deployment, split, values, lambda hits: (1 - hits) / (1 - planned))),
    )


def _scale(
    scenario: Scenario,
    deployment: Deployment,
    split: Split,
    values: tuple[float, ...],
    factor_of: Callable[[float], float],
) -> Iterator[Reaction]:
    for value in values:
        workload = scenario.workload.scaled(factor_of(value))
        try:
            table = tabulate(deployment, workload)
            yield _react(value, deployment, table, split, scenario.form)
        except OutOfRange:
            continue


def _react(
    value: float, deployment: Deployment, table: DemandTable, split: Split, form: Form
) -> Reaction:
    kept = evaluate(deployment, table.at(split, form))
    solution = solve_whole_threshold(deployment, table, form=form)
    replanned = None
    if prod(pd.instances + 1 for pd in deployment.pds) <= _REPLANNED_ALLOCATIONS:
        best = best_allocation(list_allocations(deployment, table, form=form, whole=True))
        replanned = best.solution.rate
    return Reaction(
        value=value,
        kept=kept.rate,
        resolved=solution.rate,
        threshold=solution.split.threshold,
        offload_share=solution.point.demands.offload_share,
        replanned=replanned,
    )
