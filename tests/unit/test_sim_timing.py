"""Simulated time: places that do not drift, the decode pace, the cost of a prefill."""

from __future__ import annotations

import asyncio

import pytest

from router.sim.engines.timing import DecodePace, Places, SimClock, measure_prefill
from tests.fakes.standins import AffineProfile


class Hands:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_clock_scales_wall_time_from_its_start() -> None:
    """With scale 10, a tenth of a wall second is a simulated one; the origin is zero."""
    hands = Hands()
    clock = SimClock(hands, 10.0)
    assert clock.now() == 0.0
    hands.seconds += 0.1
    assert clock.now() == pytest.approx(1.0)
    assert clock.wall_until(2.0) == pytest.approx(0.1)


async def test_a_waiting_request_starts_when_the_place_was_free() -> None:
    """However late the loop gets round to it, work starts at the time the place fell free."""
    places = Places(1)
    assert await places.take(3.0) == 3.0
    waiter = asyncio.create_task(places.take(4.0))
    await asyncio.sleep(0)
    assert places.waiting == 1
    places.give_back(7.5)
    assert await waiter == 7.5
    places.give_back(9.0)
    assert await places.take(20.0) == 20.0


async def test_places_go_to_the_longest_waiting_and_survive_cancellation() -> None:
    """First come, first served; a cancelled waiter neither gets nor keeps a place."""
    places = Places(1)
    await places.take(0.0)
    first, second, third = (asyncio.create_task(places.take(0.0)) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    places.give_back(1.0)  # goes to the second, for the first is gone by then
    second.cancel()  # granted and cancelled in the same turn: handed on
    assert await third == 1.0
    assert places.waiting == 0
    with pytest.raises(asyncio.CancelledError):
        await second


def test_pace_counts_tokens_without_drift() -> None:
    """Token i is due at start + i / rate, and all due tokens come at once."""
    pace = DecodePace(10.0, 4.0, 5)
    assert [pace.due(i) for i in range(5)] == [10.0, 10.25, 10.5, 10.75, 11.0]
    assert pace.end == 11.0
    assert pace.count_due(9.99, 0.0) == 0
    assert pace.count_due(10.0, 0.0) == 1
    assert pace.count_due(10.6, 0.0) == 3
    assert pace.count_due(99.0, 0.0) == 5
    assert pace.count_due(10.49, 0.02) == 3


def test_a_cached_prefix_costs_nothing_and_no_cost_is_negative() -> None:
    """T(end) - T(start) telescopes over steps; a profile that falls costs zero, not less."""
    profile = AffineProfile(base_seconds=0.5, tokens_per_second=1000.0)
    assert measure_prefill(profile, 0, 2000) == pytest.approx(2.5)
    parts = measure_prefill(profile, 0, 700) + measure_prefill(profile, 700, 2000)
    assert parts == pytest.approx(2.5)
    assert measure_prefill(AffineProfile(tokens_per_second=-1.0), 10, 20) == 0.0
