"""The long loop in a simulated system: production's own windows, grid and conversions.

What is simulated is what decides nothing: who is busy, when an instance is empty, how long the
change takes. t is solved by the short loop's step, for the lengths of late and the links of now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from router.control.balance import (
    BalanceRules,
    BalanceState,
    Candidate,
    Sample,
    Situation,
    StageReading,
    ThresholdChoice,
    step_sample,
    step_window,
)
from router.control.conversions import (
    ConversionRules,
    Done,
    Pending,
    Phase,
    Progress,
    Reply,
    Seen,
    begin_conversion,
    step_conversion,
)
from router.control.thresholds import (
    InForce,
    Solved,
    StepRules,
    Today,
    solve_today,
    step_threshold,
)
from router.domain.topology import ClusterKind
from router.domain.units import BytesPerSecond, Seconds, Tokens
from router.service.lengths import ModelLengths
from router.sim.instances import Instance
from router.sim.system import MODEL, Job, System
from router.throughput.stages import DecodeRules, Deployment, PdPool, RemotePool

_Inputs = tuple[tuple[BytesPerSecond, ...], int, int]
"""What links carry, N_p and N_d: t is solved anew where they change."""


@dataclass(frozen=True, slots=True)
class LongLoopSpec:
    """How the loop goes: a window's length, its rules, and what a change of role takes.

    `output_tokens` is the mean answer that decode is planned for. `threshold` None keeps the
    plant's t, otherwise t is solved within these bounds.
    """

    output_tokens: float
    period: Seconds = 60.0
    rules: BalanceRules = field(default_factory=BalanceRules)
    conversion: ConversionRules = field(default_factory=ConversionRules)
    changeover: Seconds = 60.0
    threshold: StepRules | None = field(default_factory=StepRules)


class LongLoop:
    """One run's loop. Looked at about once a second; says what changes about an instance."""

    def __init__(self, spec: LongLoopSpec) -> None:
        self.progress: Progress | None = None
        self.history: list[Progress] = []
        self._spec = spec
        self._state = BalanceState()
        self._lengths = ModelLengths()
        self._closed_at: Seconds = 0.0
        self._quiet_since: Seconds | None = None
        self._in_force: InForce | None = None
        self._solved_for: _Inputs | None = None

    def __repr__(self) -> str:
        return f"<LongLoop, {len(self.history)} steps of conversions>"

    def note(self, *, uncached: Tokens, computed: Tokens, offloaded: bool) -> None:
        """Take a decision into the lengths of late."""
        self._lengths.note(uncached=uncached, computed=computed, offloaded=offloaded)

    def step(self, system: System, now: Seconds) -> Progress | None:
        """Look once; return how far a conversion is now, where that has changed."""
        before = self.progress
        if before is not None and not before.phase.is_over:
            self.progress = step_conversion(before, self._see(system, now), self._spec.conversion)
            # A stage without one of its instances tells nothing of balance.
            self._state, self._closed_at = BalanceState(), now
        else:
            self._state = step_sample(self._state, _read(system, now))
            if now - self._closed_at >= self._spec.period:
                self._closed_at = now
                self._close_window(system, now)
        if self._solved_for not in (None, _inputs(system)):
            self._solve(system, now)
        if self.progress is before or self.progress is None:
            return None
        self.history.append(self.progress)
        return self.progress

    def _close_window(self, system: System, now: Seconds) -> None:
        solved = self._solve(system, now)
        situation = None if solved is None else self._situation(system, solved, now)
        self._state = step_window(self._state, situation, self._spec.rules)
        finding = self._state.finding
        if finding is not None and finding.proposal is not None:
            self._quiet_since = None
            self.progress = begin_conversion(finding.proposal.conversion, now)

    def _see(self, system: System, now: Seconds) -> Seen:
        progress = self.progress
        assert progress is not None  # noqa: S101 - only called while one is under way
        if _is_busy(system.named[progress.conversion.instance], now):
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        quiet = 0.0 if self._quiet_since is None else now - self._quiet_since
        reply: Reply = Done()
        if progress.phase is Phase.VERIFYING and now - progress.since < self._spec.changeover:
            reply = Pending()
        return Seen(now, quiet, reply)

    # -- t

    def _solve(self, system: System, now: Seconds) -> Solved | None:
        """Solve for what is now, and put t in force. None before enough prompts were seen."""
        workload = self._lengths.workload()
        if workload is None:
            return None
        rules = self._spec.threshold or StepRules()
        solved = solve_today(Today(_deployment(system, self._spec), workload), rules)
        self._solved_for = _inputs(system)
        if self._spec.threshold is not None:
            self._in_force = step_threshold(self._in_force, solved, now, rules)
            system.threshold = self._in_force.tokens
        return solved

    def _situation(self, system: System, solved: Solved, now: Seconds) -> Situation:
        rules, home = self._spec.threshold, system.home
        bounds = (0, system.threshold) if rules is None else (rules.low, rules.high)
        return Situation(
            MODEL,
            home.spec.name,
            solved.today.deployment,
            solved.table,
            ThresholdChoice(system.threshold, rules is None, bounds),
            tuple(
                Candidate(each.name, each.role, each.held + each.depth(now))
                for each in (*home.prefills, *home.decodes)
            ),
            None if self.progress is None else now - self.progress.since,
        )


def _inputs(system: System) -> _Inputs:
    rates = tuple(wire.link.rate for wire in system.wires.values())
    return rates, len(system.home.prefills), len(system.home.decodes)


def _is_busy(instance: Instance[Job], now: Seconds) -> bool:
    return instance.held > 0 or instance.free_at > now


def _read(system: System, now: Seconds) -> Sample:
    """Return what engines' metrics would tell of both stages."""
    prefills, decodes = system.home.prefills, system.home.decodes
    slots = system.plant.decode.slots or math.inf
    return Sample(
        _mean([StageReading(each.depth(now), float(each.free_at > now)) for each in prefills]),
        _mean(
            [
                StageReading(len(each.waiting), each.running / slots, each.held / slots)
                for each in decodes
            ]
        ),
    )


def _mean(readings: list[StageReading]) -> StageReading | None:
    count = len(readings)
    if not count:
        return None
    return StageReading(
        sum(each.queued for each in readings) / count,
        sum(each.busy for each in readings) / count,
        sum(each.held for each in readings) / count,
    )


def _deployment(system: System, spec: LongLoopSpec) -> Deployment:
    """Return the pools as they are now."""
    home, decode = system.home, system.plant.decode
    rules = DecodeRules(decode.slots or math.inf, decode.pace, spec.output_tokens)
    remotes = tuple(
        RemotePool(pool.spec.name, pool.spec.profile, len(pool.prefills), wire.link.rate)
        for pool in system.pools
        if pool.spec.kind is ClusterKind.PRFAAS
        for wire in (system.wires[pool.spec.name],)
    )
    near = PdPool(home.spec.name, home.spec.profile, len(home.prefills), len(home.decodes), rules)
    overlap = all(link.overlap for link in system.plant.links)
    return Deployment(remotes, (near,), overlap)
