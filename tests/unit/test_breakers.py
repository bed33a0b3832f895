"""The breaker before a store, by hand: no clock but the test's."""

from __future__ import annotations

from kvmeta.backends.breakers import BreakerRules, BreakerState, LookUpBreaker

RULES = BreakerRules(failures=3, cooldown_seconds=2.0)


def opened(at: float = 0.0) -> LookUpBreaker:
    breaker = LookUpBreaker(RULES)
    for _ in range(3):
        breaker.failed(at)
    return breaker


def test_failures_in_a_row_open_it_and_are_told_once() -> None:
    """A success in between starts the count anew."""
    breaker = LookUpBreaker(RULES)
    assert not breaker.failed(0)
    assert not breaker.failed(0)
    assert not breaker.succeeded(0)
    assert [breaker.failed(1) for _ in range(3)] == [False, False, True]
    assert breaker.state is BreakerState.OPEN
    assert not breaker.failed(1), "those still in flight change nothing"


def test_one_look_up_tries_after_the_cool_down() -> None:
    """The others are not let through meanwhile."""
    breaker = opened()
    assert not breaker.admits(1.9)
    assert breaker.admits(2.0)
    assert not breaker.admits(2.1)
    assert breaker.state is BreakerState.HALF_OPEN


def test_a_trial_that_succeeds_closes_it() -> None:
    """And that is told."""
    breaker = opened()
    breaker.admits(2.0)
    assert breaker.succeeded(2.0)
    assert breaker.state is BreakerState.CLOSED
    assert breaker.admits(2.0)


def test_a_trial_that_fails_waits_again_and_is_not_told() -> None:
    """Open it was before."""
    breaker = opened()
    breaker.admits(2.0)
    assert not breaker.failed(2.1)
    assert not breaker.admits(4.0)
    assert breaker.admits(4.2)


def test_a_trial_that_never_came_back_does_not_block_the_next() -> None:
    """Its caller may have been cancelled."""
    breaker = opened()
    assert breaker.admits(2.0)
    assert breaker.admits(4.0)
