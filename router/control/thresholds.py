"""The short loop: t as equation 7 has it for today's links, instances and lengths.

A pure step. Raising t protects a link that carries less, or instances that are gone, so it happens
at once; lowering it only relaxes, so it waits and goes in parts: what recovered for a moment must
not flood the link again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from router.domain.units import Seconds, Tokens
from router.throughput.demands import DemandTable
from router.throughput.planner import solve_whole_threshold, tabulate
from router.throughput.stages import Deployment, OperatingPoint, RequestsPerSecond, evaluate
from router.throughput.workloads import Split, Workload


@dataclass(frozen=True, slots=True)
class Today:
    """One PD cluster as it is now: live instances here and where they could prefill, and traffic.

    `deployment` has one PD pool and every PrfaaS pool with a link to it, with the bandwidth that
    can be used now.
    """

    deployment: Deployment
    workload: Workload


@dataclass(frozen=True, slots=True)
class Solved:
    """The threshold that sustains most today; Lambda_max with it, and with everything at home.

    `today` and `table` are what it was solved for, so that other thresholds can be looked at.
    """

    tokens: Tokens
    rate: RequestsPerSecond
    local_rate: RequestsPerSecond
    today: Today
    table: DemandTable

    def at(self, threshold: Tokens) -> OperatingPoint:
        """Return what the pools of the solve sustain with another threshold."""
        return evaluate(self.today.deployment, self.table.at(Split(float(threshold))))

    @property
    def gain(self) -> float | None:
        """How much more is sustained than at home; None where home sustains nothing."""
        return self.rate / self.local_rate if self.local_rate > 0 else None


@dataclass(frozen=True, slots=True)
class StepRules:
    """How `auto` moves: within bounds, lowering at most by `relax_by` of t every `dwell`.

    Changes below `worth` of t are left alone: lengths are counted, so they tremble by some percent.
    """

    low: Tokens = 512
    high: Tokens = 131_072
    dwell: Seconds = 5.0
    relax_by: float = 0.25
    worth: float = 0.03


@dataclass(frozen=True, slots=True)
class InForce:
    """What `auto` set and when it last changed, and what was solved last."""

    tokens: Tokens
    changed_at: Seconds
    solved: Solved


def solve_today(today: Today, rules: StepRules) -> Solved:
    """Return the best threshold within the bounds, in whole tokens, ties local.

    Raises OutOfRange where a profile may not be extrapolated. Cost: some milliseconds.
    """
    table = tabulate(today.deployment, today.workload)
    solution = solve_whole_threshold(today.deployment, table, bounds=(rules.low, rules.high))
    local = evaluate(today.deployment, table.at_share(1.0))
    tokens = round(solution.split.threshold)
    return Solved(tokens, solution.rate, local.rate, today, table)


def step_threshold(
    state: InForce | None, solved: Solved, now: Seconds, rules: StepRules
) -> InForce:
    """Return what is in force after a solve. The first one holds at once."""
    if state is None:
        return InForce(solved.tokens, now, solved)
    tokens = step_tokens(state.tokens, state.changed_at, solved.tokens, now, rules)
    if tokens == state.tokens:
        return replace(state, solved=solved)
    return InForce(tokens, now, solved)


def step_tokens(
    tokens: Tokens, changed_at: Seconds, wanted: Tokens, now: Seconds, rules: StepRules
) -> Tokens:
    """Return the threshold after `tokens`, in force since `changed_at`, where `wanted` is best."""
    if abs(wanted - tokens) <= rules.worth * tokens:
        return tokens
    if wanted > tokens:
        return wanted
    if now - changed_at < rules.dwell:
        return tokens
    return max(wanted, int(tokens * (1 - rules.relax_by)), rules.low)
