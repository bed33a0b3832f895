"""A saturated system serves what the exact model says it can: within half a percent."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from router.sim.plants import PlantSpec, RuleSpec
from router.sim.records import Record
from router.sim.simulations import Simulation
from router.sim.traffic import Demand
from tests.fakes.plants import CASE, a_case_study, a_reference

T_STAR = 19_606
"""The case study's optimum in the exact form, where Lambda_max is 3.196 requests a second."""


def typical_lengths(count: int) -> list[int]:
    """The case study's lengths, one from each of `count` equal parts of the distribution.

    Their means are the distribution's own, so nothing is left of chance but the order.
    """
    lengths = [round(CASE.split_at((i + 0.5) / count).threshold) for i in range(count)]
    Random(1).shuffle(lengths)
    return lengths


def flood(count: int) -> Iterator[Demand]:
    """Everything comes at once."""
    return (Demand(0.0, length, length, 1024) for length in typical_lengths(count))


def endless(tokens: int) -> RuleSpec:
    """The paper's static rule: nothing spills over, whatever the queues."""
    return RuleSpec(tokens=tokens, remote_queue_limit=10**9, link_budget=1e9, queue_size=10**9)


def saturate(plant: PlantSpec, count: int) -> list[Record]:
    """Serve a flood; return the records in the order in which the KV was there."""
    records = Simulation(plant, flood(count), count, a_reference(plant)).run()
    return sorted(records, key=lambda record: record.answered)


@pytest.mark.parametrize(
    ("tokens", "gbps", "expected"),
    [(T_STAR, 100, 3.196), (T_STAR, 5, 1.32), (31_800, 5, 1.77), (21_700, 10, 2.79)],
)
def test_prefill_and_link_ceilings(tokens: int, gbps: float, expected: float) -> None:
    """Lambda_max of the exact form at several thresholds and bandwidths (MODEL: 3.196 at t*)."""
    plant = a_case_study(gbps=gbps, rule=endless(tokens), decodes=1000, reserved=False)
    records = saturate(plant, 4_000)
    assert len(records) / records[-1].answered == pytest.approx(expected, rel=0.005)


def test_decode_ceiling() -> None:
    """Equation 5: five instances of 20 slots, 25 ms a token, 1024 tokens: 3.906 a second."""
    plant = a_case_study(prefills=40, remote=0, rule=endless(10**9), reserved=False)
    finished = sorted(record.finished for record in saturate(plant, 2_000))
    first, last = finished[500], finished[1500]
    assert 1_000 / (last - first) == pytest.approx(5 * 20 / (0.025 * 1024), rel=0.005)


def test_without_overlap_compute_and_link_add_up() -> None:
    """The serial form: one instance computes, then sends; 1 / (1/compute + 1/egress)."""
    plant = a_case_study(remote=1, gbps=5, overlap=False, rule=endless(0), decodes=1000)
    records = saturate(plant, 300)
    profile = plant.pools[1].profile
    rate = plant.links[0].rate
    serial = sum(
        profile.prefill_seconds(each.total) + profile.kv_bytes(each.total) / rate
        for each in records
    )
    assert records[-1].answered == pytest.approx(serial, rel=1e-6)
