"""When a process that ended is started again: at once, and ever later where it ends at once.

Pure: the shell tells how long a process served, and sleeps.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.domain.units import Seconds


@dataclass(frozen=True, slots=True)
class RestartRules:
    """How patient a supervisor is.

    `pauses` are those before the first, second, … restart in a row, the last for all further ones:
    the first is none, since a process that was killed is not at fault; the last is a third of
    Kubernetes' first back-off for a pod of 10 s and more, for a store that is away meanwhile. A
    process that served for `settled` seconds starts the count anew. After `patience` starts in a
    row of which none came to serve, starting is given up: in about ten seconds.
    """

    pauses: tuple[Seconds, ...] = (0.0, 0.5, 1.0, 2.0, 5.0)
    settled: Seconds = 10.0
    patience: int = 5


@dataclass(frozen=True, slots=True)
class Restarts:
    """How one place fares: processes in a row that ended too soon, and that never served."""

    short_lived: int = 0
    never_served: int = 0


def step_ended(state: Restarts, served: Seconds | None, rules: RestartRules) -> Restarts:
    """Take the end of a process that served for so long; None for one that never did."""
    if served is None:
        return Restarts(state.short_lived + 1, state.never_served + 1)
    return Restarts(1 if served >= rules.settled else state.short_lived + 1)


def pause_before_restart(state: Restarts, rules: RestartRules) -> Seconds:
    """Return how long to wait before the next start."""
    return rules.pauses[min(max(0, state.short_lived - 1), len(rules.pauses) - 1)]


def should_give_up(state: Restarts, rules: RestartRules) -> bool:
    """Whether another start is of no use."""
    return state.never_served >= rules.patience
