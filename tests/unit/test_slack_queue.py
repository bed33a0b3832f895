"""The queue in order of slack, one claim a test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.control.slack import Finish, Pending, Server, SlackQueue, SlackRules

EAST = Server("p0", "east")
WEST = Server("f0", "west")


def in_seconds(seconds: float | None) -> Finish:
    """An instance that would take every prompt so long."""
    return lambda _pending: seconds


def by_work(factor: float = 1.0) -> Finish:
    """An instance that takes a prompt's own work times `factor`."""
    return lambda pending: factor * pending.work


def a_queue(*waiting: Pending, **rules: float) -> SlackQueue:
    """A queue in which these wait."""
    queue = SlackQueue(SlackRules(**rules))  # type: ignore[arg-type]
    for each in waiting:
        queue.join(each)
    return queue


def a_prompt(
    number: int, deadline: float, *, work: float = 1.0, since: float = 0.0, lane: str = "east"
) -> Pending:
    """A prompt that waits."""
    return Pending(number, since, deadline, work, lane)


def order(queue: SlackQueue, now: float) -> list[int]:
    """In which order an instance that is always free would take them, at one instant."""
    taken = []
    while (each := queue.pick(now, EAST, by_work())) is not None:
        taken.append(each.number)
    return taken


def test_who_can_be_in_time_goes_by_deadline() -> None:
    """The earliest deadline first, whatever the order of arrival."""
    queue = a_queue(a_prompt(1, 9), a_prompt(2, 5), a_prompt(3, 7))
    assert order(queue, 0) == [2, 3, 1]
    assert len(queue) == 0


def test_who_is_late_anyhow_waits_for_all_who_are_not() -> None:
    """Late prompts come last, the quickest of them first."""
    queue = a_queue(a_prompt(1, 1, work=9), a_prompt(2, 1, work=5), a_prompt(3, 8), a_prompt(4, 7))
    assert order(queue, 3) == [4, 3, 2, 1]


def test_aging_bounds_the_wait() -> None:
    """Who has waited for `aging` goes before everybody, the oldest first."""
    queue = a_queue(
        a_prompt(1, 101, since=96), a_prompt(2, 3, work=9, since=80), a_prompt(3, 2, since=79),
        aging=15,
    )  # fmt: skip
    assert order(queue, 95.5) == [3, 2, 1]


def test_an_instance_serves_its_own_lane_and_its_clusters() -> None:
    """What waits for another instance's prefix is not taken while something else waits."""
    queue = a_queue(a_prompt(1, 5, lane="p1"), a_prompt(2, 9, lane="p0"), a_prompt(3, 8))
    assert queue.pick(0, EAST, by_work()).number == 3
    assert queue.pick(0, EAST, by_work()).number == 2


@pytest.mark.parametrize(
    ("finish", "now", "taken"),
    [
        (1.0, 0, True),  # as quickly as its own lane would
        (2.9, 0, True),  # slower, but in time and within the stretch
        (3.1, 0, False),  # in time, at more than three times the work
        (2.9, 9, False),  # too late
        (0.9, 99, True),  # late, but as quickly as its own lane would
    ],
)
def test_an_idle_instance_steals_what_it_does_not_waste_itself_on(
    finish: float, now: float, taken: bool
) -> None:
    """Stealing must keep a promise at a bearable price, or cost nothing."""
    queue = a_queue(a_prompt(1, 10, since=0), aging=1000)
    assert (queue.pick(now, WEST, in_seconds(finish)) is not None) is taken


def test_anybody_takes_who_has_aged_or_whom_nobody_serves() -> None:
    """Neither price nor promise count for who would wait for ever."""
    costly = in_seconds(50)
    assert a_queue(a_prompt(1, 5), aging=15).pick(14, WEST, costly) is None
    assert a_queue(a_prompt(1, 5), aging=15).pick(15, WEST, costly) is not None
    assert a_queue(a_prompt(1, 5)).pick(0, WEST, costly, closed={"east"}) is not None


def test_a_protected_instance_does_not_steal() -> None:
    """All but one of a cluster may be at work on others' prompts."""
    queue = a_queue(a_prompt(1, 5, lane="west"))
    assert queue.pick(0, Server("p0", "east", may_steal=False), by_work()) is None
    assert queue.pick(0, EAST, by_work()) is not None


def test_what_cannot_be_taken_now_stays() -> None:
    """Without budget on the link a prompt waits on."""
    queue = a_queue(a_prompt(1, 5))
    assert queue.pick(0, EAST, in_seconds(None)) is None
    assert len(queue) == 1


def test_leaving_is_idempotent() -> None:
    """A place is freed once."""
    prompt = a_prompt(1, 5)
    queue = a_queue(prompt)
    assert queue.leave(prompt)
    assert not queue.leave(prompt)
    assert list(queue) == []


lanes = st.sampled_from(["east", "west", "p0", "f1"])
prompts = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0, 100), st.floats(0.1, 50), lanes), max_size=30
)


@given(prompts=prompts, now=st.floats(0, 200))
def test_everybody_is_taken_once_and_the_own_lanes_first(
    prompts: list[tuple[float, float, float, str]], now: float
) -> None:
    """A free instance empties the queue of all it may have; nobody is lost or taken twice."""
    waiting = [
        a_prompt(number, deadline, work=work, since=min(since, now), lane=lane)
        for number, (since, deadline, work, lane) in enumerate(prompts)
    ]
    queue = a_queue(*waiting, queue_size=10)
    assert queue.is_full == (len(waiting) >= 10)
    taken = order(queue, now)
    assert sorted(taken) == list(range(len(waiting)))
    own = [waiting[number].lane in ("east", "p0") for number in taken]
    assert own == sorted(own, reverse=True)
