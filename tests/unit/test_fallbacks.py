"""The table of fallbacks: what follows each setback, once and again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from router.domain.decision import Decision, Placement, PrefixTransfer, Reason, Route
from router.domain.errors import (
    NobodyAlive,
    Overloaded,
    UpstreamBroken,
    UpstreamError,
    UpstreamUnreachable,
)
from router.domain.topology import Role
from router.domain.units import Bytes
from router.service.fallbacks import (
    ExpiredHandoff,
    FailedLeg,
    GiveUp,
    GoOn,
    NoHandoff,
    Progress,
    ReplanDecode,
    ReplanPrefill,
    Setback,
    after_setback,
    decode_only,
)
from router.service.relay_ports import Fallback, Leg
from tests.fakes.relay_parts import FleetPlanner, instance

PLANNER = FleetPlanner(
    [
        instance("pf-0", "http://a", Role.PREFILL, remote=True),
        instance("pd-p0", "http://b", Role.PREFILL),
        instance("pd-d0", "http://c", Role.DECODE),
    ]
)
LOCAL, REMOTE = PLANNER.decide(Route.LOCAL), PLANNER.decide(Route.PRFAAS)
MAYBE_RUN = UpstreamBroken("cut", instance="e", processed=True)
NOT_RUN = UpstreamUnreachable("refused", instance="e")


@pytest.mark.parametrize("error", [MAYBE_RUN, NOT_RUN])
def test_a_remote_prefill_is_replaced_by_a_local_one_or_none(error: UpstreamError) -> None:
    """However it failed: once, without the failed instance; without a local one decode computes."""
    step = after_setback(Progress(REMOTE), FailedLeg(Leg.PREFILL, error), attempts=3)
    assert isinstance(step, ReplanPrefill)
    assert step.reason is Reason.REMOTE_PREFILL_FAILED
    assert step.fallback is Fallback.REMOTE_PREFILL_FAILED
    assert step.exhausted is None
    assert step.progress.excluded == {"e"}
    again = after_setback(step.progress, FailedLeg(Leg.PREFILL, error), attempts=3)
    assert again == GiveUp(error)


@pytest.mark.parametrize("error", [MAYBE_RUN, NOT_RUN])
def test_a_local_prefill_is_replaced_by_another(error: UpstreamError) -> None:
    """What may break engines is kept from the decode instance when no other prefill is left."""
    step = after_setback(Progress(LOCAL), FailedLeg(Leg.PREFILL, error), attempts=3)
    assert isinstance(step, ReplanPrefill)
    assert step.reason is LOCAL.reason
    assert step.exhausted is (error if error.processed else None)


@pytest.mark.parametrize("decision", [LOCAL, REMOTE])
def test_without_a_hand_off_decode_computes(decision: Decision) -> None:
    """Nothing is shipped, nothing remote is claimed."""
    step = after_setback(Progress(decision), NoHandoff(), attempts=3)
    assert isinstance(step, GoOn)
    now = step.progress.decision
    assert now.prefill is None
    assert now.route is Route.LOCAL
    assert now.kv_bytes is None
    assert now.single_call


def test_where_decode_computes_its_own_cache_counts() -> None:
    """What is left to compute is the prompt less what that instance has, never nothing."""
    for held, computed in ((None, 30_500), (0, 30_500), (30_000, 500), (30_500, 1)):
        asked = replace(
            REMOTE,
            prefill=Placement("west", "w0", 500),
            decode=Placement("east", "d0", held),
            compute_uncached_tokens=30_000,
        )
        assert decode_only(asked).compute_uncached_tokens == computed
    sent = PrefixTransfer("east", "west", 20_000, "east-west", Bytes(1))
    shipped = replace(asked, prefix_transfer=sent, compute_uncached_tokens=10_500)
    assert decode_only(shipped).compute_uncached_tokens == 1


def test_an_old_hand_off_is_renewed_once() -> None:
    """The second time the decode instance computes: no request prefills for ever."""
    first = after_setback(Progress(REMOTE), ExpiredHandoff(), attempts=3)
    assert isinstance(first, GoOn)
    assert first.progress.decision == REMOTE
    second = after_setback(first.progress, ExpiredHandoff(), attempts=3)
    assert isinstance(second, GoOn)
    assert second.progress.decision == decode_only(REMOTE)


def test_a_decode_leg_is_repeated_only_if_it_cannot_have_run() -> None:
    """And then only so many times; being full and being gone are told apart."""
    gone = FailedLeg(Leg.DECODE, NOT_RUN)
    full = FailedLeg(Leg.DECODE, NOT_RUN, overloaded=True)
    assert after_setback(Progress(LOCAL), FailedLeg(Leg.DECODE, MAYBE_RUN), attempts=3) == GiveUp(
        MAYBE_RUN
    )
    first = after_setback(Progress(LOCAL), gone, attempts=3)
    assert isinstance(first, ReplanDecode)
    assert isinstance(first.exhausted, NobodyAlive)
    second = after_setback(first.progress, full, attempts=3)
    assert isinstance(second, ReplanDecode)
    assert isinstance(second.exhausted, Overloaded)
    assert after_setback(second.progress, gone, attempts=3) == GiveUp(NOT_RUN)


SETBACKS: st.SearchStrategy[Setback] = st.one_of(
    st.builds(NoHandoff),
    st.builds(ExpiredHandoff),
    st.builds(
        FailedLeg,
        st.sampled_from(Leg),
        st.sampled_from([MAYBE_RUN, NOT_RUN]),
        st.booleans(),
    ),
)


@given(st.lists(SETBACKS, min_size=12, max_size=12), st.sampled_from([LOCAL, REMOTE]))
def test_second_chances_are_bounded(setbacks: list[Setback], decision: Decision) -> None:
    """Whatever fails in whatever order, each kind of second chance is given a bounded number."""
    progress = Progress(decision)
    replaced = renewed = decodes = 0
    for setback in setbacks:
        step = after_setback(progress, setback, attempts=3)
        match step:
            case GiveUp():
                break
            case GoOn():
                renewed += step.progress.decision.prefill is not None
            case ReplanPrefill():
                replaced += 1
            case ReplanDecode():
                decodes += 1
        progress = step.progress
    assert replaced <= 1
    assert renewed <= 1
    assert decodes <= 2
