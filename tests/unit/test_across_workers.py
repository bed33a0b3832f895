"""Gauges of several workers as one."""

from __future__ import annotations

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from router.adapters.across_workers import ACROSS, GaugeReading, merge_gauges, read_gauges
from tests.deploy.metric_names import HISTOGRAMS, LABELS, PREFIX

OF_THE_INDEX = {"index_blocks", "index_source_state", "index_source_age_seconds"}
"""Read from the store that all workers share, by whichever of them is asked."""


def family(name: str, **values: float) -> Metric:
    """A family with one label."""
    gauge = GaugeMetricFamily(PREFIX + name, "", labels=["of"])
    for label, value in values.items():
        gauge.add_metric([label], value)
    return gauge


def readings(*families: Metric) -> list[GaugeReading]:
    return read_gauges(families)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("instance_inflight", (3, 4, 5), 12),
        ("queue_depth", (1, 0, 1), 2),
        ("link_inflight_bytes", (10, 20, 30), 60),
        ("instance_up", (1, 0, 1), 0),
        ("store_up", (1, 1, 0), 0),
        ("instance_breaker_open", (0, 1, 0), 1),
        ("instance_queue_depth", (7, 9, 8), 9),
        ("threshold_tokens", (100, 100, 100), 100),
    ],
)
def test_what_workers_hold_adds_up_and_what_they_see_is_the_worst(
    name: str, values: tuple[float, float, float], expected: float
) -> None:
    """Shares are summed; of different looks at one thing the worse news counts."""
    own, *others = (family(name, a=value) for value in values)
    (merged,) = merge_gauges([own], [readings(other) for other in others])
    assert [(sample.labels, sample.value) for sample in merged.samples] == [({"of": "a"}, expected)]


def test_series_that_one_worker_has_alone_are_kept() -> None:
    """A series is told if any worker has it; families that the asked one lacks wait for it."""
    own, other = family("instance_inflight", a=1), family("instance_inflight", a=1, b=2)
    stranger = family("queue_depth", c=1)
    (merged,) = merge_gauges([own], [readings(other, stranger)])
    assert {sample.labels["of"]: sample.value for sample in merged.samples} == {"a": 2, "b": 2}


def test_a_worker_alone_tells_its_own() -> None:
    """Without others nothing is changed."""
    own = family("instance_inflight", a=1)
    assert list(merge_gauges([own], [])) == [own]


def test_every_gauge_says_what_it_is_across_workers() -> None:
    """A new gauge needs its line in ACROSS: a sum, or the worse of two looks at one thing."""
    gauges = {name for name in LABELS if not name.endswith("_total")} - HISTOGRAMS - OF_THE_INDEX
    assert {PREFIX + name for name in gauges} == set(ACROSS)
