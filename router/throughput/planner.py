"""The best threshold and the best split of instances, and what to compare them with.

Both ceilings of equation 7 are monotone in t in the exact form: E[T; L > t] can only shrink as t
grows. So their crossing is unique, and bisection finds it. It runs over the share of requests that
stay local rather than over t, since that share moves continuously where t cannot: many requests of
one length are then divided by a share of them (`Split.tied_share`). The representative form is not
monotone, and is searched slice by slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from router.domain.errors import RouterError
from router.domain.units import Tokens
from router.throughput.demands import DemandTable, Form
from router.throughput.stages import (
    Deployment,
    OperatingPoint,
    PdPool,
    RequestsPerSecond,
    evaluate,
    prefill_ceilings,
)
from router.throughput.workloads import Split, Workload

_BISECTIONS: Final = 36
"""Halvings of the local share: to 1e-11, far below what a token more or less changes."""

_SLICES: Final = 64
"""Slices in which the representative form is searched for crossings."""

_EQUAL: Final = 1e-9
"""Rates that differ by less than this part of themselves are equal."""

MAX_ALLOCATIONS: Final = 100_000
"""Allocations that a grid may have: a minute of solving at half a millisecond each."""


class TooManyAllocations(RouterError):
    """The grid over (N_p, N_d) of all PD pools is too large to be searched."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The threshold that sustains most. `crossings` counts the roots of equation 7 found.

    Without a crossing one side binds at every threshold, and the best end of the range is taken.
    """

    point: OperatingPoint
    crossings: int

    @property
    def split(self) -> Split:
        """t*, and the share of requests of exactly that length that go remote."""
        return self.point.demands.split

    @property
    def rate(self) -> RequestsPerSecond:
        """Lambda_max."""
        return self.point.rate


@dataclass(frozen=True, slots=True)
class Allocation:
    """One way to divide the PD instances, with the best threshold for it."""

    deployment: Deployment
    solution: Solution

    @property
    def prefill(self) -> int:
        """N_p over all PD pools."""
        return sum(pd.prefill for pd in self.deployment.pds)

    @property
    def decode(self) -> int:
        """N_d over all PD pools."""
        return sum(pd.decode for pd in self.deployment.pds)


def tabulate(deployment: Deployment, workload: Workload) -> DemandTable:
    """Return the demands of a workload on the pools of a deployment, for any threshold.

    The table depends on profiles alone: allocations and bandwidths of one deployment share it.
    """
    return DemandTable.of(
        workload,
        [pool.profile for pool in deployment.remotes],
        [pd.profile for pd in deployment.pds],
    )


def solve_threshold(
    deployment: Deployment, table: DemandTable, form: Form = Form.EXACT
) -> Solution:
    """Return t* by equation 7, or the best end where the ceilings do not cross.

    Cost: about 40 look-ups in the table, a millisecond or two.
    """
    if not deployment.remotes:
        return Solution(evaluate(deployment, table.at_share(1.0, form)), 0)
    slices = 1 if form is Form.EXACT else _SLICES
    marks = [i / slices for i in range(slices + 1)]
    gaps = [_gap(deployment, table, mark, form) for mark in marks]
    candidates = {0.0, 1.0}
    crossings = 0
    for i in range(slices):
        if (gaps[i] < 0) == (gaps[i + 1] < 0):
            continue
        crossings += 1
        candidates.update(_bisect(deployment, table, form, marks[i], marks[i + 1]))
    if form is Form.REPRESENTATIVE:
        candidates.update(marks)
    # The ends come first: where nothing crosses, one side is to have all requests, not nearly all.
    marks = [0.0, 1.0, *sorted(candidates - {0.0, 1.0})]
    points = [evaluate(deployment, table.at_share(mark, form)) for mark in marks]
    best = max(point.rate for point in points)
    # Of equal rates the least unbalanced is taken: a stage that binds anyway makes t indifferent.
    equal = [point for point in points if point.rate >= best * (1 - _EQUAL)]
    return Solution(min(equal, key=_imbalance), crossings)


def solve_whole_threshold(
    deployment: Deployment,
    table: DemandTable,
    *,
    bounds: tuple[Tokens, Tokens] | None = None,
    form: Form = Form.EXACT,
) -> Solution:
    """Return the best threshold that the router can act on: whole tokens, a tie stays local.

    Where the balanced split divides requests of one length, all of them go to the side that
    sustains more. `bounds` limit t.
    """
    solution = solve_threshold(deployment, table, form)
    threshold = solution.split.threshold
    choices = {math.floor(threshold), math.ceil(threshold)}
    if solution.split.tied_share:
        choices.add(math.ceil(threshold) - 1)
    low, high = bounds or (0, max(choices))
    choices = {min(max(0, low, choice), high) for choice in choices}
    points = [
        evaluate(deployment, table.at(Split(float(choice)), form)) for choice in sorted(choices)
    ]
    return Solution(max(points, key=lambda point: point.rate), solution.crossings)


def list_allocations(
    deployment: Deployment,
    table: DemandTable,
    *,
    form: Form = Form.EXACT,
    split: Split | None = None,
    whole: bool = False,
) -> tuple[Allocation, ...]:
    """Return every division of the PD instances into N_p and N_d, each with its best threshold.

    With `split` the threshold is given instead of solved; `whole` solves for one that the router
    can act on. Ordered by N_p of the first pool, then of the next. Raises TooManyAllocations.
    """
    count = math.prod(pd.instances + 1 for pd in deployment.pds)
    if count > MAX_ALLOCATIONS:
        raise TooManyAllocations(
            f"{count:,} allocations are more than {MAX_ALLOCATIONS:,}:"
            " plan the clusters by themselves"
        )

    def solve(candidate: Deployment) -> Solution:
        if split is not None:
            return Solution(evaluate(candidate, table.at(split, form)), 0)
        if whole:
            return solve_whole_threshold(candidate, table, form=form)
        return solve_threshold(candidate, table, form)

    return tuple(Allocation(each, solve(each)) for each in _divisions(deployment))


def best_allocation(allocations: Sequence[Allocation]) -> Allocation:
    """Return the allocation that sustains most; of equal ones that with the fewest prefills."""
    best = max(each.solution.rate for each in allocations)
    equal = [each for each in allocations if each.solution.rate >= best * (1 - _EQUAL)]
    return min(equal, key=lambda each: each.prefill)


def plan_homogeneous(pd: PdPool, workload: Workload, form: Form = Form.EXACT) -> Allocation:
    """Return the best deployment of one PD pool alone: everything is prefilled at home."""
    return plan_local((pd,), workload, form)


def plan_local(pds: Sequence[PdPool], workload: Workload, form: Form = Form.EXACT) -> Allocation:
    """Return the best deployment of PD pools alone, without any PrfaaS pool."""
    deployment = Deployment((), tuple(pds))
    return best_allocation(list_allocations(deployment, tabulate(deployment, workload), form=form))


def plan_naive(deployment: Deployment, table: DemandTable, form: Form = Form.EXACT) -> Allocation:
    """Return the deployment without a scheduler: all prefill is remote, all PD decode."""
    naive = deployment.with_prefill({pd.name: 0 for pd in deployment.pds})
    return Allocation(naive, Solution(evaluate(naive, table.at_share(0.0, form)), 0))


def sweep_thresholds(
    deployment: Deployment,
    table: DemandTable,
    thresholds: Sequence[float],
    form: Form = Form.EXACT,
) -> tuple[OperatingPoint, ...]:
    """Return the operating point of each threshold."""
    return tuple(evaluate(deployment, table.at(Split(t), form)) for t in thresholds)


def _divisions(deployment: Deployment) -> Iterator[Deployment]:
    for counts in product(*(range(pd.instances + 1) for pd in deployment.pds)):
        names = (pd.name for pd in deployment.pds)
        yield deployment.with_prefill(dict(zip(names, counts, strict=True)))


def _gap(deployment: Deployment, table: DemandTable, stay: float, form: Form) -> float:
    """Return how far the remote ceiling is over the local one; its sign is what is searched for."""
    remote, local = prefill_ceilings(deployment, table.at_share(stay, form))
    return 0.0 if remote == local else remote - local


def _bisect(
    deployment: Deployment, table: DemandTable, form: Form, low: float, high: float
) -> tuple[float, float]:
    """Return two neighbouring local shares between which the ceilings cross."""
    low_is_negative = _gap(deployment, table, low, form) < 0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if (_gap(deployment, table, middle, form) < 0) == low_is_negative:
            low = middle
        else:
            high = middle
    return low, high


def _imbalance(point: OperatingPoint) -> float:
    residual = point.threshold_residual
    return 1.0 if residual is None else abs(residual)
