"""What a client's connection may take: each debt and its time, as values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.gateway.client_limits import (
    LEAST_BODY_RATE,
    LINGER_SECONDS,
    ClientLimits,
    ConnectionView,
    Overdue,
    Reading,
    judge,
)

LIMITS = ClientLimits(head=10, body=20, idle=40, stall=30)
QUIET = ConnectionView(
    reading=Reading.NOTHING,
    since=100.0,
    heard=100.0,
    body_bytes=0,
    busy=False,
    fresh=False,
    stalled_since=None,
)


@pytest.mark.parametrize(
    ("view", "after", "overdue"),
    [
        (replace(QUIET, reading=Reading.HEAD), LIMITS.head, Overdue.HEAD),
        (replace(QUIET, reading=Reading.BODY, busy=True), LIMITS.body, Overdue.BODY),
        (QUIET, LIMITS.idle, Overdue.REQUEST),
        (replace(QUIET, fresh=True), LIMITS.head, Overdue.REQUEST),
        (replace(QUIET, reading=Reading.REST), LINGER_SECONDS, Overdue.REST),
        (replace(QUIET, busy=True, stalled_since=100.0), LIMITS.stall, Overdue.READER),
    ],
)
def test_each_debt_is_overdue_after_its_time(
    view: ConnectionView, after: float, overdue: Overdue
) -> None:
    """What is owed may take its whole time, and no longer."""
    assert judge(view, LIMITS, 100 + after) is None
    assert judge(view, LIMITS, 100 + after + 0.1) is overdue


@pytest.mark.parametrize("reading", [Reading.NOTHING, Reading.REST])
def test_nothing_is_owed_while_an_answer_is_made(reading: Reading) -> None:
    """A prefill of minutes is not the client's delay."""
    assert judge(replace(QUIET, reading=reading, busy=True), LIMITS, 1e6) is None


def test_a_body_must_come_at_the_least_rate() -> None:
    """Single bytes, each in time, do not hold a connection for ever; a slow line may."""
    drip = replace(QUIET, reading=Reading.BODY, heard=149.0, body_bytes=25)
    assert judge(drip, LIMITS, 150.0) is Overdue.BODY
    steady = replace(drip, body_bytes=50 * LEAST_BODY_RATE)
    assert judge(steady, LIMITS, 150.0) is None


def test_a_body_that_came_fast_may_not_then_stop() -> None:
    """Bytes that came early buy no silence."""
    view = replace(QUIET, reading=Reading.BODY, body_bytes=10_000_000)
    assert judge(view, LIMITS, 121.0) is Overdue.BODY


def test_connections_are_looked_at_often_enough() -> None:
    """The timer ticks at a fraction of the shortest time, but not all the time."""
    assert ClientLimits().tick == LINGER_SECONDS / 4
    assert ClientLimits(head=0.2).tick == pytest.approx(0.05)
    assert ClientLimits(body=1e-6).tick == pytest.approx(0.02)
