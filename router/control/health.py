"""Whether an instance may be used: probes with hysteresis and a circuit breaker. Pure steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from router.domain.units import Seconds


@dataclass(frozen=True, slots=True)
class ProbeRules:
    """How many probes in a row change a verdict; alternating ones change nothing (R66).

    3 and 2 are Kubernetes' `failureThreshold` default and one more success than its default, so
    that a restarting engine is not trusted on its first breath.
    """

    failures: int = 3
    successes: int = 2


@dataclass(frozen=True, slots=True)
class Health:
    """The verdict and the run of probes that speak against it. `alive` None: never probed."""

    alive: bool | None = None
    against: int = 0


def step_health(health: Health, ok: bool, rules: ProbeRules) -> Health:  # noqa: FBT001 - the observation itself
    """Return the health after one probe. The very first probe decides at once."""
    if health.alive is None or health.alive is ok:
        return Health(alive=ok)
    against = health.against + 1
    needed = rules.failures if health.alive else rules.successes
    return Health(alive=ok) if against >= needed else replace(health, against=against)


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """`failures` within `window` seconds open the breaker for `cooldown` seconds."""

    failures: int = 10
    window: Seconds = 120.0
    cooldown: Seconds = 30.0


@dataclass(frozen=True, slots=True)
class Breaker:
    """Recent failure times, and since when the breaker is open (None closed).

    After the cool-down one trial passes (half-open): its outcome closes or reopens the breaker.
    """

    failures: tuple[Seconds, ...] = ()
    opened_at: Seconds | None = None
    trial: bool = False


CLOSED: Final = Breaker()
"""A breaker without a past, as nearly all are."""


def breaker_allows(breaker: Breaker, now: Seconds, rules: BreakerRules) -> bool:
    """Whether a call may go out now."""
    if breaker.opened_at is None:
        return True
    return not breaker.trial and now - breaker.opened_at >= rules.cooldown


def step_dispatched(breaker: Breaker, now: Seconds, rules: BreakerRules) -> Breaker:
    """Return the breaker after a call went out: while open it is the one trial."""
    if breaker.opened_at is None or now - breaker.opened_at < rules.cooldown:
        return breaker
    return replace(breaker, trial=True)


def step_succeeded(breaker: Breaker) -> Breaker:
    """Return the breaker after a success: a trial that passes closes it, the past is forgotten."""
    return breaker if not breaker.failures and breaker.opened_at is None else CLOSED


def step_failed(breaker: Breaker, now: Seconds, rules: BreakerRules) -> Breaker:
    """Return the breaker after a transport failure, a 5xx or a time-out."""
    recent = (*(at for at in breaker.failures if now - at <= rules.window), now)
    recent = recent[-rules.failures :]
    if breaker.opened_at is not None or len(recent) >= rules.failures:
        return Breaker(failures=recent, opened_at=now)
    return replace(breaker, failures=recent)


def step_abandoned(breaker: Breaker) -> Breaker:
    """Return the breaker after a call that ended without a verdict (the client left)."""
    return replace(breaker, trial=False) if breaker.trial else breaker
