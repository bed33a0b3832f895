"""The simulator against queueing theory: closed forms lie within its confidence intervals."""

from __future__ import annotations

import math
from statistics import fmean

import pytest

from router.sim.records import Record
from router.sim.statistics import Interval, estimate
from router.throughput.workloads import Atoms, Workload
from tests.fakes.plants import Exponential, a_linear_profile, a_queue, simulate

PER_TOKEN = 1e-4
MEAN_TOKENS = 10_000
SERVICE = PER_TOKEN * MEAN_TOKENS
RUNS, REQUESTS, WARMUP = 8, 4_000, 800


def mean_wait(records: list[Record]) -> float:
    """The mean time that prefills waited to start, without the run's beginning."""
    return fmean(record.started - record.arrived for record in records[WARMUP:])


def waits(servers: int, load: float, lengths: Workload) -> Interval:
    """The mean wait over independent runs, with its 99 % interval."""
    plant = a_queue(a_linear_profile(PER_TOKEN), servers)
    rate = load * servers / SERVICE
    return estimate(
        [
            mean_wait(simulate(plant, rate, REQUESTS, lengths=lengths, seed=seed))
            for seed in range(RUNS)
        ],
        confidence=0.99,
    )


def erlang_c(servers: int, load: float) -> float:
    """The chance that an arrival finds every server of M/M/c busy (Erlang, 1917)."""
    offered = servers * load
    below = sum(offered**k / math.factorial(k) for k in range(servers))
    top = offered**servers / math.factorial(servers) / (1 - load)
    return top / (below + top)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.6), (3, 0.75)])
def test_exponential_service_waits_as_erlang_says(servers: int, load: float) -> None:
    """M/M/1 and M/M/c: Wq = C(c, rho) / (c mu - lambda), within the interval of the runs."""
    found = waits(servers, load, Exponential(MEAN_TOKENS))
    expected = erlang_c(servers, load) * SERVICE / (servers * (1 - load))
    assert found.contains(expected), (found, expected)
    assert found.half < 0.3 * expected


def test_constant_service_waits_half_as_long() -> None:
    """M/D/1: Wq = rho / (2 mu (1 - rho)), Pollaczek and Khinchine's form without variance."""
    found = waits(1, 0.7, Atoms.of({MEAN_TOKENS: 1.0}))
    expected = 0.7 * SERVICE / (2 * 0.3)
    assert found.contains(expected), (found, expected)
    assert found.half < 0.3 * expected


def test_littles_law_holds_exactly() -> None:
    """The mean number in the system is the arrival rate times the mean stay, on every path."""
    plant = a_queue(a_linear_profile(PER_TOKEN), 2)
    records = simulate(plant, 1.4, 2_000, lengths=Exponential(MEAN_TOKENS))
    changes = sorted(
        [(record.arrived, 1) for record in records] + [(record.finished, -1) for record in records]
    )
    area, present, since = 0.0, 0, 0.0
    for when, change in changes:
        area += present * (when - since)
        present, since = present + change, when
    stays = sum(record.finished - record.arrived for record in records)
    assert area == pytest.approx(stays)
