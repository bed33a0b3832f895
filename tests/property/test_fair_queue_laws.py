"""The fair queue under any course of events: nobody is lost, nobody jumps, shares hold."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.control.admission import AdmissionRules, FairQueue, Lane, Waiting

WEIGHTS = {"a": 1.0, "b": 3.0, "c": 0.5}
LANES = [Lane("tiny"), Lane("tiny", "east"), Lane("huge")]
SIZE, PATIENCE = 12, 10.0


class QueueMachine(RuleBasedStateMachine):
    """Joins, leaves, drops and grants in any order, beside a plain set of who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue(AdmissionRules(SIZE, PATIENCE))
        self.waiting: set[Waiting] = set()
        self.now = 0.0

    @rule(
        tenant=st.sampled_from(sorted(WEIGHTS)),
        priority=st.integers(-2, 2),
        lane=st.sampled_from(LANES),
    )
    def join(self, tenant: str, priority: int, lane: Lane) -> None:
        """One more waits, and a full queue turns one of the greediest tenant away."""
        joined = self.queue.join(tenant, WEIGHTS[tenant], priority, lane, self.now)
        self.waiting.add(joined)
        counts = Counter(each.tenant for each in self.waiting)
        shares = {name: count / WEIGHTS[name] for name, count in counts.items()}
        for dropped in self.queue.overflow():
            assert shares[dropped.tenant] == max(shares.values())
            self.waiting.remove(dropped)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Whoever leaves is gone at once, and only once."""
        if self.waiting:
            chosen = data.draw(st.sampled_from(sorted(self.waiting, key=lambda w: w.number)))
            assert self.queue.leave(chosen)
            assert not self.queue.leave(chosen)
            self.waiting.remove(chosen)

    @rule(seconds=st.floats(0.0, 6.0))
    def pass_time(self, seconds: float) -> None:
        """Requests grow old."""
        self.now += seconds

    @rule(free=st.fixed_dictionaries(dict.fromkeys(LANES, st.integers(0, 3))))
    def grant(self, free: dict[Lane, int]) -> None:
        """Each slot goes to one who waits in its lane, never past a more urgent one there."""
        left = dict(free)

        def find(lane: Lane) -> str | None:
            left[lane] -= 1
            return lane.model if left[lane] >= 0 else None

        for grant in self.queue.grant(self.now, find):
            chosen = grant.waiting
            assert grant.instance == chosen.lane.model
            alike = [each for each in self.waiting if each.lane == chosen.lane]
            first = min(
                each.priority for each in self.waiting if each.lane.model == chosen.lane.model
            )
            assert self.rank(chosen, first)[0] == min(self.rank(each, first)[0] for each in alike)
            # A tenant's own requests of one priority go in the order of arrival.
            assert chosen.number == min(
                each.number
                for each in alike
                if each.tenant == chosen.tenant and each.priority == chosen.priority
            )
            self.waiting.remove(chosen)
        for lane, count in free.items():
            served = count - max(0, left[lane])
            assert served == count or not any(each.lane == lane for each in self.waiting)

    def rank(self, waiting: Waiting, first: int) -> tuple[int, int]:
        patient = self.now - waiting.since >= PATIENCE
        return (first if patient else waiting.priority, waiting.number)

    @invariant()
    def the_queue_holds_who_waits(self) -> None:
        """Nobody is lost and nobody is kept; counts are true and bounded."""
        assert set(self.queue) == self.waiting
        assert len(self.queue) == len(self.waiting) <= SIZE
        for tenant in WEIGHTS:
            assert self.queue.depth(tenant) == sum(w.tenant == tenant for w in self.waiting)
        assert self.queue.lanes == {each.lane for each in self.waiting}
        assert self.waiting or not self.queue._times  # nothing is left of those who went


QueueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestQueueMachine = QueueMachine.TestCase

weights = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.0]), min_size=2, max_size=4)


@given(weights, st.integers(1, 60))
@settings(deadline=None)
def test_shares_hold_in_every_interval(shares: list[float], grants: int) -> None:
    """Tenants that always wait differ by at most a grant each, whatever interval is looked at."""
    queue = FairQueue(AdmissionRules(10_000, 1e9))
    names = [str(place) for place in range(len(shares))]
    lane = LANES[0]
    for name, weight in zip(names, shares, strict=True):
        queue.join(name, weight, 0, lane, 0.0)
    history: list[Counter[str]] = [Counter()]
    for _ in range(grants):
        # One at a time, each replaced: nobody's line is empty when a slot is given.
        slots = iter(["d0"])
        (grant,) = queue.grant(0.0, lambda _, slots=slots: next(slots, None))  # type: ignore[misc]
        served = grant.waiting
        queue.join(served.tenant, served.weight, 0, lane, 0.0)
        history.append(history[-1] + Counter([served.tenant]))
    for early, late in itertools.combinations(history, 2):
        normal = [
            ((late[name] - early[name]) / weight, weight)
            for name, weight in zip(names, shares, strict=True)
        ]
        for (mine, my_weight), (theirs, their_weight) in itertools.combinations(normal, 2):
            assert abs(mine - theirs) <= 1 / my_weight + 1 / their_weight + 1e-9
