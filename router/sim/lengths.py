"""Prompt lengths drawn from the throughput model's own distributions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from statistics import NormalDist

from router.domain.units import Tokens
from router.throughput.workloads import TruncatedLogNormal, Workload

_REJECT_UP_TO = 0.9
"""Share of draws outside the bounds beyond which inversion is quicker than drawing again."""


def draw_lengths(workload: Workload, random: Random) -> Iterator[Tokens]:
    """Yield lengths of one token or more, without end."""
    if isinstance(workload, TruncatedLogNormal) and _share_within(workload) > 1 - _REJECT_UP_TO:
        return _draw_log_normal(workload, random)
    return _invert(workload, random)


def _invert(workload: Workload, random: Random) -> Iterator[Tokens]:
    """Draw shares, and yield the lengths up to which they are: exact for every distribution."""
    draw = random.random
    while True:
        yield max(1, round(workload.split_at(draw()).threshold))


def _draw_log_normal(workload: TruncatedLogNormal, random: Random) -> Iterator[Tokens]:
    """Draw, and draw again what is outside: five times as quick where little is outside."""
    mu, sigma, low, high = workload.mu, workload.sigma, workload.shortest, workload.longest
    draw, exp = random.gauss, math.exp
    while True:
        length = exp(draw(mu, sigma))
        if low <= length <= high:
            yield max(1, round(length))


def _share_within(workload: TruncatedLogNormal) -> float:
    normal = NormalDist(workload.mu, workload.sigma)
    return normal.cdf(math.log(workload.longest)) - normal.cdf(math.log(workload.shortest))
