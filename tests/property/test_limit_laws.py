"""Laws of the limits, over any course of requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.control.limits import (
    Account,
    LimitKind,
    Refused,
    TenantLimits,
    charge,
    standings,
)

limits = st.builds(
    TenantLimits,
    requests=st.none() | st.integers(1, 1000),
    tokens=st.none() | st.integers(1, 100_000),
)
courses = st.lists(
    st.tuples(st.integers(0, 90_000_000), st.integers(1, 120_000)), min_size=1, max_size=40
)
"""Microseconds since the request before, and its tokens."""


@given(limits, courses)
def test_no_window_lets_more_pass_than_its_bucket_and_rate(
    rules: TenantLimits, course: list[tuple[int, int]]
) -> None:
    """In any T seconds at most limit * (1 + T / 60) passes, in whole numbers."""
    account, now, passed = Account(), 0, []
    for pause, tokens in course:
        now += pause
        outcome = charge(account, rules, tokens, now / 1e6)
        if isinstance(outcome, Account):
            account = outcome
            passed.append((now, tokens))
    for place, (began, _) in enumerate(passed):
        requests = total = 0
        for at, tokens in passed[place:]:
            requests, total = requests + 1, total + tokens
            period = 60_000_000
            for used, limit in ((requests, rules.requests), (total, rules.tokens)):
                assert limit is None or used * period <= limit * (period + at - began)


@given(limits, courses)
def test_a_refusal_is_true_and_free(rules: TenantLimits, course: list[tuple[int, int]]) -> None:
    """A refused request passes after the told wait, not a millisecond before, and cost nothing."""
    account, now = Account(), 0.0
    for pause, tokens in course:
        now += pause / 1e6
        outcome = charge(account, rules, tokens, now)
        if isinstance(outcome, Account):
            account = outcome
            continue
        if outcome.retry_after is None:
            assert outcome.kind is LimitKind.TOKENS
            assert tokens > outcome.limit
            continue
        later = charge(account, rules, tokens, now + outcome.retry_after + 2e-6)
        # The other rate may be short for longer; the told one is not.
        assert not isinstance(later, Refused) or later.kind is not outcome.kind
        if outcome.retry_after > 1e-3:
            before = charge(account, rules, tokens, now + outcome.retry_after - 1e-3)
            assert isinstance(before, Refused)


@given(limits, courses)
def test_standings_agree_with_what_passes(
    rules: TenantLimits, course: list[tuple[int, int]]
) -> None:
    """What is told to remain can be taken at once, one more cannot; reset makes it whole."""
    account, now = Account(), 0.0
    for pause, tokens in course:
        now += pause / 1e6
        outcome = charge(account, rules, tokens, now)
        account = outcome if isinstance(outcome, Account) else account
        for standing in standings(account, rules, now):
            assert 0 <= standing.remaining <= standing.limit
            if standing.kind is LimitKind.TOKENS:
                alone = TenantLimits(tokens=rules.tokens)
                assert isinstance(charge(account, alone, standing.remaining + 1, now), Refused)
                if standing.remaining:
                    assert isinstance(charge(account, alone, standing.remaining, now), Account)
        for standing in standings(account, rules, now):
            (whole,) = (
                each
                for each in standings(account, rules, now + standing.reset + 2e-6)
                if each.kind is standing.kind
            )
            assert whole.remaining == whole.limit
