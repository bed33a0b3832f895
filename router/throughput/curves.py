"""Monotone interpolation of measured points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Self, assert_never

from router.domain.errors import RouterError


class CurveError(RouterError):
    """Points that make no curve."""


class OutOfRange(CurveError, ValueError):
    """A value was asked for outside the measured range, where the curve's policy forbids it."""


class Interpolation(StrEnum):
    """How a curve runs between two measured points."""

    PCHIP = "pchip"
    LINEAR = "linear"


class Extrapolation(StrEnum):
    """What a curve answers outside its measured range."""

    LINEAR = "linear"
    """It goes on with the secant of the outermost segment, floored at 0."""
    CLAMP = "clamp"
    """It stays at the outermost value."""
    ERROR = "error"
    """It raises OutOfRange."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A piecewise cubic through measured points that never overshoots them (PCHIP), or lines.

    Monotone data give a monotone curve, which the threshold solver relies on: both ceilings must
    be monotone in t for bisection to be safe. Slopes are Fritsch and Carlson's weighted harmonic
    means with three-point ends (SIAM J. Numer. Anal. 17(2), 1980), the choice of SciPy's
    `PchipInterpolator`. `pieces` are the coefficients of (x - xs[i]), its square and its cube in
    segment i, `ends` the slopes of the first and the last secant.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    pieces: tuple[tuple[float, float, float], ...]
    extrapolation: Extrapolation = Extrapolation.LINEAR
    ends: tuple[float, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Derive what every value outside the measured range needs."""
        last = len(self.xs) - 2
        ends = (_secant(self.xs, self.ys, 0), _secant(self.xs, self.ys, last))
        object.__setattr__(self, "ends", ends)

    @classmethod
    def through(
        cls,
        xs: Sequence[float],
        ys: Sequence[float],
        *,
        interpolation: Interpolation = Interpolation.PCHIP,
        extrapolation: Extrapolation = Extrapolation.LINEAR,
    ) -> Self:
        """Build the curve through (xs[i], ys[i]).

        Raises CurveError unless there are two points or more and `xs` strictly increases.
        """
        if len(xs) != len(ys) or len(xs) < 2:
            raise CurveError("a curve needs at least two points")
        if any(b <= a for a, b in pairwise(xs)):
            raise CurveError("a curve's points must be in strictly increasing order")
        secants = tuple(_secant(xs, ys, i) for i in range(len(xs) - 1))
        pieces = _pieces(xs, secants, interpolation)
        return cls(tuple(xs), tuple(ys), pieces, extrapolation)

    def __call__(self, x: float) -> float:
        """Return the value at `x`. Raises OutOfRange where the policy is `error`."""
        xs = self.xs
        if xs[0] <= x < xs[-1]:
            i = bisect_right(xs, x) - 1
            d = x - xs[i]
            c1, c2, c3 = self.pieces[i]
            return self.ys[i] + d * (c1 + d * (c2 + d * c3))
        ys, end = self.ys, 0 if x < xs[0] else -1
        match self.extrapolation:
            case Extrapolation.LINEAR:
                return max(0.0, ys[end] + (x - xs[end]) * self.ends[end])
            case Extrapolation.CLAMP:
                return ys[end]
            case Extrapolation.ERROR:
                if x == xs[-1]:
                    return ys[-1]
                raise OutOfRange(
                    f"{x:,.0f} tokens are outside the measured {xs[0]:,.0f} to {xs[-1]:,.0f}"
                )


def _secant(xs: Sequence[float], ys: Sequence[float], i: int) -> float:
    return (ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i])


def _pieces(
    xs: Sequence[float], secants: Sequence[float], interpolation: Interpolation
) -> tuple[tuple[float, float, float], ...]:
    match interpolation:
        case Interpolation.LINEAR:
            return tuple((secant, 0.0, 0.0) for secant in secants)
        case Interpolation.PCHIP:
            slopes = _pchip_slopes(xs, secants)
            return tuple(
                _cubic(xs[i + 1] - xs[i], secant, slopes[i], slopes[i + 1])
                for i, secant in enumerate(secants)
            )
    assert_never(interpolation)


def _cubic(width: float, secant: float, left: float, right: float) -> tuple[float, float, float]:
    """Return the Hermite cubic of a segment with these end slopes, as powers of (x - start)."""
    return (
        left,
        (3 * secant - 2 * left - right) / width,
        (left + right - 2 * secant) / width**2,
    )


def _pchip_slopes(xs: Sequence[float], secants: Sequence[float]) -> tuple[float, ...]:
    widths = [b - a for a, b in pairwise(xs)]
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
