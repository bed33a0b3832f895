"""The long loop: whether an instance of a PD cluster should change its role (DESIGN 8).

A conversion costs minutes of capacity, so three witnesses have to agree, window after window:

1. what stages measure: prompts queue, or engines are busy all the time, at one stage and not at
   the other; where neither is pressed more instances are of no use, and where both are, moving one
   only moves the pressure;
2. equation 8: with t in force the same side has too little by the model;
3. the grid over (N_p, N_d): another division sustains clearly more.

What is not known is no witness. Pure: the caller samples, and tells when a window is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from router.domain.conversions import Conversion
from router.domain.topology import Role
from router.domain.units import Seconds, Tokens
from router.throughput.demands import DemandTable
from router.throughput.planner import (
    Allocation,
    Solution,
    best_allocation,
    solve_whole_threshold,
)
from router.throughput.stages import Deployment, RequestsPerSecond, Stage, evaluate
from router.throughput.workloads import Split

_KNOWN: Final = 0.75
"""Share of a window's samples that must be known: engines may miss some probes, not a phase."""


@dataclass(frozen=True, slots=True)
class StageReading:
    """One stage of a PD cluster: requests that wait, per instance; share of capacity at work.

    `held` is the share of slots that are taken: also by requests that are still being prefilled.
    """

    queued: float
    busy: float
    held: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Both stages at one moment; None where an engine's last word is too old."""

    prefill: StageReading | None
    decode: StageReading | None


@dataclass(frozen=True, slots=True)
class StageSum:
    """What was read of one stage in a window so far."""

    known: int = 0
    queued: float = 0.0
    busy: float = 0.0
    held: float = 0.0

    def add(self, reading: StageReading | None) -> StageSum:
        """Return the sum with one more reading; one that nobody knows adds nothing."""
        if reading is None:
            return self
        return StageSum(
            self.known + 1,
            self.queued + reading.queued,
            self.busy + reading.busy,
            self.held + reading.held,
        )

    def mean(self, samples: int) -> StageReading | None:
        """Return the window's mean; None where too few of its samples are known."""
        if not self.known or self.known < _KNOWN * samples:
            return None
        return StageReading(*(each / self.known for each in (self.queued, self.busy, self.held)))


@dataclass(frozen=True, slots=True)
class Window:
    """The samples of a period so far."""

    samples: int = 0
    prefill: StageSum = StageSum()
    decode: StageSum = StageSum()

    def add(self, sample: Sample) -> Window:
        """Return the window with one more sample."""
        return Window(
            self.samples + 1, self.prefill.add(sample.prefill), self.decode.add(sample.decode)
        )


@dataclass(frozen=True, slots=True)
class BalanceRules:
    """When a conversion is worth proposing.

    A stage is pressed while `queued` requests wait at each of its instances on average, or `busy`
    of its capacity works: at nine tenths a queue is ten services long. `gain` is the least
    predicted rise of Lambda_max, and has to hold for `windows` windows. `dwell` is the least time
    after a conversion ended, well or not.
    """

    windows: int = 5
    gain: float = 0.05
    dwell: Seconds = 600.0
    queued: float = 1.0
    busy: float = 0.9


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance that may be converted: alive, of the pool's hardware. `load` counts its legs."""

    instance: str
    role: Role
    load: int


@dataclass(frozen=True, slots=True)
class ThresholdChoice:
    """What t will be after a conversion: `fixed`, or the best within `bounds`.

    `tokens` is the t in force now.
    """

    tokens: Tokens
    fixed: bool
    bounds: tuple[Tokens, Tokens]


@dataclass(frozen=True, slots=True)
class Situation:
    """One model in one PD cluster as it is when a window ends.

    `deployment` is made of live instances and has one PD pool; an instance of role `both` counts
    for N_p and N_d alike. `rested` is the time since the last conversion ended, None without one.
    """

    model: str
    cluster: str
    deployment: Deployment
    table: DemandTable
    threshold: ThresholdChoice
    candidates: tuple[Candidate, ...]
    rested: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A conversion, and what speaks for it. Rates are the model's Lambda_max.

    `prefill` and `decode` are N_p and N_d now, `best_prefill` and `best_decode` what the grid
    found best; the conversion is one step on the way there. `gain` is the best rate over today's,
    less 1; None where nothing is sustained today. `residual` is equation 8's.
    """

    conversion: Conversion
    binding: Stage
    residual: float
    prefill: int
    decode: int
    best_prefill: int
    best_decode: int
    rate: RequestsPerSecond
    next_rate: RequestsPerSecond
    best_rate: RequestsPerSecond
    windows: int

    @property
    def gain(self) -> float | None:
        """How much more the best division sustains."""
        return self.best_rate / self.rate - 1 if self.rate > 0 else None


class Verdict(StrEnum):
    """What a window came to."""

    UNKNOWN = "unknown"
    """A stage's readings are missing or too old."""
    UNSOLVED = "unsolved"
    """The model has no profile, no link, or too few prompts were seen."""
    BALANCED = "balanced"
    """Neither stage is pressed, or both are."""
    UNCONFIRMED = "unconfirmed"
    """Equation 8 does not say the same as the measurements."""
    NO_GAIN = "no_gain"
    """No division of the instances is clearly better."""
    NO_CANDIDATE = "no_candidate"
    """Nobody may be converted, or it would leave a stage without an instance."""
    CONFIRMING = "confirming"
    """A conversion would be worth it; more windows have to say so."""
    RESTING = "resting"
    """The last conversion is too recent."""
    PROPOSED = "proposed"
    """A conversion is proposed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the last window came to, with the readings that it is made of."""

    verdict: Verdict
    prefill: StageReading | None = None
    decode: StageReading | None = None
    binding: Stage | None = None
    residual: float | None = None
    proposal: Proposal | None = None


@dataclass(frozen=True, slots=True)
class BalanceState:
    """What is known of one model in one PD cluster.

    `binding` was confirmed by the last `windows` windows in a row.
    """

    window: Window = Window()
    binding: Stage | None = None
    windows: int = 0
    finding: Finding | None = None


def step_sample(state: BalanceState, sample: Sample) -> BalanceState:
    """Return the state with one more sample in its window."""
    return replace(state, window=state.window.add(sample))


def step_window(
    state: BalanceState, situation: Situation | None, rules: BalanceRules
) -> BalanceState:
    """Return the state after a window, with what it came to; a new window begins.

    `situation` None: nothing is solved. Cost: some milliseconds for each instance that could be
    converted, and that only where stages and equation 8 agree.
    """
    window = state.window
    prefill = window.prefill.mean(window.samples)
    decode = window.decode.mean(window.samples)
    read = Finding(Verdict.UNKNOWN, prefill, decode)
    if prefill is None or decode is None:
        return BalanceState(finding=read)
    if situation is None:
        return BalanceState(finding=replace(read, verdict=Verdict.UNSOLVED))
    residual = _residual(situation)
    binding = find_binding(prefill, decode, rules)
    read = replace(read, binding=binding, residual=residual)
    if binding is None:
        return BalanceState(finding=replace(read, verdict=Verdict.BALANCED))
    if residual is None or (residual < 0) is not (binding is Stage.PD_P):
        return BalanceState(finding=replace(read, verdict=Verdict.UNCONFIRMED))
    windows = state.windows + 1 if state.binding is binding else 1
    found = _propose(situation, binding, residual, windows, rules)
    if isinstance(found, Verdict):
        return BalanceState(finding=replace(read, verdict=found))
    verdict = Verdict.PROPOSED
    if windows < rules.windows:
        verdict = Verdict.CONFIRMING
    elif situation.rested is not None and situation.rested < rules.dwell:
        verdict = Verdict.RESTING
    proposal = found if verdict is Verdict.PROPOSED else None
    return BalanceState(
        binding=binding,
        windows=windows,
        finding=replace(read, verdict=verdict, proposal=proposal),
    )


def find_binding(prefill: StageReading, decode: StageReading, rules: BalanceRules) -> Stage | None:
    """Return the stage that holds the other one up; None where neither does, or both.

    A decode slot is held from before the prefill on, so slots that are all taken tell of decode
    only while prefill is not what they wait for.
    """
    if not _is_pressed(prefill, rules):
        pressed = _is_pressed(decode, rules) or decode.held >= rules.busy
        return Stage.PD_D if pressed else None
    return None if _is_pressed(decode, rules) else Stage.PD_P


def _is_pressed(reading: StageReading, rules: BalanceRules) -> bool:
    return reading.queued >= rules.queued or reading.busy >= rules.busy


def list_divisions(situation: Situation) -> tuple[Allocation, ...]:
    """Return each division that conversions lead to, with its threshold; in order of N_p.

    One prefill and one decode instance are always left.
    """
    (pd,) = situation.deployment.pds
    spare = _count(situation, Role.PREFILL)
    low = max(1, pd.prefill - spare)
    high = min(pd.prefill + _count(situation, Role.DECODE), pd.instances - 1)
    return tuple(
        _solve(situation.deployment.with_prefill({pd.name: n}), situation)
        for n in range(min(low, pd.prefill), max(high, pd.prefill) + 1)
    )


def _propose(
    situation: Situation, binding: Stage, residual: float, windows: int, rules: BalanceRules
) -> Proposal | Verdict:
    """Return the conversion that relieves the binding stage, or why there is none."""
    source, target = (
        (Role.DECODE, Role.PREFILL) if binding is Stage.PD_P else (Role.PREFILL, Role.DECODE)
    )
    (pd,) = situation.deployment.pds
    step = 1 if target is Role.PREFILL else -1
    divisions = {each.prefill: each for each in list_divisions(situation)}
    instance = _least_loaded(situation, source)
    if instance is None or pd.prefill + step not in divisions:
        return Verdict.NO_CANDIDATE
    now, after = divisions[pd.prefill], divisions[pd.prefill + step]
    best = best_allocation(list(divisions.values()))
    leads_there = (best.prefill - pd.prefill) * step > 0
    worth = best.solution.rate >= now.solution.rate * (1 + rules.gain)
    if not leads_there or not worth or after.solution.rate <= now.solution.rate:
        return Verdict.NO_GAIN
    return Proposal(
        conversion=Conversion(situation.model, situation.cluster, instance, source, target),
        binding=binding,
        residual=residual,
        prefill=pd.prefill,
        decode=pd.decode,
        best_prefill=best.prefill,
        best_decode=best.decode,
        rate=now.solution.rate,
        next_rate=after.solution.rate,
        best_rate=best.solution.rate,
        windows=windows,
    )


def _solve(deployment: Deployment, situation: Situation) -> Allocation:
    """Return what a division sustains with the threshold that it would have."""
    choice, table = situation.threshold, situation.table
    if choice.fixed:
        point = evaluate(deployment, table.at(Split(float(choice.tokens))))
        return Allocation(deployment, Solution(point, 0))
    return Allocation(deployment, solve_whole_threshold(deployment, table, bounds=choice.bounds))


def _residual(situation: Situation) -> float | None:
    split = Split(float(situation.threshold.tokens))
    return evaluate(situation.deployment, situation.table.at(split)).balance_residual


def _count(situation: Situation, role: Role) -> int:
    return sum(each.role is role for each in situation.candidates)


def _least_loaded(situation: Situation, role: Role) -> str | None:
    """Return who has least to finish before it can change; ties by name."""
    those = [each for each in situation.candidates if each.role is role]
    least = min(those, key=lambda each: (each.load, each.instance), default=None)
    return None if least is None else least.instance
