"""Figures of runs: what users felt, and how sure that is.

One run gives one value of each figure; equal runs with other seeds are independent, so intervals
are Student's over runs (independent replications, Law, *Simulation Modeling and Analysis*). The
first requests of a run find an empty system and the last ones no successors: neither is counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist, fmean, stdev

from router.control.slack import Promise
from router.domain.errors import RouterError
from router.domain.units import Seconds
from router.sim.records import Outcome, Record

_SMALL_SAMPLE_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
"""Student's two-sided 95 % quantiles where the expansion in 1 / n is too coarse."""


class StatisticsFault(RouterError):
    """Too little to compute a figure from."""


def promise(unloaded: Seconds) -> Seconds:
    """Return the latest TTFT that is in time."""
    return Promise().within(unloaded)


@dataclass(frozen=True, slots=True)
class Figures:
    """One run's figures. Rates are per second; `attainment` and `offloaded` are shares of 1.

    `goodput` are requests a second that were answered in time. Latencies are TTFT in seconds:
    `mean` of those served, quantiles of all, where one rejected took for ever.
    """

    requests: int
    arrival_rate: float
    goodput: float
    attainment: float
    mean: Seconds
    p50: Seconds
    p90: Seconds
    p99: Seconds
    rejected: float
    offloaded: float
    kv_bytes_rate: float
    wasted_bytes: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over runs, and half the width of its 95 % confidence interval (0 for one run)."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + self.half

    def contains(self, value: float) -> bool:
        """Whether a value is within."""
        return self.low <= value <= self.high


def measure_run(records: Iterable[Record], *, warmup: int = 0, cooldown: int = 0) -> Figures:
    """Return a run's figures without its first `warmup` and last `cooldown` arrivals.

    Raises StatisticsFault where less than two requests are left.
    """
    ordered = sorted(records, key=lambda record: record.number)
    counted = ordered[warmup : len(ordered) - cooldown]
    if len(counted) < 2:
        raise StatisticsFault(
            f"nothing is left of {len(ordered)} requests: {warmup} warm up, {cooldown} cool down"
        )
    served = [each for each in counted if each.outcome == Outcome.SERVED]
    span = counted[-1].arrived - counted[0].arrived
    rate = (len(counted) - 1) / span if span > 0 else math.inf
    in_time = sum(each.ttft <= promise(each.unloaded) for each in served)
    waits = sorted(each.ttft for each in served)
    waits += [math.inf] * (len(counted) - len(served))
    return Figures(
        requests=len(counted),
        arrival_rate=rate,
        goodput=rate * in_time / len(counted),
        attainment=in_time / len(counted),
        mean=fmean(each.ttft for each in served) if served else math.nan,
        p50=find_quantile(waits, 0.5),
        p90=find_quantile(waits, 0.9),
        p99=find_quantile(waits, 0.99),
        rejected=1 - len(served) / len(counted),
        offloaded=sum(each.kv_bytes > 0 for each in served) / len(counted),
        kv_bytes_rate=rate * fmean(each.kv_bytes for each in counted),
        wasted_bytes=fmean(each.wasted_bytes for each in counted),
    )


def find_quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of ascending values, by the nearest rank: a value that was seen."""
    if not ordered:
        raise StatisticsFault("there is no quantile of nothing")
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def estimate(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the mean of independent values with its confidence interval.

    Raises StatisticsFault without any value.
    """
    if not values:
        raise StatisticsFault("there is no mean of nothing")
    mean = fmean(values)
    if len(values) == 1 or not math.isfinite(mean):
        return Interval(mean, 0.0)
    quantile = student_quantile(len(values) - 1, confidence)
    return Interval(mean, quantile * stdev(values, mean) / math.sqrt(len(values)))


def combine(runs: Sequence[Figures]) -> dict[str, Interval]:
    """Return each figure's mean and interval over runs that differ in their seeds."""
    return {
        field.name: estimate([float(getattr(run, field.name)) for run in runs])
        for field in fields(Figures)
    }


def student_quantile(freedom: int, confidence: float = 0.95) -> float:
    """Return Student's two-sided quantile: Cornish and Fisher's expansion, within 0.2 % from 5 on.

    Under 5 degrees only 95 % is known; raises StatisticsFault for others.
    """
    if freedom < 5:
        if freedom < 1 or confidence != 0.95:
            raise StatisticsFault("under 6 runs there are intervals of 95 % only")
        return _SMALL_SAMPLE_T[freedom]
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
