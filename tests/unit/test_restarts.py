"""When a worker that ended is started again."""

from __future__ import annotations

from router.control.restarts import (
    RestartRules,
    Restarts,
    pause_before_restart,
    should_give_up,
    step_ended,
)

RULES = RestartRules(pauses=(0.0, 1.0, 3.0), settled=10.0, patience=3)


def after(*served: float | None) -> Restarts:
    """The state after processes that served for so long each; None: never."""
    state = Restarts()
    for each in served:
        state = step_ended(state, each, RULES)
    return state


def test_a_worker_that_served_is_replaced_at_once() -> None:
    """However often it happens, as long as each served for a while."""
    assert pause_before_restart(after(3600.0, 60.0, 10.0), RULES) == 0.0


def test_workers_that_end_at_once_are_replaced_ever_later() -> None:
    """The pause grows to its last value and stays there, and one that lasts resets it."""
    pauses = [pause_before_restart(after(*[0.1] * count), RULES) for count in (1, 2, 3, 9)]
    assert pauses == [0.0, 1.0, 3.0, 3.0]
    assert pause_before_restart(after(0.1, 0.1, 60.0), RULES) == 0.0


def test_starting_is_given_up_where_none_ever_serves() -> None:
    """Only starts in a row of which none came to serve count: one that did shows that it can."""
    assert should_give_up(after(None, None, None), RULES)
    assert not should_give_up(after(None, None), RULES)
    assert not should_give_up(after(None, None, 0.1, None, None), RULES)
    assert not should_give_up(after(*[0.1] * 9), RULES)
