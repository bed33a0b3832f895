"""How long prompts are: distributions to draw from, in tokens."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from statistics import NormalDist
from typing import assert_never

from router.domain.errors import RouterError
from router.domain.units import Tokens


class LengthFault(RouterError):
    """No distribution of lengths has these parameters."""


@dataclass(frozen=True, slots=True)
class LogNormalLengths:
    """exp(N(mu, sigma^2)), conditioned on [low, high].

    The paper's traffic is mu 9.90, sigma 1.00 on [128, 128K] (arXiv 2604.15039, section 4).
    """

    mu: float
    sigma: float
    low: Tokens
    high: Tokens

    def __post_init__(self) -> None:
        if not (self.sigma > 0 and math.isfinite(self.mu) and math.isfinite(self.sigma)):
            raise LengthFault("mu and sigma must be finite, sigma greater than 0")
        if not 0 < self.low < self.high:
            raise LengthFault(f"0 < low < high does not hold for {self.low} and {self.high}")


@dataclass(frozen=True, slots=True)
class DiscreteLengths:
    """A few lengths with their weights, in any unit."""

    lengths: tuple[Tokens, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.lengths or len(self.lengths) != len(self.weights):
            raise LengthFault("there must be as many weights as lengths, and one at least")
        if min(self.lengths) < 1 or min(self.weights) < 0 or not sum(self.weights) > 0:
            raise LengthFault("lengths must be 1 or more, weights 0 or more and not all 0")


@dataclass(frozen=True, slots=True)
class ExponentialLengths:
    """Exponential with the given mean: what the closed forms of M/M/1 and M/M/c assume."""

    mean: float

    def __post_init__(self) -> None:
        if not 0 < self.mean < math.inf:
            raise LengthFault(f"mean must be greater than 0 and finite, not {self.mean!r}")


Lengths = LogNormalLengths | DiscreteLengths | ExponentialLengths


def draw_lengths(lengths: Lengths, random: Random) -> Iterator[Tokens]:
    """Yield lengths of one token or more, without end."""
    match lengths:
        case LogNormalLengths(mu, sigma, low, high):
            return _draw_log_normal(mu, sigma, low, high, random)
        case DiscreteLengths(values, weights):
            return _draw_discrete(values, weights, random)
        case ExponentialLengths(mean):
            return _draw_exponential(mean, random)
        case _:
            assert_never(lengths)


def _draw_log_normal(
    mu: float, sigma: float, low: Tokens, high: Tokens, random: Random
) -> Iterator[Tokens]:
    """Draw and reject what is outside; by inversion where that would reject nearly all."""
    normal = NormalDist(mu, sigma)
    below, above = normal.cdf(math.log(low)), normal.cdf(math.log(high))
    draw, exp = random.gauss, math.exp
    if above - below > 0.1:
        while True:
            length = exp(draw(mu, sigma))
            if low <= length <= high:
                yield round(length)
    if not 0 < below < above < 1:
        raise LengthFault(f"[{low}, {high}] is too far from exp({mu}) for sigma {sigma}")
    while True:
        chance = min(max(random.uniform(below, above), 1e-300), 1 - 1e-16)
        yield min(high, max(low, round(exp(normal.inv_cdf(chance)))))


def _draw_discrete(
    values: tuple[Tokens, ...], weights: tuple[float, ...], random: Random
) -> Iterator[Tokens]:
    sums = list(accumulate(weights))
    while True:
        yield values[min(bisect_right(sums, random.random() * sums[-1]), len(values) - 1)]


def _draw_exponential(mean: float, random: Random) -> Iterator[Tokens]:
    draw = random.expovariate
    while True:
        yield max(1, round(draw(1 / mean)))
