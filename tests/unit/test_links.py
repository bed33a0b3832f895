"""Links as reserved resources."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.control.links import (
    BandwidthMode,
    LinkHealth,
    LinkState,
    RegimeBounds,
    Telemetry,
    free_budget,
    is_up,
    step_regime,
    usable_bandwidth,
    utilization,
)
from router.domain.decision import Regime
from router.domain.errors import NotFound
from router.domain.topology import Link
from router.domain.units import Bytes, BytesPerSecond, from_gbps
from router.service.links import LinkBoard
from tests.fakes.clocks import FakeClock

LINK = Link("west-east", "prfaas-west", "pd-east", from_gbps(100))
BOUNDS = RegimeBounds(0.8, 0.6)


def reported(gbps: float, *, at: float = 0.0, **changes: object) -> LinkState:
    """A link whose egress was reported."""
    return LinkState(LINK, telemetry=Telemetry(from_gbps(gbps), at, **changes))  # type: ignore[arg-type]


def board(clock: FakeClock) -> LinkBoard:
    return LinkBoard([LINK], clock=clock, bounds=BOUNDS, budget=1.0)


def test_a_link_without_measurement_is_scarce() -> None:
    """Nobody vouches for spare bandwidth."""
    assert step_regime(Regime.ABUNDANT, BandwidthMode.AUTO, None, BOUNDS) is Regime.SCARCE


@pytest.mark.parametrize(
    ("before", "used", "after"),
    [
        (Regime.SCARCE, 0.59, Regime.ABUNDANT),
        (Regime.SCARCE, 0.7, Regime.SCARCE),
        (Regime.ABUNDANT, 0.7, Regime.ABUNDANT),
        (Regime.ABUNDANT, 0.81, Regime.SCARCE),
    ],
)
def test_the_regime_turns_with_hysteresis(before: Regime, used: float, after: Regime) -> None:
    """Between the two bounds the regime stays what it was."""
    assert step_regime(before, BandwidthMode.AUTO, used, BOUNDS) is after


@pytest.mark.parametrize("used", [None, 0.0, 0.99])
def test_the_operator_fixes_the_regime(used: float | None) -> None:
    """A fixed mode does not look at the utilisation."""
    assert step_regime(Regime.SCARCE, BandwidthMode.ABUNDANT, used, BOUNDS) is Regime.ABUNDANT
    assert step_regime(Regime.ABUNDANT, BandwidthMode.SCARCE, used, BOUNDS) is Regime.SCARCE


def test_utilisation_is_measured_against_what_is_usable() -> None:
    """A throttled link is full at a fraction of its nominal bandwidth."""
    assert utilization(reported(4.0), 0.0) == pytest.approx(0.04)
    throttled = reported(4.0, available=from_gbps(5))
    assert utilization(throttled, 0.0) == pytest.approx(0.8)


def test_old_telemetry_is_no_measurement() -> None:
    """Values have an age limit: beyond it the nominal bandwidth counts, and nothing is measured."""
    state = reported(4.0, available=from_gbps(5))
    assert usable_bandwidth(state, 10.0) == from_gbps(5)
    assert usable_bandwidth(state, 10.1) == from_gbps(100)
    assert utilization(state, 10.1) is None


def test_loss_lowers_what_is_usable() -> None:
    """Retransmitted bytes cross twice."""
    assert usable_bandwidth(reported(0, retransmit_ratio=0.25), 0.0) == from_gbps(75)


def test_a_link_without_bandwidth_is_down_until_the_operator_says_up() -> None:
    """Auto believes telemetry; the operator wins."""
    dead = reported(0, available=BytesPerSecond(0.0))
    assert not is_up(dead, 0.0)
    assert is_up(replace(dead, health=LinkHealth.UP), 0.0)
    assert not is_up(replace(reported(0), health=LinkHealth.DOWN), 0.0)


def test_booked_bytes_leave_the_budget_until_released() -> None:
    """A hand-off's bytes are reserved at dispatch and given back once."""
    clock = FakeClock()
    links = board(clock)
    free = links.view("west-east").free
    booking = links.book("west-east", Bytes(10**9))
    assert links.view("west-east").free == free - 10**9  # type: ignore[operator]
    booking.release()
    booking.release()
    assert links.view("west-east").free == free
    assert links.state("west-east").booked == 0


def test_an_older_report_does_not_replace_a_newer_one() -> None:
    """Reports may arrive out of order."""
    links = board(FakeClock(start=100.0))
    links.report("west-east", Telemetry(from_gbps(50), observed_at=99.0))
    links.report("west-east", Telemetry(from_gbps(1), observed_at=98.0))
    assert links.state("west-east").telemetry == Telemetry(from_gbps(50), observed_at=99.0)


def test_an_unknown_link_is_not_found() -> None:
    """A typo is an error, never a new link."""
    with pytest.raises(NotFound):
        board(FakeClock()).set_health("nope", LinkHealth.UP)


@given(st.lists(st.integers(0, 10**10), max_size=20), st.randoms())
def test_bookings_sum_to_what_is_in_flight(sizes: list[int], random: object) -> None:
    """Whatever the order of releases, booked bytes are the open bookings' sum, never negative."""
    links = board(FakeClock())
    open_bookings = [(size, links.book("west-east", Bytes(size))) for size in sizes]
    random.shuffle(open_bookings)  # type: ignore[attr-defined]
    while open_bookings:
        assert links.state("west-east").booked == sum(size for size, _ in open_bookings)
        open_bookings.pop()[1].release()
    assert links.state("west-east").booked == 0


@given(st.integers(0, 10**12), st.floats(0, 100))
def test_the_free_budget_is_never_negative(booked: int, seconds: float) -> None:
    """Overbooked means nothing free."""
    state = LinkState(LINK, booked=Bytes(booked))
    assert free_budget(state, 0.0, seconds) >= 0
