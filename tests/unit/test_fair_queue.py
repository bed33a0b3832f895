"""The queue before the decode slots: whose turn it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from router.control.admission import AdmissionRules, FairQueue, Lane, Waiting

LANE = Lane("tiny")


def a_queue(size: int = 1000, patience: float = 30.0) -> FairQueue:
    return FairQueue(AdmissionRules(size, patience))


def slots(count: int) -> Callable[[Lane], str | None]:
    """Find as many slots as are said, whatever the lane."""
    left = [count]

    def find(_: Lane) -> str | None:
        left[0] -= 1
        return "d0" if left[0] >= 0 else None

    return find


def granted(queue: FairQueue, count: int, now: float = 0.0) -> list[Waiting]:
    return [grant.waiting for grant in queue.grant(now, slots(count))]


def tenants(waiting: list[Waiting]) -> str:
    return "".join(each.tenant for each in waiting)


def test_one_tenant_is_served_in_the_order_of_arrival() -> None:
    """Without tenants to part them, first come is first served."""
    queue = a_queue()
    came = [queue.join("a", 1.0, 0, LANE, 0.0) for _ in range(5)]
    assert granted(queue, 2) + granted(queue, 9) == came
    assert len(queue) == 0


def test_who_had_a_slot_before_goes_ahead() -> None:
    """A request that lost its slot goes before its tenant's others, and is not the one dropped."""
    queue = a_queue(size=2)
    usual = queue.join("a", 1.0, 0, LANE, 0.0)
    late = queue.join("a", 1.0, 0, LANE, 0.0)
    again = queue.join("a", 1.0, 0, LANE, 0.0, ahead=True)
    assert queue.overflow() == [late]
    assert granted(queue, 9) == [again, usual]


def test_weights_share_the_grants() -> None:
    """A weight of 3 gets three grants for each of a weight of 1, from the first ones on."""
    queue = a_queue()
    for _ in range(100):
        queue.join("a", 1.0, 0, LANE, 0.0)
    for _ in range(100):
        queue.join("b", 3.0, 0, LANE, 0.0)
    for _ in range(10):
        assert Counter(tenants(granted(queue, 8))) == {"a": 2, "b": 6}


def test_leaving_costs_nothing() -> None:
    """A tenant whose requests leave is as near to its turn as if they had never come."""
    queue = a_queue()
    for _ in range(10):
        queue.leave(queue.join("a", 1.0, 0, LANE, 0.0))
    first = queue.join("b", 1.0, 0, LANE, 0.0)
    leaving = [queue.join("a", 1.0, 0, LANE, 0.0) for _ in range(50)]
    last = queue.join("a", 1.0, 0, LANE, 0.0)
    for waiting in leaving:
        assert queue.leave(waiting)
        assert not queue.leave(waiting)
    queue.join("b", 1.0, 0, LANE, 0.0)
    assert granted(queue, 2) == [first, last]


def test_a_newcomer_has_saved_nothing_up() -> None:
    """A tenant that comes late shares from then on; it does not catch up."""
    queue = a_queue()
    for _ in range(200):
        queue.join("a", 1.0, 0, LANE, 0.0)
    granted(queue, 100)
    for _ in range(50):
        queue.join("b", 1.0, 0, LANE, 0.0)
    assert Counter(tenants(granted(queue, 20))) == {"a": 10, "b": 10}


def test_coming_and_going_gains_nothing() -> None:
    """A tenant that waits with one request at a time gets no more than its share."""
    queue = a_queue()
    for _ in range(200):
        queue.join("a", 1.0, 0, LANE, 0.0)
    served = ""
    for _ in range(40):
        if not queue.depth("b"):
            queue.join("b", 1.0, 0, LANE, 0.0)
        served += tenants(granted(queue, 1))
    assert Counter(served) == {"a": 20, "b": 20}


def test_the_lower_priority_goes_first() -> None:
    """Over all tenants and weights, as in vLLM; equals in the order of arrival."""
    queue = a_queue()
    late = queue.join("a", 100.0, 5, LANE, 0.0)
    first = queue.join("b", 1.0, -1, LANE, 0.0)
    usual = [queue.join("a", 100.0, 0, LANE, 0.0) for _ in range(2)]
    assert granted(queue, 9) == [first, *usual, late]


def test_nobody_starves_behind_a_priority() -> None:
    """After `patience` a request competes with the first, however many urgent ones come."""
    queue = a_queue(patience=30.0)
    meek = queue.join("a", 1.0, 100, LANE, 0.0)
    for second in range(30):
        queue.join("b", 1.0, -100, LANE, second)
        queue.join("b", 1.0, -100, LANE, second)
        assert meek not in granted(queue, 1, second)
    assert meek in granted(queue, 2, 30.0)


def test_the_patient_do_not_displace_the_urgent() -> None:
    """Many who waited long share with the urgent by weight: they do not go before them all."""
    queue = a_queue(patience=30.0)
    for _ in range(100):
        queue.join("a", 1.0, 100, LANE, 0.0)
    for _ in range(100):
        queue.join("b", 1.0, -100, LANE, 10.0)
    assert tenants(granted(queue, 20, 20.0)) == "b" * 20
    served = Counter(tenants(granted(queue, 20, 31.0)))
    assert abs(served["a"] - served["b"]) <= 2


def test_a_blocked_lane_holds_up_no_other() -> None:
    """Requests for a model without a free slot wait; those behind them for another do not."""
    queue = a_queue()
    busy = [queue.join("a", 1.0, 0, Lane("busy"), 0.0) for _ in range(3)]
    free = [queue.join("a", 1.0, 0, Lane("free"), 0.0) for _ in range(3)]
    grants = queue.grant(0.0, lambda lane: "d0" if lane.model == "free" else None)
    assert [grant.waiting for grant in grants] == free
    assert sorted(queue, key=lambda each: each.number) == busy
    assert queue.lanes == {Lane("busy")}


def test_a_blocked_tenant_gives_newcomers_no_head_start() -> None:
    """Somebody who waits in a blocked lane does not turn back the time of the others."""
    queue = a_queue()
    queue.join("a", 1.0, 0, Lane("busy"), 0.0)
    for _ in range(100):
        queue.join("b", 1.0, 0, Lane("free"), 0.0)

    def serve(count: int) -> str:
        left = iter(range(count))
        find = queue.grant(
            0.0, lambda lane: "d" if lane.model == "free" and next(left, None) is not None else None
        )
        return tenants([grant.waiting for grant in find])

    serve(50)
    for _ in range(20):
        queue.join("c", 1.0, 0, Lane("free"), 0.0)
    assert Counter(serve(20)) == {"b": 10, "c": 10}


def test_a_full_queue_turns_the_greediest_away() -> None:
    """A flood gives way to a tenant with less than its share, and otherwise to nobody."""
    queue = a_queue(size=4)
    flood = [queue.join("a", 1.0, 0, LANE, 0.0) for _ in range(4)]
    assert queue.overflow() == []
    one_more = queue.join("a", 1.0, 0, LANE, 0.0)
    assert queue.overflow() == [one_more]
    modest = queue.join("b", 1.0, 0, LANE, 0.0)
    assert queue.overflow() == [flood[-1]]
    second = queue.join("b", 1.0, 0, LANE, 0.0)
    assert queue.overflow() == [flood[-2]]
    third = queue.join("b", 1.0, 0, LANE, 0.0)
    assert queue.overflow() == [third]
    assert set(queue) == {flood[0], flood[1], modest, second}


def test_places_go_by_weight() -> None:
    """A tenant of weight 3 keeps three places for each of a tenant of weight 1."""
    queue = a_queue(size=8)
    for _ in range(20):
        queue.join("a", 1.0, 0, LANE, 0.0)
        queue.join("b", 3.0, 0, LANE, 0.0)
        queue.overflow()
    assert (queue.depth("a"), queue.depth("b")) == (2, 6)


def test_a_full_queue_turns_the_least_urgent_away() -> None:
    """Of one tenant's requests the last of the least urgent goes, not whoever came last."""
    queue = a_queue(size=2)
    meek = queue.join("a", 1.0, 9, LANE, 0.0)
    queue.join("a", 1.0, 0, LANE, 0.0)
    queue.join("a", 1.0, 0, Lane("other"), 0.0)
    assert queue.overflow() == [meek]
