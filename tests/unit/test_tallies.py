"""Our counters and histograms say what the library's own would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest

from router.adapters.tallies import CountTable, DistributionTable

BOUNDS = (0.1, 1.0, 5.0)
CREATED = b"_created"


def exposition(registry: CollectorRegistry) -> list[bytes]:
    """The lines of a scrape, without the times of creation."""
    lines = generate_latest(registry).splitlines()
    return [line for line in lines if CREATED not in line]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["local", "prfaas"]),
            st.sampled_from([0.0, 0.1, 0.2, 1.0, 4.9, 5.0, 7.5]),
        )
    )
)
def test_the_exposition_is_the_librarys(observed: list[tuple[str, float]]) -> None:
    """Counts, sums and buckets, bounds included, are told as prometheus_client tells them."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    our_count = CountTable("requests_total", "Requests", ("route",), ours)
    our_values = DistributionTable("seconds", "Seconds", BOUNDS, ("route",), ours)
    their_count = Counter("requests_total", "Requests", ("route",), registry=theirs)
    their_values = Histogram("seconds", "Seconds", ("route",), buckets=BOUNDS, registry=theirs)
    for route, value in observed:
        our_count.labels(route).inc()
        our_values.labels(route).observe(value)
        their_count.labels(route).inc()
        their_values.labels(route).observe(value)
    assert exposition(ours) == exposition(theirs)


def test_without_labels_there_is_one_series_from_the_first() -> None:
    """A family without labels is told before anything was counted."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    CountTable("tokens_total", "Tokens", (), ours).inc(3)
    DistributionTable("seconds", "Seconds", BOUNDS, (), ours)
    Counter("tokens_total", "Tokens", registry=theirs).inc(3)
    Histogram("seconds", "Seconds", buckets=BOUNDS, registry=theirs)
    assert exposition(ours) == exposition(theirs)


def test_a_wrong_number_of_labels_is_refused() -> None:
    """A value without its label would be another series."""
    table = CountTable("requests_total", "Requests", ("route", "code"), CollectorRegistry())
    with pytest.raises(ValueError, match="labels"):
        table.labels("local")
