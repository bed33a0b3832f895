"""A conversion as a state machine: drain first, then act, verify; else put everything back.

    draining -> acting -> verifying -> settled
        |          |          |
        |          +----------+--> undoing -> rolled_back
        |                             |
        +-------------------> rolled_back     stuck (nobody knows the engine's role: no work goes
                                              there until an operator says so)

Every step is a function of what was and what is seen now. The phase is kept in the store, so that
whoever leads next goes on where the last leader stopped; a call at an engine may so be repeated,
which `ports.Actuator` allows. Times are seconds since 1970 by the wall clock, which outlives
processes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from router.domain.conversions import Conversion
from router.domain.topology import Role
from router.domain.units import Seconds


class Phase(StrEnum):
    """How far a conversion is."""

    DRAINING = "draining"
    ACTING = "acting"
    VERIFYING = "verifying"
    UNDOING = "undoing"
    SETTLED = "settled"
    ROLLED_BACK = "rolled_back"
    STUCK = "stuck"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self in {Phase.SETTLED, Phase.ROLLED_BACK, Phase.STUCK}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a conversion is, since when, and why it is being put back if it is.

    `term` is that of the leader whose word this is: one of an older term has no say any more.
    `aborted_by` is the operator who wants it put back.
    """

    conversion: Conversion
    phase: Phase
    began_at: Seconds
    since: Seconds
    term: int = 0
    cause: str | None = None
    aborted_by: str | None = None


@dataclass(frozen=True, slots=True)
class ConversionRules:
    """The longest time that each phase may take, and how long an instance must have been quiet.

    `lease` is how long a prefill instance keeps blocks after its last hand-off; `spread` is how
    long an order may take to reach every gateway.
    """

    drain: Seconds = 900.0
    act: Seconds = 300.0
    verify: Seconds = 300.0
    lease: Seconds = 30.0
    spread: Seconds = 2.0

    def quiet_for(self, source: Role) -> Seconds:
        """Return how long nothing may have run before the engine is touched."""
        return self.spread + (0.0 if source is Role.DECODE else self.lease)


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked of the engine is so."""


@dataclass(frozen=True, slots=True)
class Pending:
    """It is not so yet; ask again."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It is refused or failed, and what of it was done is not known."""

    why: str


Reply = Done | Pending | Failed
"""What came of the call that the phase asks for."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a step may look at.

    `quiet` is how long nothing has run, waited or been on its way at the instance, 0 where that is
    not known. `reply` is what came of the call that the phase asks for. `interruption` is why the
    conversion shall not go on: an operator's word, or an instance that is gone.
    """

    now: Seconds
    quiet: Seconds = 0.0
    reply: Reply = Pending()
    interruption: str | None = None


def begin_conversion(conversion: Conversion, now: Seconds, term: int = 0) -> Progress:
    """Return the start: no new work goes there from now on."""
    return Progress(conversion, Phase.DRAINING, now, now, term)


def step_conversion(progress: Progress, seen: Seen, rules: ConversionRules) -> Progress:
    """Return how far it is now; the same value where nothing changes."""
    match progress.phase:
        case Phase.DRAINING:
            return _step_drain(progress, seen, rules)
        case Phase.ACTING:
            return _step_call(progress, seen, rules.act, Phase.VERIFYING)
        case Phase.VERIFYING:
            return _step_call(progress, seen, rules.verify, Phase.SETTLED)
        case Phase.UNDOING:
            return _step_undo(progress, seen, rules)
        case Phase.SETTLED | Phase.ROLLED_BACK | Phase.STUCK:
            return progress


def _step_drain(progress: Progress, seen: Seen, rules: ConversionRules) -> Progress:
    """Nothing was done to the engine yet, so nothing has to be undone."""
    if seen.interruption is not None:
        return _enter(progress, Phase.ROLLED_BACK, seen, seen.interruption)
    if seen.quiet >= rules.quiet_for(progress.conversion.source):
        return _enter(progress, Phase.ACTING, seen)
    if _spent(progress, seen) > rules.drain:
        return _enter(progress, Phase.ROLLED_BACK, seen, f"not drained within {rules.drain:g} s")
    return progress


def _step_call(progress: Progress, seen: Seen, limit: Seconds, then: Phase) -> Progress:
    if seen.interruption is not None:
        return _enter(progress, Phase.UNDOING, seen, seen.interruption)
    match seen.reply:
        case Done():
            return _enter(progress, then, seen)
        case Failed(why):
            return _enter(progress, Phase.UNDOING, seen, why)
        case Pending():
            if _spent(progress, seen) <= limit:
                return progress
            cause = f"{progress.phase} took more than {limit:g} s"
            return _enter(progress, Phase.UNDOING, seen, cause)


def _step_undo(progress: Progress, seen: Seen, rules: ConversionRules) -> Progress:
    """Undoing is tried until its time is over, whatever anybody says meanwhile."""
    if isinstance(seen.reply, Done):
        return _enter(progress, Phase.ROLLED_BACK, seen, progress.cause)
    if _spent(progress, seen) > rules.act:
        why = seen.reply.why if isinstance(seen.reply, Failed) else "no answer"
        return _enter(progress, Phase.STUCK, seen, f"{progress.cause}; undoing: {why}")
    return progress


def _enter(progress: Progress, phase: Phase, seen: Seen, cause: str | None = None) -> Progress:
    return replace(progress, phase=phase, since=seen.now, cause=cause)


def _spent(progress: Progress, seen: Seen) -> Seconds:
    return seen.now - progress.since
