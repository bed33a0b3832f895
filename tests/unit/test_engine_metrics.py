"""What engines' metrics tell of their queue and their KV transfers."""

from __future__ import annotations

import pytest

from router.adapters.probes import read_metrics
from router.domain.topology import Cluster, ClusterKind, Instance, Role
from router.service.fleet import Fleet
from router.service.members import EngineReading
from router.sim.engines.metrics import EngineMetrics
from tests.fakes.clocks import FakeClock

RANKS = """# TYPE vllm:nixl_xfer_time_seconds histogram
vllm:num_requests_running{engine="0",model_name="tiny"} 1.0
vllm:num_requests_running{engine="1",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0
vllm:nixl_xfer_time_seconds_bucket{engine="0",le="1.0",model_name="tiny"} 3.0
vllm:nixl_xfer_time_seconds_sum{engine="0",model_name="tiny"} 0.75
vllm:nixl_xfer_time_seconds_sum{engine="1",model_name="tiny"} 1.5
vllm:nixl_bytes_transferred_sum{engine="0",model_name="tiny"} 3e9
vllm:nixl_bytes_transferred_sum{engine="1",model_name="tiny"} 4e9
"""


def test_transfers_of_all_ranks_add_up() -> None:
    """Only the histograms' sums count, over data-parallel engines; nothing told is unknown."""
    reading = read_metrics(RANKS, 7.0)
    assert reading is not None
    assert (reading.at, reading.running) == (7.0, 3)
    assert (reading.transfer_seconds, reading.transferred_bytes) == (2.25, 7e9)
    without = read_metrics(RANKS.partition("vllm:nixl_xfer_time_seconds_bucket")[0], 7.0)
    assert without is not None
    assert without.transfer_seconds is without.transferred_bytes is None


def test_the_stand_ins_tell_of_transfers_as_vllm_does() -> None:
    """Under the same names, at the reader."""
    metrics = EngineMetrics("tiny")
    metrics.transfer_seconds.observe(0.5)
    metrics.transfer_bytes.observe(2**20)
    reading = read_metrics(metrics.render().decode(), 0.0)
    assert reading is not None
    assert (reading.transfer_seconds, reading.transferred_bytes) == (0.5, 2**20)


def test_time_in_transfers_outlives_restarts_and_is_unknown_where_one_is_silent() -> None:
    """A restarted engine counts from 0; of prefill instances nothing is asked."""
    clock = FakeClock(100.0)
    instances = [
        Instance("d0", "east", "http://d0", Role.DECODE),
        Instance("d1", "east", "http://d1", Role.DECODE),
        Instance("p0", "east", "http://p0", Role.PREFILL),
    ]
    fleet = Fleet([Cluster("east", ClusterKind.PD)], instances, clock=clock)

    def scrape(name: str, seconds: float | None) -> None:
        reading = EngineReading(clock.monotonic(), 0, 0, transfer_seconds=seconds)
        fleet.record_probe(name, ok=True, reading=reading)

    fleet.record_probe("p0", ok=True)
    for seconds in (5.0, 7.0, 1.0):
        scrape("d0", seconds)
        scrape("d1", 3.0)
    assert fleet.transfer_seconds("east") == pytest.approx(2.0 + 1.0)
    scrape("d1", None)
    assert fleet.transfer_seconds("east") is None
    scrape("d1", 3.0)
    clock.advance(60.0)
    assert fleet.transfer_seconds("east") is None
