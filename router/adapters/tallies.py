"""Counters and histograms of one process: an addition each, where the library takes locks.

They are used as the library's own (`labels`, `inc`, `observe`) and collected as its families.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import inf

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString


class Count:
    """One number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`, which is not negative."""
        self.value += amount


class Distribution:
    """How often values fell between the bounds, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` rise; beyond the last is one more bucket."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Take in one value; one at a bound belongs below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return how many values were at most each bound, as Prometheus has it."""
        told: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*self.bounds, inf), self.counts, strict=True):
            below += count
            told.append((str(floatToGoString(bound)), below))  # type: ignore[no-untyped-call]
        return told


class CountTable(Collector):
    """A counter with labels."""

    def __init__(
        self, name: str, what: str, labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._what = what
        self._labels = tuple(labels)
        self._children: dict[tuple[str, ...], Count] = {}
        self._bare = None if labels else self.labels()
        registry.register(self)

    def labels(self, *values: str) -> Count:
        """Return the count of these labels, 0 at first."""
        child = self._children.get(values)
        if child is None:
            _check(self._labels, values)
            child = self._children[values] = Count()
        return child

    def inc(self, amount: float = 1.0) -> None:
        """Add to a counter without labels."""
        (self._bare or self.labels()).value += amount

    def collect(self) -> Iterator[Metric]:
        """Return the family as it is now."""
        family = CounterMetricFamily(self._name, self._what, labels=self._labels)
        for values, child in list(self._children.items()):
            family.add_metric(values, child.value)
        yield family


class DistributionTable(Collector):
    """A histogram with labels."""

    def __init__(
        self,
        name: str,
        what: str,
        bounds: Sequence[float],
        labels: Sequence[str],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._what = what
        self._bounds = tuple(bounds)
        self._labels = tuple(labels)
        self._children: dict[tuple[str, ...], Distribution] = {}
        self._bare = None if labels else self.labels()
        registry.register(self)

    def labels(self, *values: str) -> Distribution:
        """Return the distribution of these labels, empty at first."""
        child = self._children.get(values)
        if child is None:
            _check(self._labels, values)
            child = self._children[values] = Distribution(self._bounds)
        return child

    def observe(self, value: float) -> None:
        """Take a value into a histogram without labels."""
        (self._bare or self.labels()).observe(value)

    def collect(self) -> Iterator[Metric]:
        """Return the family as it is now."""
        family = HistogramMetricFamily(self._name, self._what, labels=self._labels)
        for values, child in list(self._children.items()):
            family.add_metric(values, child.buckets(), child.total)
        yield family


def _check(labels: tuple[str, ...], values: tuple[str, ...]) -> None:
    if len(labels) != len(values):
        raise ValueError(f"{len(values)} values for the labels {', '.join(labels)}")
