"""A host's egress, from its counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.control.egress import HostReading, compare
from router.domain.units import BytesPerSecond, from_gbps

MOST = from_gbps(100)


@given(
    width=st.sampled_from([32, 64]),
    start=st.integers(0, 2**32 - 1),
    moved=st.integers(0, 2**30),
)
def test_a_counter_that_begins_anew_loses_no_byte(width: int, start: int, moved: int) -> None:
    """Whether it counts in 32 bits or in 64, at a rate that the interface can have."""
    end = 1 << width
    before = (end - start - 1) % end
    readings = [
        HostReading(0.0, {"eth0": before}),
        HostReading(1.0, {"eth0": (before + moved) % end}),
    ]
    egress = compare(*readings, MOST)
    assert egress is not None
    assert egress.rate == moved


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"eth0": 10**15}, {"eth0": 7}),
        ({"eth0": 2**31}, {"eth0": 2**31 - 10}),
        ({"eth0": 5}, {"eth1": 9}),
        ({"eth0": 5}, {"eth0": 9, "eth1": 1}),
    ],
)
def test_a_counter_that_was_reset_is_unknown_and_not_0(
    before: dict[str, int], after: dict[str, int]
) -> None:
    """Nobody can tell what moved; neither where another interface is counted."""
    assert compare(HostReading(0.0, before), HostReading(1.0, after), MOST) is None


def test_time_that_stands_still_tells_nothing() -> None:
    """Two readings at one time are one."""
    reading = HostReading(3.0, {"eth0": 1})
    assert compare(reading, reading, MOST) is None


def test_interfaces_add_up_and_round_trips_are_the_middle_one() -> None:
    """A bond's members are one way out; one far host moves no median."""
    before = HostReading(0.0, {"a": 0, "b": 100}, 0, 0)
    after = HostReading(2.0, {"a": 1000, "b": 1100}, 4000, 40, (0.01, 0.02, 9.0))
    egress = compare(before, after, MOST)
    assert egress is not None
    assert egress.rate == BytesPerSecond(1000.0)
    assert egress.retransmit_ratio == pytest.approx(0.01)
    assert egress.rtt == 0.02


@pytest.mark.parametrize(
    ("segments", "repeated"), [(3, 1), (None, 1), (5000, None), (5000, -7), (-5000, 3)]
)
def test_few_segments_make_no_ratio(segments: int | None, repeated: int | None) -> None:
    """One repeated segment of two would halve an idle link."""
    start = HostReading(0.0, {"a": 0}, 10_000, 100)
    end = HostReading(
        1.0,
        {"a": 0},
        None if segments is None else 10_000 + segments,
        None if repeated is None else 100 + repeated,
    )
    egress = compare(start, end, MOST)
    assert egress is not None
    assert egress.retransmit_ratio is None
