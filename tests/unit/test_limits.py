"""Limits of tenants: what is refused, until when, and that it has used nothing up."""

from __future__ import annotations

import pytest

from router.control.limits import (
    Account,
    LimitKind,
    Refused,
    TenantLimits,
    charge,
    enter,
    leave,
    standings,
)
from router.gateway.rate_headers import format_duration, rate_headers


def charged(account: Account, limits: TenantLimits, tokens: int, now: float) -> Account:
    """Charge what must not be refused."""
    outcome = charge(account, limits, tokens, now)
    assert isinstance(outcome, Account)
    return outcome


def test_requests_are_refused_over_the_limit_and_pass_when_told() -> None:
    """Of three a minute the fourth is refused for exactly 20 s, and passes exactly then."""
    limits, account = TenantLimits(requests=3), Account()
    for _ in range(3):
        account = charged(account, limits, 10, 100.0)
    refused = charge(account, limits, 10, 100.0)
    assert refused == Refused(LimitKind.REQUESTS, 3, 20.0)
    assert isinstance(charge(account, limits, 10, 119.999), Refused)
    assert isinstance(charge(account, limits, 10, 120.0), Account)


def test_tokens_are_refused_by_what_is_missing() -> None:
    """A prompt waits for just the tokens that it lacks."""
    limits = TenantLimits(tokens=600)
    account = charged(Account(), limits, 500, 0.0)
    assert charge(account, limits, 150, 0.0) == Refused(LimitKind.TOKENS, 600, 5.0)
    assert isinstance(charge(account, limits, 150, 5.0), Account)
    assert isinstance(charge(account, limits, 100, 0.0), Account)


def test_a_prompt_over_the_whole_limit_never_passes() -> None:
    """A full bucket does not hold it, and the refusal says that no wait will help."""
    limits = TenantLimits(tokens=600)
    assert charge(Account(), limits, 601, 0.0) == Refused(LimitKind.TOKENS, 600, None)


def test_what_is_refused_for_its_tokens_is_no_request() -> None:
    """Both rates are charged, or neither."""
    limits = TenantLimits(requests=2, tokens=100)
    account = charged(Account(), limits, 90, 0.0)
    assert isinstance(charge(account, limits, 90, 0.0), Refused)
    account = charged(account, limits, 10, 0.0)
    assert [standing.remaining for standing in standings(account, limits, 0.0)] == [0, 0]


def test_concurrency_is_refused_and_comes_back() -> None:
    """Two at once, a third when one of them has left."""
    limits, account = TenantLimits(concurrency=2), Account()
    for _ in range(2):
        entered = enter(account, limits, 0.0)
        assert isinstance(entered, Account)
        account = entered
    assert enter(account, limits, 0.0) == Refused(LimitKind.CONCURRENCY, 2, 1.0)
    assert isinstance(enter(leave(account), limits, 0.0), Account)


def test_entering_looks_at_the_rates_without_charging() -> None:
    """A used-up rate refuses at the door; entering itself takes nothing from it."""
    limits, account = TenantLimits(requests=1), Account()
    for _ in range(5):
        entered = enter(account, limits, 0.0)
        assert isinstance(entered, Account)
        account = entered
    account = charged(account, limits, 1, 0.0)
    assert enter(account, limits, 30.0) == Refused(LimitKind.REQUESTS, 1, 30.0)


def test_standings_tell_of_limited_rates_alone() -> None:
    """Remaining counts whole units, reset the time until the bucket is full."""
    limits = TenantLimits(concurrency=9, tokens=600)
    account = charged(Account(), limits, 15, 0.0)
    (standing,) = standings(account, limits, 0.25)
    assert (standing.kind, standing.limit, standing.remaining) == (LimitKind.TOKENS, 600, 587)
    assert standing.reset == pytest.approx(1.25)
    assert rate_headers([standing]) == [
        (b"x-ratelimit-limit-tokens", b"600"),
        (b"x-ratelimit-remaining-tokens", b"587"),
        (b"x-ratelimit-reset-tokens", b"1.25s"),
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (0.9999, "1s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (60.0, "1m0s"),
        (360.0, "6m0s"),
        (75.5, "1m15.5s"),
    ],
)
def test_durations_are_written_as_go_writes_them(seconds: float, text: str) -> None:
    """Milliseconds under a second, minutes over one, never rounded down."""
    assert format_duration(seconds) == text
