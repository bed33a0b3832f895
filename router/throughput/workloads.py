"""Workloads: how long the uncached part of prompts is, L, as a distribution.

Every form answers two questions: what share of requests is at most t tokens long, and by which
nodes and weights a smooth function is averaged over a range of lengths. The nodes are those of a
Gauss-Legendre rule, so that an average over a continuous form is exact to about 1e-12 and costs
eight evaluations; atoms are their own nodes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import NormalDist
from typing import Final, Protocol, Self

from router.domain.errors import RouterError

_GAUSS_8: Final = (
    (0.18343464249564980, 0.36268378337836198),
    (0.52553240991632899, 0.31370664587788729),
    (0.79666647741362674, 0.22238103445337447),
    (0.96028985649753623, 0.10122853629037626),
)
"""Positive nodes and weights of the 8-point Gauss-Legendre rule (Abramowitz and Stegun 25.4.30)."""

_CELL_Z: Final = 0.25
"""Width of a cell of the normal density, in sigmas: 8 nodes then average cubics to 1e-13."""

_FAR_Z: Final = 9.0
"""Sigmas beyond which a normal distribution has nothing that a double would show."""


class WorkloadError(RouterError):
    """Numbers that make no distribution of lengths."""


@dataclass(frozen=True, slots=True)
class Split:
    """Who goes where: longer than `threshold` tokens remote, shorter local.

    `tied_share` of the requests of exactly `threshold` tokens go remote. The router itself keeps a
    tie local (0); a share is what balance asks for where many requests have one length.
    """

    threshold: float
    tied_share: float = 0.0


class Workload(Protocol):
    """A distribution of uncached lengths, in tokens."""

    @property
    def shortest(self) -> float:
        """The least length that occurs."""
        ...

    @property
    def longest(self) -> float:
        """The greatest length that occurs."""
        ...

    @property
    def edges(self) -> tuple[float, ...]:
        """Increasing lengths, the last one the greatest, between which the density is smooth."""
        ...

    def share_up_to(self, length: float) -> float:
        """Return P(L <= length)."""
        ...

    def mass_at(self, length: float) -> float:
        """Return P(L = length); 0 where the distribution is continuous."""
        ...

    def nodes(self, low: float, high: float) -> Sequence[tuple[float, float]]:
        """Return lengths and weights that average over low < L <= high, within two edges."""
        ...

    def split_at(self, local_share: float) -> Split:
        """Return the split that keeps this share of requests, the shortest ones, local."""
        ...

    def scaled(self, factor: float) -> Workload:
        """Return the distribution of `factor` times L."""
        ...


def local_share(workload: Workload, split: Split) -> float:
    """Return the share of requests that a split keeps local, 1 - p."""
    share = workload.share_up_to(split.threshold)
    if split.tied_share:
        share -= split.tied_share * workload.mass_at(split.threshold)
    return share


@dataclass(frozen=True, slots=True)
class TruncatedLogNormal:
    """ln L is normal (mu, sigma), given shortest <= L <= longest: the paper's case study."""

    mu: float
    sigma: float
    shortest: float
    longest: float

    def __post_init__(self) -> None:
        if not 0 < self.shortest < self.longest < math.inf:
            raise WorkloadError("a truncated log-normal needs 0 < shortest < longest")
        if not self.sigma > 0:
            raise WorkloadError("a log-normal needs sigma > 0")
        if self._mass < 1e-9:
            raise WorkloadError(
                f"a log-normal (mu {self.mu:g}, sigma {self.sigma:g}) has no length"
                f" between {self.shortest:g} and {self.longest:g}"
            )

    @property
    def edges(self) -> tuple[float, ...]:
        """Cells of a quarter sigma where the density is, one cell on either side of them."""
        low = max(-_FAR_Z, min(_FAR_Z, self._z(self.shortest)))
        high = max(-_FAR_Z, min(_FAR_Z, self._z(self.longest)))
        count = max(1, math.ceil((high - low) / _CELL_Z))
        inner = [self._length(low + (high - low) * i / count) for i in range(1, count)]
        return (self.shortest, *inner, self.longest)

    def share_up_to(self, length: float) -> float:
        """Return P(L <= length)."""
        if length <= self.shortest:
            return 0.0
        if length >= self.longest:
            return 1.0
        return _normal_between(self._z(self.shortest), self._z(length)) / self._mass

    def mass_at(self, length: float) -> float:  # noqa: ARG002 - continuous
        """Return 0: no length has a share of its own."""
        return 0.0

    def nodes(self, low: float, high: float) -> Sequence[tuple[float, float]]:
        """Return Gauss-Legendre nodes in ln L."""
        low, high = max(low, self.shortest), min(high, self.longest)
        if low >= high:
            return ()
        a, b = self._z(low), self._z(high)
        norm = math.sqrt(2 * math.pi) * self._mass
        return [
            (self._length(z), weight * math.exp(-z * z / 2) / norm) for z, weight in _gauss(a, b)
        ]

    def split_at(self, local_share: float) -> Split:
        """Return the split at the quantile of `local_share`."""
        if local_share <= 0:
            return Split(self.shortest)
        if local_share >= 1:
            return Split(self.longest)
        below = NormalDist().cdf(self._z(self.shortest))
        quantile = min(max(below + local_share * self._mass, 5e-324), 1 - 2**-53)
        length = self._length(NormalDist().inv_cdf(quantile))
        return Split(min(max(length, self.shortest), self.longest))

    def scaled(self, factor: float) -> TruncatedLogNormal:
        """Return the distribution of `factor` times L."""
        return TruncatedLogNormal(
            self.mu + math.log(factor), self.sigma, self.shortest * factor, self.longest * factor
        )

    @property
    def _mass(self) -> float:
        """The share of the whole log-normal that lies between the bounds."""
        return _normal_between(self._z(self.shortest), self._z(self.longest))

    def _z(self, length: float) -> float:
        return (math.log(length) - self.mu) / self.sigma

    def _length(self, z: float) -> float:
        return math.exp(self.mu + self.sigma * z)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Shares of lengths by bin, uniform within each: what a decayed count of live traffic says.

    Bin i holds the lengths over `bounds[i]` up to `bounds[i + 1]`. Build it with `of`.
    """

    bounds: tuple[float, ...]
    shares: tuple[float, ...]
    cumulated: tuple[float, ...]

    @classmethod
    def of(cls, bounds: Sequence[float], weights: Sequence[float]) -> Self:
        """Normalise `weights`, one a bin; empty bins at either end are dropped.

        Raises WorkloadError unless bounds increase from 0 or more and some weight is positive.
        """
        if len(bounds) != len(weights) + 1 or bounds[0] < 0:
            raise WorkloadError("a histogram needs one bound more than weights, from 0 or more")
        if any(b <= a for a, b in pairwise(bounds)):
            raise WorkloadError("a histogram's bounds must be in strictly increasing order")
        filled = [i for i, weight in enumerate(weights) if weight > 0]
        if not filled or min(weights) < 0 or not math.isfinite(sum(weights)):
            raise WorkloadError("a histogram needs finite weights of 0 or more, some positive")
        first, last = filled[0], filled[-1] + 1
        shares = _normalised(weights[first:last])
        return cls(tuple(map(float, bounds[first : last + 1])), shares, _cumulated(shares))

    @property
    def shortest(self) -> float:
        """The lower bound of the first bin that holds something."""
        return self.bounds[0]

    @property
    def longest(self) -> float:
        """The upper bound of the last bin that holds something."""
        return self.bounds[-1]

    @property
    def edges(self) -> tuple[float, ...]:
        """The bounds of the bins."""
        return self.bounds

    def share_up_to(self, length: float) -> float:
        """Return P(L <= length)."""
        if length <= self.shortest:
            return 0.0
        if length >= self.longest:
            return 1.0
        i = bisect_right(self.bounds, length) - 1
        part = (length - self.bounds[i]) / (self.bounds[i + 1] - self.bounds[i])
        return (self.cumulated[i - 1] if i else 0.0) + part * self.shares[i]

    def mass_at(self, length: float) -> float:  # noqa: ARG002 - continuous
        """Return 0: no length has a share of its own."""
        return 0.0

    def nodes(self, low: float, high: float) -> Sequence[tuple[float, float]]:
        """Return Gauss-Legendre nodes in L."""
        low, high = max(low, self.shortest), min(high, self.longest)
        if low >= high:
            return ()
        i = max(0, bisect_left(self.bounds, high) - 1)
        density = self.shares[i] / (self.bounds[i + 1] - self.bounds[i])
        return [(length, weight * density) for length, weight in _gauss(low, high)]

    def split_at(self, local_share: float) -> Split:
        """Return the split at the quantile of `local_share`."""
        if local_share <= 0:
            return Split(self.shortest)
        if local_share >= 1:
            return Split(self.longest)
        i = bisect_left(self.cumulated, local_share)
        before = self.cumulated[i - 1] if i else 0.0
        part = (local_share - before) / self.shares[i]
        return Split(self.bounds[i] + part * (self.bounds[i + 1] - self.bounds[i]))

    def scaled(self, factor: float) -> Histogram:
        """Return the distribution of `factor` times L."""
        return Histogram(tuple(b * factor for b in self.bounds), self.shares, self.cumulated)


@dataclass(frozen=True, slots=True)
class Atoms:
    """Single lengths with their shares: few kinds of request, or every length of a trace.

    Build it with `of` or `from_lengths`.
    """

    lengths: tuple[float, ...]
    shares: tuple[float, ...]
    cumulated: tuple[float, ...]

    @classmethod
    def of(cls, weights: Mapping[float, float] | Mapping[int, float]) -> Self:
        """Build the distribution from weights by length.

        Raises WorkloadError unless lengths are positive and some weight is.
        """
        items = sorted((float(length), weight) for length, weight in weights.items() if weight)
        if not items or items[0][0] <= 0:
            raise WorkloadError("lengths must be positive, and some weight too")
        if min(weight for _, weight in items) < 0:
            raise WorkloadError("weights must not be negative")
        shares = _normalised([weight for _, weight in items])
        return cls(tuple(length for length, _ in items), shares, _cumulated(shares))

    @classmethod
    def from_lengths(cls, lengths: Iterable[int]) -> Self:
        """Build the distribution of the given lengths. Raises WorkloadError for none."""
        return cls.of(Counter(lengths))

    @property
    def shortest(self) -> float:
        """The least length."""
        return self.lengths[0]

    @property
    def longest(self) -> float:
        """The greatest length."""
        return self.lengths[-1]

    @property
    def edges(self) -> tuple[float, ...]:
        """The lengths themselves."""
        return self.lengths

    def share_up_to(self, length: float) -> float:
        """Return P(L <= length)."""
        i = bisect_right(self.lengths, length)
        return self.cumulated[i - 1] if i else 0.0

    def mass_at(self, length: float) -> float:
        """Return P(L = length)."""
        i = bisect_left(self.lengths, length)
        if i < len(self.lengths) and self.lengths[i] == length:
            return self.shares[i]
        return 0.0

    def nodes(self, low: float, high: float) -> Sequence[tuple[float, float]]:
        """Return the lengths over `low` up to `high` with their shares."""
        i, j = bisect_right(self.lengths, low), bisect_right(self.lengths, high)
        return tuple(zip(self.lengths[i:j], self.shares[i:j], strict=True))

    def split_at(self, local_share: float) -> Split:
        """Return the split that keeps exactly `local_share` local, by a share of one length."""
        i = min(bisect_left(self.cumulated, local_share), len(self.lengths) - 1)
        remote = (self.cumulated[i] - local_share) / self.shares[i]
        return Split(self.lengths[i], min(1.0, max(0.0, remote)))

    def scaled(self, factor: float) -> Atoms:
        """Return the distribution of `factor` times L."""
        return Atoms(tuple(x * factor for x in self.lengths), self.shares, self.cumulated)


def _gauss(low: float, high: float) -> list[tuple[float, float]]:
    """Return the nodes and weights that integrate from `low` to `high`."""
    middle, half = (low + high) / 2, (high - low) / 2
    return [
        (middle + side * half * node, half * weight)
        for node, weight in _GAUSS_8
        for side in (-1, 1)
    ]


def _normal_between(low: float, high: float) -> float:
    """Return P(low < Z <= high) of a standard normal Z, exact in both tails."""
    root = math.sqrt(2)
    if low > 0:
        return 0.5 * (math.erfc(low / root) - math.erfc(high / root))
    if high < 0:
        return 0.5 * (math.erfc(-high / root) - math.erfc(-low / root))
    return 0.5 * (math.erf(high / root) - math.erf(low / root))


def _normalised(weights: Sequence[float]) -> tuple[float, ...]:
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


def _cumulated(shares: Sequence[float]) -> tuple[float, ...]:
    """Return running sums that end at exactly 1."""
    return (*list(accumulate(shares))[:-1], 1.0)
