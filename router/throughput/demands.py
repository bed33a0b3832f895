"""What the requests of each side ask of the pools, on average, for any threshold.

The averages over L > t and L <= t are differences of running sums, tabulated once for a workload
and its profiles; a threshold then costs one search and eight evaluations of each curve. That is
quick enough for a solver inside the short loop without a numerical library (docs/model.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from router.domain.units import Seconds
from router.throughput.profiles import Profile
from router.throughput.workloads import Split, Workload, local_share

_NOBODY = 1e-12
"""A share of requests below this is rounding: that side has no requests."""

_Cost = Callable[[float], float]


class Form(StrEnum):
    """How a side's requests are averaged."""

    EXACT = "exact"
    """E[T(L) | side]: the mean over the lengths. Both ceilings are then monotone in t."""
    REPRESENTATIVE = "representative"
    """T(E[L | side]): the paper's stand-in of one length for all (section 3.4.1)."""


@dataclass(frozen=True, slots=True)
class RemoteDemand:
    """What an offloaded request asks of one PrfaaS pool: prefill seconds and KV bytes."""

    seconds: Seconds
    kv_bytes: float


@dataclass(frozen=True, slots=True)
class Demands:
    """The two sides of a split.

    `offload_share` is p = P(L > t); `long_tokens` and `short_tokens` are l_long = E[L | L > t] and
    l_short = E[L | L <= t]. A side without requests has None and no demands.
    """

    split: Split
    offload_share: float
    long_tokens: float | None
    short_tokens: float | None
    remote: tuple[RemoteDemand, ...] | None
    local: tuple[Seconds, ...] | None


@dataclass(frozen=True, slots=True)
class DemandTable:
    """Running sums of lengths, prefill seconds and KV bytes over a workload.

    Columns are L, then T and S of each PrfaaS profile, then T of each PD profile. `sums[i]` are
    the averages over L <= edges[i].
    """

    workload: Workload
    remote: tuple[Profile, ...]
    local: tuple[Profile, ...]
    edges: tuple[float, ...]
    sums: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, workload: Workload, remote: Sequence[Profile], local: Sequence[Profile]) -> Self:
        """Tabulate. Raises OutOfRange where a profile may not extrapolate that far."""
        costs = _columns(remote, local)
        knots = {x for profile in (*remote, *local) for x in profile.prefill.xs}
        inner = {x for x in knots if workload.shortest < x < workload.longest}
        edges = tuple(sorted(inner.union(workload.edges)))
        total = (0.0,) * len(costs)
        sums = []
        for low, high in zip((-1.0, *edges), edges, strict=False):
            total = _add(total, workload.nodes(low, high), costs)
            sums.append(total)
        return cls(workload, tuple(remote), tuple(local), edges, tuple(sums))

    def at(self, split: Split, form: Form = Form.EXACT) -> Demands:
        """Return the demands of both sides. Cost: O(log edges) and eight points a curve."""
        below = self._below(split)
        total = self.sums[-1]
        stay = local_share(self.workload, split)
        share = 1.0 - stay
        far = (
            None
            if share < _NOBODY
            else [(t - b) / share for t, b in zip(total, below, strict=True)]
        )
        near = None if stay < _NOBODY else [b / stay for b in below]
        long_tokens = None if far is None else self._within(far[0])
        short_tokens = None if near is None else self._within(near[0])
        if form is Form.REPRESENTATIVE:
            costs = _columns(self.remote, self.local)
            far = None if long_tokens is None else [cost(long_tokens) for cost in costs]
            near = None if short_tokens is None else [cost(short_tokens) for cost in costs]
        ends = 1 + 2 * len(self.remote)
        return Demands(
            split=split,
            offload_share=0.0 if far is None else 1.0 if near is None else share,
            long_tokens=long_tokens,
            short_tokens=short_tokens,
            remote=None
            if far is None
            else tuple(RemoteDemand(far[i], far[i + 1]) for i in range(1, ends, 2)),
            local=None if near is None else tuple(near[ends:]),
        )

    def at_share(self, stay: float, form: Form = Form.EXACT) -> Demands:
        """Return the demands where the shortest `stay` of all requests stay local."""
        return self.at(self.workload.split_at(stay), form)

    def _within(self, mean: float) -> float:
        """A mean of lengths is between them, whatever rounding says."""
        return min(max(mean, self.workload.shortest), self.workload.longest)

    def _below(self, split: Split) -> tuple[float, ...]:
        """Return each column's average over the local side, E[f(L); L local]."""
        t = split.threshold
        if t < self.edges[0]:
            return (0.0,) * len(self.sums[0])
        i = bisect_right(self.edges, t) - 1
        below = self.sums[i]
        costs = _columns(self.remote, self.local)
        if t > self.edges[i]:
            below = _add(below, self.workload.nodes(self.edges[i], t), costs)
        if split.tied_share:
            tied = -split.tied_share * self.workload.mass_at(t)
            below = _add(below, ((t, tied),), costs)
        return below


def _columns(remote: Sequence[Profile], local: Sequence[Profile]) -> list[_Cost]:
    columns: list[_Cost] = [_length]
    for profile in remote:
        columns += (profile.prefill, profile.kv)
    columns += (profile.prefill for profile in local)
    return columns


def _length(tokens: float) -> float:
    return tokens


def _add(
    sums: tuple[float, ...], nodes: Sequence[tuple[float, float]], costs: Sequence[_Cost]
) -> tuple[float, ...]:
    if not nodes:
        return sums
    return tuple(
        so_far + sum(weight * cost(length) for length, weight in nodes)
        for so_far, cost in zip(sums, costs, strict=True)
    )
