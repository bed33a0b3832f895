"""TTFT without queueing, as the paper's table 6 has it: T_prefill(L) + S_kv(L) / B.

It is a request alone in the system, paired by the paper with Lambda_max at saturation: a floor, not
what users see under load. The simulator shows queueing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

from router.domain.units import BytesPerSecond, Seconds
from router.throughput.demands import DemandTable
from router.throughput.stages import Deployment, OperatingPoint
from router.throughput.workloads import Workload

_PARTS = 16
"""Parts of each smooth piece; 8 nodes in each give a quantile to three digits."""


@dataclass(frozen=True, slots=True)
class UnloadedTtft:
    """Mean and 90th percentile over all requests, in seconds."""

    mean: Seconds
    p90: Seconds


def unloaded_ttft(
    deployment: Deployment, table: DemandTable, point: OperatingPoint, local_link: BytesPerSecond
) -> UnloadedTtft:
    """Return the TTFT of requests that meet no queue, without layer-wise overlap.

    `local_link` is the bandwidth inside a PD cluster. Where a stage has several pools,
    each takes its share of the stage's rate.
    """
    waits = sorted(
        (seconds, weight * share)
        for length, weight, remote in _requests(table, point)
        for seconds, share in _times(deployment, point, length, local_link, remote=remote)
    )
    total = sum(weight for _, weight in waits)
    mean = sum(seconds * weight for seconds, weight in waits) / total
    reached = list(accumulate(weight for _, weight in waits))
    position = min(bisect_left(reached, 0.9 * total), len(waits) - 1)
    return UnloadedTtft(mean, waits[position][0])


def _requests(table: DemandTable, point: OperatingPoint) -> Iterator[tuple[float, float, bool]]:
    """Yield lengths with their weights, and whether they are offloaded."""
    split = point.demands.split
    marks = sorted({*_fine(table), split.threshold, -1.0})
    for low, high in pairwise(marks):
        for length, weight in table.workload.nodes(low, high):
            if length == split.threshold and split.tied_share:
                yield length, weight * split.tied_share, True
                yield length, weight * (1 - split.tied_share), False
            else:
                yield length, weight, length > split.threshold


def _fine(table: DemandTable) -> Iterator[float]:
    yield from table.edges
    if _is_discrete(table.workload):
        return
    for low, high in pairwise(table.edges):
        yield from (low + (high - low) * part / _PARTS for part in range(1, _PARTS))


def _is_discrete(workload: Workload) -> bool:
    return workload.mass_at(workload.longest) > 0


def _times(
    deployment: Deployment,
    point: OperatingPoint,
    length: float,
    local_link: BytesPerSecond,
    *,
    remote: bool,
) -> Iterator[tuple[Seconds, float]]:
    """Yield the TTFT at each pool of a request's side, and the pool's share of the side."""
    if remote:
        if point.demands.remote is None:
            return  # nothing is offloaded: lengths beyond t have a weight that rounds to none
        together = sum(each.rate for each in point.remotes)
        for pool, rate in zip(deployment.remotes, point.remotes, strict=True):
            if rate.rate:
                profile = pool.profile
                seconds = profile.prefill(length) + profile.kv(length) / pool.egress
                yield seconds, rate.rate / together
        return
    prefills = sum(pd.prefill for pd in deployment.pds)
    for pd in deployment.pds:
        if pd.prefill:
            seconds = pd.profile.prefill(length) + pd.profile.kv(length) / local_link
            yield seconds, pd.prefill / prefills
