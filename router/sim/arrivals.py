"""When requests come: endless streams of gaps, each drawn from its own generator.

All have the mean rate they are asked for, so that runs differ in burstiness alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import assert_never

from router.domain.errors import RouterError
from router.domain.units import Seconds

_RAREST = 0.01
"""Requests in one calm and busy time, in the mean: with fewer no request feels the difference."""


class ArrivalFault(RouterError):
    """No stream of requests has these parameters."""


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """Independent arrivals: exponential gaps. `rate` in requests a second."""

    rate: float

    def __post_init__(self) -> None:
        _require_positive(rate=self.rate)


@dataclass(frozen=True, slots=True)
class GammaArrivals:
    """A renewal process with Gamma gaps, whose coefficient of variation is `cv`.

    `cv` 1 is Poisson; over it come bursts and lulls, under it they are evened out.
    """

    rate: float
    cv: float

    def __post_init__(self) -> None:
        _require_positive(rate=self.rate, cv=self.cv)


@dataclass(frozen=True, slots=True)
class MmppArrivals:
    """A Markov-modulated Poisson process of two states, calm and busy.

    `rate` is the mean over both; the busy state has `surge` times the calm one's rate and lasts
    `busy_seconds` in the mean, the calm one `calm_seconds`.
    """

    rate: float
    surge: float
    calm_seconds: Seconds
    busy_seconds: Seconds

    def __post_init__(self) -> None:
        _require_positive(
            rate=self.rate,
            surge=self.surge,
            calm_seconds=self.calm_seconds,
            busy_seconds=self.busy_seconds,
        )
        if self.rate * (self.calm_seconds + self.busy_seconds) < _RAREST:
            raise ArrivalFault("the busy times change too fast for so few requests: use poisson")

    @property
    def calm_rate(self) -> float:
        """The rate of the calm state, in requests a second."""
        whole = self.calm_seconds + self.busy_seconds
        return self.rate * whole / (self.calm_seconds + self.surge * self.busy_seconds)


Arrivals = PoissonArrivals | GammaArrivals | MmppArrivals


def draw_times(arrivals: Arrivals, random: Random) -> Iterator[Seconds]:
    """Yield the arrival times, from the first gap after 0 on, without end."""
    match arrivals:
        case PoissonArrivals(rate):
            return _add_up(_exponential(random, rate))
        case GammaArrivals(rate, cv):
            shape = 1 / cv**2
            return _add_up(_gamma(random, shape, 1 / (rate * shape)))
        case MmppArrivals():
            return _modulate(arrivals, random)
        case _:
            assert_never(arrivals)


def _add_up(gaps: Iterator[Seconds]) -> Iterator[Seconds]:
    now = 0.0
    for gap in gaps:
        now += gap
        yield now


def _exponential(random: Random, rate: float) -> Iterator[Seconds]:
    draw = random.expovariate
    while True:
        yield draw(rate)


def _gamma(random: Random, shape: float, scale: float) -> Iterator[Seconds]:
    draw = random.gammavariate
    while True:
        yield draw(shape, scale)


def _modulate(arrivals: MmppArrivals, random: Random) -> Iterator[Seconds]:
    """Draw each gap at the present state's rate; a gap that outlives the state is drawn anew.

    Exact, since exponential gaps have no memory.
    """
    rates = (arrivals.calm_rate, arrivals.calm_rate * arrivals.surge)
    stays = (arrivals.calm_seconds, arrivals.busy_seconds)
    now, state = 0.0, 0
    ends = random.expovariate(1 / stays[state])
    while True:
        then = now + random.expovariate(rates[state])
        if then < ends:
            now = then
            yield now
            continue
        now, state = ends, 1 - state
        ends = now + random.expovariate(1 / stays[state])


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ArrivalFault(f"{name} must be greater than 0 and finite, not {value!r}")
