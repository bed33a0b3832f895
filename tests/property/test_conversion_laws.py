"""Laws of the conversion's state machine, over whatever is seen in whatever order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.control.conversions import (
    ConversionRules,
    Done,
    Failed,
    Pending,
    Phase,
    Progress,
    Reply,
    Seen,
    begin_conversion,
    step_conversion,
)
from router.domain.conversions import Conversion
from router.domain.topology import Role

RULES = ConversionRules(drain=60, act=20, verify=30, lease=10, spread=2)
START = 1_767_225_600.0
TO_DECODE = Conversion("m", "pd", "p0", Role.PREFILL, Role.DECODE)
TO_PREFILL = Conversion("m", "pd", "d0", Role.DECODE, Role.PREFILL)

NEXT = {
    Phase.DRAINING: {Phase.ACTING, Phase.ROLLED_BACK},
    Phase.ACTING: {Phase.VERIFYING, Phase.UNDOING},
    Phase.VERIFYING: {Phase.SETTLED, Phase.UNDOING},
    Phase.UNDOING: {Phase.ROLLED_BACK, Phase.STUCK},
    Phase.SETTLED: set(),
    Phase.ROLLED_BACK: set(),
    Phase.STUCK: set(),
}

replies = st.one_of(
    st.just(Done()), st.just(Pending()), st.builds(Failed, st.sampled_from(["refused", "lost"]))
)
sights = st.tuples(
    st.floats(0, 40),
    st.floats(0, 20),
    replies,
    st.one_of(st.none(), st.none(), st.none(), st.just("an operator changed it")),
)
conversions = st.sampled_from([TO_DECODE, TO_PREFILL])


Sight = tuple[float, float, Reply, str | None]
"""Seconds since the sight before, seconds of quiet, the actuator's reply, what interrupts."""


def play(
    conversion: Conversion, seen: Sequence[Sight]
) -> Iterator[tuple[Progress, Seen, Progress]]:
    """Yield each step of a conversion: how far it was, what is seen, how far it is."""
    progress, now = begin_conversion(conversion, START), 0.0
    for elapsed, quiet, reply, interruption in seen:
        now += elapsed
        saw = Seen(at(now), quiet, reply, interruption)
        after = step_conversion(progress, saw, RULES)
        yield progress, saw, after
        progress = after


def at(seconds: float) -> float:
    return START + seconds


def reach(phase: Phase) -> Progress:
    """A conversion that has come as far as this without trouble."""
    progress = begin_conversion(TO_DECODE, START)
    seen = Seen(START, quiet=100, reply=Done())
    while progress.phase is not phase:
        progress = step_conversion(progress, seen, RULES)
    return progress


@given(conversions, st.lists(sights, max_size=30))
def test_phases_follow_the_table_whatever_is_seen(
    conversion: Conversion, seen: list[Sight]
) -> None:
    """Only the table's moves happen, one at a time; what is over stays as it is, cause and all."""
    for progress, saw, after in play(conversion, seen):
        if after.phase is progress.phase:
            assert after == progress
        else:
            assert after.phase in NEXT[progress.phase]
            assert after.since == saw.now
        assert after.conversion == conversion
        assert (after.cause is None) is (
            after.phase in {Phase.DRAINING, Phase.ACTING, Phase.VERIFYING, Phase.SETTLED}
        )


@given(conversions, st.lists(sights, max_size=30))
def test_every_conversion_ends_in_bounded_time(conversion: Conversion, seen: list[Sight]) -> None:
    """However it went so far, the time-outs of its phases end it."""
    waited: list[Sight] = [(61, 0, Pending(), None)] * 4
    *_, (_, _, progress) = play(conversion, [*seen, *waited])
    assert progress.phase.is_over


@given(conversions, st.lists(sights, max_size=30))
def test_the_engine_is_touched_only_when_it_has_been_quiet_long_enough(
    conversion: Conversion, seen: list[Sight]
) -> None:
    """No way leads to the engine before orders have spread and KV leases are over."""
    for progress, saw, after in play(conversion, seen):
        if after.phase is Phase.ACTING and progress.phase is Phase.DRAINING:
            assert saw.quiet >= (12 if conversion.source is Role.PREFILL else 2)


def test_the_way_without_trouble() -> None:
    """Drained, done, confirmed: settled, without a cause."""
    progress = reach(Phase.SETTLED)
    assert progress.cause is None
    assert progress.phase.is_over


@pytest.mark.parametrize(
    ("phase", "seen", "then"),
    [
        (Phase.DRAINING, Seen(at(0), interruption="gone"), Phase.ROLLED_BACK),
        (Phase.DRAINING, Seen(at(61)), Phase.ROLLED_BACK),
        (Phase.ACTING, Seen(at(0), reply=Failed("refused")), Phase.UNDOING),
        (Phase.ACTING, Seen(at(0), interruption="aborted"), Phase.UNDOING),
        (Phase.ACTING, Seen(at(21)), Phase.UNDOING),
        (Phase.VERIFYING, Seen(at(0), reply=Failed("crashed")), Phase.UNDOING),
        (Phase.VERIFYING, Seen(at(0), reply=Done(), interruption="aborted"), Phase.UNDOING),
        (Phase.VERIFYING, Seen(at(31)), Phase.UNDOING),
    ],
)
def test_trouble_at_any_step_leads_back(phase: Phase, seen: Seen, then: Phase) -> None:
    """An operator's word, a refusal and a time-out are causes at every step, and are kept."""
    progress = step_conversion(reach(phase), seen, RULES)
    assert progress.phase is then
    assert progress.cause
    back = step_conversion(progress, Seen(at(100), reply=Done()), RULES)
    assert back.phase is Phase.ROLLED_BACK
    assert back.cause == progress.cause


def test_an_engine_that_cannot_be_put_back_is_told_of() -> None:
    """Undoing is tried again until its time is over; then an operator has to look."""
    progress = step_conversion(reach(Phase.ACTING), Seen(at(0), reply=Failed("refused")), RULES)
    again = step_conversion(progress, Seen(at(19), reply=Failed("busy")), RULES)
    assert again == progress
    stuck = step_conversion(progress, Seen(at(21), reply=Failed("busy")), RULES)
    assert stuck.phase is Phase.STUCK
    assert stuck.cause == "refused; undoing: busy"
