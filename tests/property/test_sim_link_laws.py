"""The simulated link shares fairly and loses no byte."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.sim.engines.link import Flow, LinkState


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_bytes_are_conserved_whatever_happens(seed: int) -> None:
    """Sent plus left is what was asked, flows' sent add up, and no link beats its bandwidth."""
    rng = random.Random(seed)
    state = LinkState(rate=rng.choice([0.0, 10.0, 1e9]))
    sizes: dict[int, float] = {}
    closed = capacity = now = 0.0
    for number in range(60):
        step = rng.random() * rng.choice([1e-9, 0.1, 10.0])
        capacity += state.rate * step
        now += step
        state.advance(now)
        action = rng.random()
        if action < 0.4:
            sizes[number] = rng.choice([0.0, 1.0, 1e3, 5e9])
            state.flows[number] = Flow(sizes[number])
        elif action < 0.6 and state.flows:
            gone = rng.choice(list(state.flows))
            closed += state.flows.pop(gone).sent
        elif action < 0.7:
            state.rate = rng.choice([0.0, 10.0, 1e9])
        for flow_id, flow in state.flows.items():
            assert flow.sent + flow.left == pytest.approx(sizes[flow_id], abs=0.01)
            assert flow.left >= 0
        total = closed + sum(flow.sent for flow in state.flows.values())
        assert total == pytest.approx(state.sent_bytes, rel=1e-9, abs=0.01)
        assert state.sent_bytes <= capacity * (1 + 1e-9) + 0.01
    assert state.now == pytest.approx(now)


# Bytes enough that the thousandth of a byte which a link forgives is nothing beside them.
@given(
    first=st.floats(2e3, 1e9),
    second=st.floats(2e3, 1e9),
    rate=st.floats(1, 1e9),
    late=st.floats(0, 1),
)
def test_two_flows_end_when_processor_sharing_says(
    first: float, second: float, rate: float, late: float
) -> None:
    """The closed form: alone until the second comes, half each, then alone again."""
    alone = late * first / rate
    state = LinkState(rate=rate, flows={1: Flow(first)})
    state.advance(alone)
    state.flows[2] = Flow(second)
    rest = first - rate * alone
    shorter = alone + 2 * min(rest, second) / rate
    if rest > 1:
        assert state.next_completion() == pytest.approx(shorter, rel=1e-6, abs=1e-6)
    everything = (first + second) / rate
    state.advance(everything + 1.0)
    assert state.next_completion() is None
    assert state.busy_seconds == pytest.approx(everything, rel=1e-6, abs=1e-6)


def test_a_trimmed_flow_ends_early_and_keeps_what_it_sent() -> None:
    """A puller that holds a prefix itself needs fewer bytes; those sent beyond stay counted."""
    state = LinkState(rate=10.0, flows={1: Flow(100.0)})
    state.advance(5.0)
    state.trim(1, 80.0)
    assert state.flows[1].left == pytest.approx(30.0)
    state.trim(1, 20.0)
    assert state.flows[1].left == 0
    assert state.flows[1].sent == pytest.approx(50.0)
    assert state.sent_bytes == pytest.approx(50.0)
