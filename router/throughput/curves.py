"""Monotone interpolation of measured points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from router.domain.errors import RouterError


class CurveError(RouterError):
    """Points that make no curve."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A piecewise cubic Hermite curve through measured points that never overshoots them (PCHIP).

    Monotone data give a monotone curve, which the threshold solver relies on: both ceilings must
    be monotone in t for bisection to be safe. Slopes are Fritsch and Carlson's weighted harmonic
    means with three-point ends (SIAM J. Numer. Anal. 17(2), 1980), the choice of SciPy's
    `PchipInterpolator`. Outside the measured range the curve goes on as a straight line with the
    secant of the outermost segment, floored at 0.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    slopes: tuple[float, ...]

    @classmethod
    def through(cls, xs: Sequence[float], ys: Sequence[float]) -> Self:
        """Build the curve through (xs[i], ys[i]).

        Raises CurveError unless there are two points or more and `xs` strictly increases.
        """
        if len(xs) != len(ys) or len(xs) < 2:
            raise CurveError("a curve needs at least two points")
        if any(b <= a for a, b in pairwise(xs)):
            raise CurveError("a curve's points must be in strictly increasing order")
        return cls(tuple(xs), tuple(ys), _pchip_slopes(xs, ys))

    def __call__(self, x: float) -> float:
        """Return the value at `x`."""
        xs, ys = self.xs, self.ys
        if x <= xs[0]:
            return max(0.0, ys[0] + (x - xs[0]) * _secant(xs, ys, 0))
        if x >= xs[-1]:
            return max(0.0, ys[-1] + (x - xs[-1]) * _secant(xs, ys, len(xs) - 2))
        i = bisect_right(xs, x) - 1
        width = xs[i + 1] - xs[i]
        s = (x - xs[i]) / width
        return (
            (1 + 2 * s) * (1 - s) ** 2 * ys[i]
            + s * (1 - s) ** 2 * width * self.slopes[i]
            + s * s * (3 - 2 * s) * ys[i + 1]
            + s * s * (s - 1) * width * self.slopes[i + 1]
        )


def _secant(xs: Sequence[float], ys: Sequence[float], i: int) -> float:
    return (ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i])


def _pchip_slopes(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, ...]:
    widths = [b - a for a, b in pairwise(xs)]
    secants = [_secant(xs, ys, i) for i in range(len(widths))]
    if len(secants) == 1:
        return (secants[0], secants[0])
    inner = [
        _inner_slope(widths[i - 1], widths[i], secants[i - 1], secants[i])
        for i in range(1, len(widths))
    ]
    first = _end_slope(widths[0], widths[1], secants[0], secants[1])
    last = _end_slope(widths[-1], widths[-2], secants[-1], secants[-2])
    return (first, *inner, last)


def _inner_slope(h0: float, h1: float, d0: float, d1: float) -> float:
    if d0 * d1 <= 0:
        return 0.0
    w0, w1 = 2 * h1 + h0, h1 + 2 * h0
    return (w0 + w1) / (w0 / d0 + w1 / d1)


def _end_slope(h0: float, h1: float, d0: float, d1: float) -> float:
    slope = ((2 * h0 + h1) * d0 - h0 * d1) / (h0 + h1)
    if slope * d0 <= 0:
        return 0.0
    if d0 * d1 <= 0 and abs(slope) > 3 * abs(d0):
        return 3 * d0
    return slope
