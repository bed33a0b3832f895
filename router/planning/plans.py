"""From a scenario to a plan: threshold, allocation, verdicts, comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from router.domain.units import Bytes
from router.planning.scenarios import Configured, Scenario
from router.planning.sensitivity import Sensitivity, vary_all
from router.planning.verdicts import Verdicts, judge
from router.throughput.demands import DemandTable, Form
from router.throughput.latencies import UnloadedTtft, unloaded_ttft
from router.throughput.planner import (
    Allocation,
    Solution,
    best_allocation,
    list_allocations,
    plan_homogeneous,
    plan_local,
    plan_naive,
    solve_threshold,
    solve_whole_threshold,
    sweep_thresholds,
    tabulate,
)
from router.throughput.prices import Prices, pd_for_money, price_of
from router.throughput.sizing import TransferPool, size_prefix_pool, size_transfer_pools
from router.throughput.stages import Deployment, OperatingPoint, Stage, evaluate
from router.throughput.workloads import Split

_SWEPT: Final = 96
"""Thresholds of a sweep."""


class Option(StrEnum):
    """A deployment that a plan is compared with."""

    PLANNED = "planned"
    CONFIGURED = "configured"
    LOCAL = "local"
    NAIVE = "naive"
    HOMOGENEOUS = "homogeneous"
    EQUAL_COST = "equal_cost"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One option: what it consists of, sustains and costs.

    `gain` is the plan's Lambda_max over this one's, None where this one sustains nothing. `cost` is
    None without prices.
    """

    option: Option
    deployment: Deployment
    point: OperatingPoint
    ttft: UnloadedTtft | None
    cost: float | None
    gain: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to build and configure, and what it gives.

    Thresholds are those that the router acts on: whole tokens, ties local. `local` is the best of
    the PD clusters alone; `balanced` is what the planned deployment would bear if ties could be
    divided; `other_form` is the same deployment in the form that was not asked for, with its own
    threshold.
    """

    scenario: Scenario
    best: Allocation
    local: Allocation
    balanced: Solution
    other_form: Solution
    allocations: tuple[Allocation, ...]
    sweep: tuple[OperatingPoint, ...]
    verdicts: Verdicts
    comparisons: tuple[Comparison, ...]
    sensitivities: tuple[Sensitivity, ...]
    transfer_pools: tuple[TransferPool, ...]
    prefix_bytes: Bytes | None
    notes: tuple[str, ...]

    @property
    def point(self) -> OperatingPoint:
        """The operating point."""
        return self.best.solution.point

    @property
    def headroom(self) -> float | None:
        """The part of all links that is free at Lambda_max; None without links."""
        egress = self.best.deployment.egress
        return 1 - self.point.egress / egress if egress > 0 else None


def make_plan(scenario: Scenario) -> Plan:
    """Plan a scenario.

    Raises TooManyAllocations, and OutOfRange where a profile may not be extrapolated to the
    workload's lengths. Cost: about a second for eight PD instances.
    """
    table = tabulate(scenario.deployment, scenario.workload)
    allocations = list_allocations(scenario.deployment, table, form=scenario.form, whole=True)
    best = best_allocation(allocations)
    point = best.solution.point
    other = Form.REPRESENTATIVE if scenario.form is Form.EXACT else Form.EXACT
    local = plan_local(scenario.deployment.pds, scenario.workload, scenario.form)
    gain = point.rate / local.solution.rate if local.solution.rate else None
    plan = Plan(
        scenario=scenario,
        best=best,
        local=local,
        balanced=solve_threshold(best.deployment, table, scenario.form),
        other_form=solve_whole_threshold(best.deployment, table, form=other),
        allocations=allocations,
        sweep=_sweep(scenario, best.deployment, table),
        verdicts=judge(scenario, point, gain=gain, solved=point.rate > 0),
        comparisons=tuple(_compare(scenario, table, best, local)),
        sensitivities=vary_all(scenario, best.deployment, best.solution.split),
        transfer_pools=size_transfer_pools(best.deployment, point),
        prefix_bytes=_prefix_bytes(scenario),
        notes=(),
    )
    return replace(plan, notes=tuple(_note(plan)))


def _sweep(
    scenario: Scenario, deployment: Deployment, table: DemandTable
) -> tuple[OperatingPoint, ...]:
    """Return operating points over the whole range of lengths, evenly spaced in ln t."""
    if not deployment.remotes:
        return ()
    low, high = max(1.0, scenario.workload.shortest), scenario.workload.longest
    ratio = high / low
    lengths = [low * ratio ** (i / (_SWEPT - 1)) for i in range(_SWEPT)] if ratio > 1 else [low]
    return sweep_thresholds(deployment, table, lengths, scenario.form)


def _compare(
    scenario: Scenario, table: DemandTable, best: Allocation, local: Allocation
) -> Iterator[Comparison]:
    def row(
        option: Option, deployment: Deployment, point: OperatingPoint, rows: DemandTable
    ) -> Comparison:
        cost = None if prices is None else price_of(deployment, prices)
        ttft = unloaded_ttft(deployment, rows, point, scenario.local_link) if point.rate else None
        gain = best.solution.rate / point.rate if point.rate else None
        return Comparison(option, deployment, point, ttft, cost, gain)

    prices = _prices_with_baseline(scenario)
    yield row(Option.PLANNED, best.deployment, best.solution.point, table)
    if scenario.configured is not None:
        today, point = _as_configured(scenario, best.deployment, table, scenario.configured)
        yield row(Option.CONFIGURED, today, point, table)
    if not scenario.deployment.remotes:
        return
    alone = tabulate(local.deployment, scenario.workload)
    yield row(Option.LOCAL, local.deployment, local.solution.point, alone)
    naive = plan_naive(scenario.deployment, table, scenario.form)
    yield row(Option.NAIVE, naive.deployment, naive.solution.point, table)
    yield from (
        row(
            option,
            same.deployment,
            same.solution.point,
            tabulate(same.deployment, scenario.workload),
        )
        for option, same in _homogeneous(scenario, best.deployment, prices)
    )


def _homogeneous(
    scenario: Scenario, planned: Deployment, prices: Prices | None
) -> Iterator[tuple[Option, Allocation]]:
    base = scenario.baseline
    yield Option.HOMOGENEOUS, plan_homogeneous(base, scenario.workload, scenario.form)
    if prices is None:
        return
    bought = pd_for_money(base, price_of(planned, prices), prices)
    yield Option.EQUAL_COST, plan_homogeneous(bought, scenario.workload, scenario.form)


def _prices_with_baseline(scenario: Scenario) -> Prices | None:
    """The baseline's instances cost what those of the first PD pool do."""
    prices = scenario.prices
    if prices is None:
        return None
    price = prices.instance[scenario.deployment.pds[0].name]
    return replace(prices, instance={**prices.instance, scenario.baseline.name: price})


def _as_configured(
    scenario: Scenario, planned: Deployment, table: DemandTable, configured: Configured
) -> tuple[Deployment, OperatingPoint]:
    deployment = planned.with_prefill(configured.prefill)
    split = Split(float(configured.threshold))
    return deployment, evaluate(deployment, table.at(split, scenario.form))


def _prefix_bytes(scenario: Scenario) -> Bytes | None:
    wanted = scenario.prefix_set
    if wanted is None:
        return None
    return size_prefix_pool(wanted.line, prefixes=wanted.prefixes, tokens=wanted.tokens)


def _note(plan: Plan) -> Iterator[str]:
    """Yield what a reader should know before believing the numbers."""
    scenario = plan.scenario
    rate = plan.point.rate
    yield from _note_extrapolation(scenario)
    yield from _note_alternatives(plan)
    if plan.balanced.rate > rate * 1.005:
        tied = plan.balanced.split.threshold
        yield (
            f"{scenario.workload.mass_at(tied):.0%} of prompts have exactly {tied:,.0f} tokens:"
            f" divided between both sides they would let {plan.balanced.rate:.3g} requests/s pass,"
            f" which no threshold can do; with one it is {rate:.3g}"
        )
    decode = plan.point.theta[Stage.PD_D] or 0.0
    if plan.best.deployment.remotes and decode > rate * 1.05:
        yield (
            f"decode could bear {decode / rate - 1:.0%} more than prefill brings:"
            " with whole instances equation 8 holds only nearly"
        )
    if scenario.rate is not None and scenario.rate > rate:
        yield f"{scenario.rate:g} requests/s are asked for, but only {rate:.3g} can be borne"
    yield "TTFT is that of a request alone in the system; under load requests queue"


def _note_alternatives(plan: Plan) -> Iterator[str]:
    """Yield the deployments of PD instances alone that sustain more."""
    words = {
        Option.HOMOGENEOUS: "as many PD instances without a link",
        Option.EQUAL_COST: "PD instances for the same money, without a link,",
    }
    for each in plan.comparisons:
        if each.option in words and each.point.rate > plan.point.rate:
            yield f"{words[each.option]} would sustain more: {each.point.rate:.3g} requests/s"


def _note_extrapolation(scenario: Scenario) -> Iterator[str]:
    profiles = {pool.name: pool.profile for pool in scenario.deployment.remotes}
    profiles |= {pd.name: pd.profile for pd in scenario.deployment.pds}
    for name, profile in profiles.items():
        shortest, longest = profile.prefill.xs[0], profile.longest
        below = scenario.workload.share_up_to(shortest) - scenario.workload.mass_at(shortest)
        above = 1 - scenario.workload.share_up_to(longest)
        if below + above > 0.01:
            yield (
                f"{below + above:.1%} of prompts are outside the lengths that {name}'s profile has"
                f" ({shortest:,.0f} to {longest:,.0f} tokens): it is extrapolated"
            )
