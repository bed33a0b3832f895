"""The rule `expected`, one claim a test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from router.domain.decision import Decision, Reason, Route, Rule, Snapshot
from router.domain.topology import Role
from router.domain.units import Bytes, BytesPerSecond
from router.policy.route import decide
from tests.fakes.snapshots import WEST, a_link, a_pair, a_snapshot, an_instance


def a_choice(
    total: int, *, here: tuple[float, float], there: tuple[float, float], **link: object
) -> Snapshot:
    """A prompt with these (queue, prefill) seconds at home and in the PrfaaS cluster."""
    snapshot = a_snapshot(
        total,
        home=(
            an_instance("pd-p0", Role.PREFILL, ahead=here[0], prefill=here[1]),
            an_instance("pd-d0", Role.DECODE),
        ),
        west=(an_instance("pf-0", Role.PREFILL, cluster=WEST, ahead=there[0], prefill=there[1]),),
        pair=a_pair(link=a_link(**link)),
    )
    return replace(snapshot, rule=Rule.EXPECTED)


def decided(snapshot: Snapshot) -> tuple[Route, Reason]:
    """Where a prompt goes, and why."""
    decision = decide(snapshot)
    assert isinstance(decision, Decision)
    return decision.route, decision.reason


@pytest.mark.parametrize(
    ("total", "here", "there", "told"),
    [
        (8_000, (0, 1.5), (0, 0.7), (Route.PRFAAS, Reason.SOONER_REMOTE)),
        (8_000, (0, 1.5), (0.1, 0.7), (Route.LOCAL, Reason.BELOW_THRESHOLD)),
        (30_000, (0, 5.0), (3.0, 1.8), (Route.PRFAAS, Reason.ABOVE_THRESHOLD)),
        (30_000, (0, 5.0), (4.2, 1.8), (Route.LOCAL, Reason.SOONER_LOCAL)),
    ],
)
def test_a_side_is_left_only_for_half_a_prefill(
    total: int,
    here: tuple[float, float],
    there: tuple[float, float],
    told: tuple[Route, Reason],
) -> None:
    """Queues move a prompt off its side of t where the gain is over half its prefill there."""
    assert decided(a_choice(total, here=here, there=there)) == told


def test_a_backlog_on_the_link_counts_as_waiting() -> None:
    """Bytes booked before a prompt's own keep it at home when they take longer than its queue."""
    quick = {"here": (0, 5.0), "there": (0, 1.8)}
    assert decided(a_choice(30_000, **quick))[0] is Route.PRFAAS
    slow = {"rate": BytesPerSecond(1e9), "booked": Bytes(9 * 10**9)}
    assert decided(a_choice(30_000, **quick, **slow)) == (Route.LOCAL, Reason.SOONER_LOCAL)


def test_gates_still_hold() -> None:
    """What would be sooner over a dead link stays local, for the link's reason."""
    choice = a_choice(8_000, here=(9, 1.5), there=(0, 0.7), up=False)
    assert decided(choice) == (Route.LOCAL, Reason.LINK_DOWN)


@given(total=st.integers(1, 200_000), here=st.floats(0, 1e3), there=st.floats(0, 1e3))
def test_without_queues_equal_pools_follow_the_paper(total: int, here: float, there: float) -> None:
    """Where neither side gains more than half a prefill the answer is the paper's."""
    here, there = min(here, 1.4 * there), min(there, 1.4 * here)
    choice = a_choice(total, here=(0, here), there=(0, there))
    paper = replace(choice, rule=Rule.PAPER)
    assert decided(choice) == decided(paper)
