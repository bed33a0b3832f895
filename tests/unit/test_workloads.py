"""Distributions of uncached lengths: shares, averages, splits, and what makes none."""

from __future__ import annotations

import math

import pytest

from router.throughput.demands import DemandTable
from router.throughput.reuse import uncached_lengths
from router.throughput.workloads import (
    Atoms,
    Histogram,
    Split,
    TruncatedLogNormal,
    Workload,
    WorkloadError,
    local_share,
)

LOG_NORMAL = TruncatedLogNormal(9.9, 1.0, 128, 128_000)
HISTOGRAM = Histogram.of((0, 1000, 4000, 16_000, 64_000), (5, 0, 3, 2))
ATOMS = Atoms.of({1000: 5, 16_000: 3, 64_000: 2})


def closed_mean(workload: TruncatedLogNormal, low: float, high: float) -> float:
    """Return E[L; low < L <= high] by the log-normal's closed form."""

    def phi(length: float, shift: float) -> float:
        z = (math.log(length) - workload.mu) / workload.sigma - shift
        return 0.5 * math.erfc(-z / math.sqrt(2))

    norm = phi(workload.longest, 0) - phi(workload.shortest, 0)
    moment = math.exp(workload.mu + workload.sigma**2 / 2)
    return moment * (phi(high, workload.sigma) - phi(low, workload.sigma)) / norm


@pytest.mark.parametrize("t", [129, 1000, 19_400, 64_000, 127_000])
def test_quadrature_equals_the_closed_form(t: float) -> None:
    """Eight nodes a cell give the log-normal's partial means to ten digits."""
    demands = DemandTable.of(LOG_NORMAL, (), ()).at(Split(t))
    assert demands.short_tokens is not None
    share = 1 - demands.offload_share
    wanted = closed_mean(LOG_NORMAL, 128, t)
    assert demands.short_tokens * share == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("workload", [LOG_NORMAL, HISTOGRAM, ATOMS])
@pytest.mark.parametrize("stay", [0.0, 0.1, 0.5, 0.73, 0.9, 1.0])
def test_a_split_keeps_the_share_that_was_asked_for(workload: Workload, stay: float) -> None:
    """Continuous lengths and atoms alike can be divided at any share."""
    assert local_share(workload, workload.split_at(stay)) == pytest.approx(stay, abs=1e-12)


@pytest.mark.parametrize("workload", [LOG_NORMAL, HISTOGRAM, ATOMS])
def test_a_scaled_workload_has_scaled_lengths(workload: Workload) -> None:
    """Halving every length halves the mean, and the same share lies below half of t."""
    half = workload.scaled(0.5)
    whole_mean = DemandTable.of(workload, (), ()).at(Split(0)).long_tokens
    half_mean = DemandTable.of(half, (), ()).at(Split(0)).long_tokens
    assert whole_mean is not None
    assert half_mean == pytest.approx(whole_mean / 2)
    assert half.share_up_to(8000) == pytest.approx(workload.share_up_to(16_000))


def test_a_tie_is_divided_between_the_sides() -> None:
    """A share of the requests of exactly t tokens goes remote, the rest stays."""
    demands = DemandTable.of(ATOMS, (), ()).at(Split(16_000, 0.25))
    assert demands.offload_share == pytest.approx(0.2 + 0.25 * 0.3)
    assert demands.long_tokens == pytest.approx((0.2 * 64_000 + 0.075 * 16_000) / 0.275)
    assert demands.short_tokens == pytest.approx((0.5 * 1000 + 0.225 * 16_000) / 0.725)


def test_a_histogram_is_uniform_within_its_bins() -> None:
    """A quarter into a bin a quarter of its share is passed; empty outer bins are dropped."""
    assert HISTOGRAM.share_up_to(7000) == pytest.approx(0.5 + 0.3 / 4)
    padded = Histogram.of((0, 1, 2, 3), (0, 1, 0))
    assert (padded.shortest, padded.longest) == (1, 2)
    assert DemandTable.of(HISTOGRAM, (), ()).at(Split(0)).long_tokens == pytest.approx(
        0.5 * 500 + 0.3 * 10_000 + 0.2 * 40_000
    )


def test_what_is_no_distribution_is_refused() -> None:
    """Empty, negative and unordered numbers raise with a reason."""
    with pytest.raises(WorkloadError, match="positive"):
        Atoms.of({})
    with pytest.raises(WorkloadError, match="positive"):
        Atoms.of({0: 1})
    with pytest.raises(WorkloadError, match="negative"):
        Atoms.of({1: 1, 2: -1})
    with pytest.raises(WorkloadError, match="increasing"):
        Histogram.of((0, 2, 1), (1, 1))
    with pytest.raises(WorkloadError, match="some positive"):
        Histogram.of((0, 1, 2), (0, 0))
    with pytest.raises(WorkloadError, match="one bound more"):
        Histogram.of((0, 1), (1, 1))
    with pytest.raises(WorkloadError, match="shortest < longest"):
        TruncatedLogNormal(9.9, 1.0, 128, 128)
    with pytest.raises(WorkloadError, match="sigma"):
        TruncatedLogNormal(9.9, 0.0, 1, 128)
    with pytest.raises(WorkloadError, match="no length"):
        TruncatedLogNormal(9.9, 0.1, 1, 2)


def test_a_shared_prefix_is_computed_once() -> None:
    """The second prompt of a conversation asks for what the first did not have."""
    first = (1100, (1, 2, 3))
    second = (2100, (1, 2, 4, 5, 6))
    assert list(uncached_lengths([first, second], block_tokens=512)) == [1100, 2100 - 1024]


def test_the_last_token_is_always_computed() -> None:
    """A prompt that is cached whole still needs one token, as engines recompute it."""
    prompt = (1024, (1, 2))
    assert list(uncached_lengths([prompt, prompt], block_tokens=512)) == [1024, 1]


def test_a_small_cache_forgets_what_was_used_longest_ago() -> None:
    """With room for two blocks the older conversation is lost, its tail before its head."""
    older, newer = (1024, (1, 2)), (512, (3,))
    lengths = uncached_lengths([older, newer, older], block_tokens=512, capacity_blocks=2)
    assert list(lengths) == [1024, 512, 512]
