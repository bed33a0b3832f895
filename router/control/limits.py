"""What a tenant may take: requests at once, requests and prompt tokens a minute. Pure steps.

Rates are token buckets that hold one minute's worth and refill evenly, as OpenAI's own limits do:

- A window that is reset on the minute lets twice its limit pass round the reset, and makes all
  clients wait for the same instant. A log of the last minute's requests is exact, but its state
  grows with the limit.
- A bucket is two integers a tenant, so that one short script can keep it in a shared store, and
  tells exactly how long to wait. In any T seconds it lets at most limit * (1 + T / 60) pass: a
  tenant that paused may use its minute at once, and goes on at its rate.

A bucket is kept as what is owed to it, in units times microseconds: one unit owes a whole period,
and each microsecond pays `limit`. All sums are integers, so replenishment is exact, and stays so
in a store that counts in doubles for limits of up to 10^8 a minute (2^53 / 6*10^7).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from router.domain.units import Seconds, Tokens

PERIOD_SECONDS: Final = 60
_MICROSECONDS: Final = 1_000_000
_PERIOD: Final = PERIOD_SECONDS * _MICROSECONDS


class LimitKind(StrEnum):
    """What is limited."""

    CONCURRENCY = "concurrency"
    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """A tenant's limits; None is unlimited. Rates are a minute's."""

    concurrency: int | None = None
    requests: int | None = None
    tokens: int | None = None

    @property
    def unlimited(self) -> bool:
        """Whether nothing is limited, so that nothing need be counted."""
        return self.concurrency is None and self.requests is None and self.tokens is None


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is owed (units x microseconds) as of `at` (microseconds); a full bucket owes nothing."""

    owed: int = 0
    at: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """All that is counted of one tenant."""

    running: int = 0
    requests: Bucket = Bucket()
    tokens: Bucket = Bucket()


@dataclass(frozen=True, slots=True)
class Refused:
    """A limit that is reached.

    `retry_after` is when the same request could pass if nobody else asks; None for one that is
    larger than the limit itself and never can.
    """

    kind: LimitKind
    limit: int
    retry_after: Seconds | None


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a rate is used: `remaining` whole units, and `reset` until all of them are back."""

    kind: LimitKind
    limit: int
    remaining: int
    reset: Seconds


def owed_at(bucket: Bucket, limit: int, at: int) -> int:
    """Return what is owed `at` (microseconds), with what was replenished since."""
    return max(0, bucket.owed - limit * max(0, at - bucket.at))


def missing(kind: LimitKind, bucket: Bucket, limit: int, units: int, at: int) -> Refused | None:
    """Return why `units` are not in a bucket; None where they are."""
    excess = owed_at(bucket, limit, at) + (units - limit) * _PERIOD
    if excess <= 0:
        return None
    return Refused(kind, limit, None if units > limit else excess / limit / _MICROSECONDS)


def enter(account: Account, limits: TenantLimits, now: Seconds) -> Account | Refused:
    """Return the account with one more request running.

    Its rates are looked at but not charged: what is over them is refused before anybody counts
    its tokens, and what is refused later has used nothing up.
    """
    if limits.concurrency is not None and account.running >= limits.concurrency:
        return Refused(LimitKind.CONCURRENCY, limits.concurrency, 1.0)
    refused = _first_missing(account, limits, 1, to_microseconds(now))
    return refused or Account(account.running + 1, account.requests, account.tokens)


def leave(account: Account) -> Account:
    """Return the account with one request less running."""
    return replace(account, running=account.running - 1)


def charge(
    account: Account, limits: TenantLimits, tokens: Tokens, now: Seconds
) -> Account | Refused:
    """Return the account charged with one request of so many prompt tokens: both, or neither."""
    at = to_microseconds(now)
    refused = _first_missing(account, limits, tokens, at)
    return refused or Account(
        account.running,
        _take(account.requests, limits.requests, 1, at),
        _take(account.tokens, limits.tokens, tokens, at),
    )


def standings(account: Account, limits: TenantLimits, now: Seconds) -> tuple[Standing, ...]:
    """Return how far each limited rate is used."""
    at = to_microseconds(now)
    rates = (
        (LimitKind.REQUESTS, limits.requests, account.requests),
        (LimitKind.TOKENS, limits.tokens, account.tokens),
    )
    return tuple(
        _stand(kind, limit, owed_at(bucket, limit, at))
        for kind, limit, bucket in rates
        if limit is not None
    )


def _first_missing(
    account: Account, limits: TenantLimits, tokens: Tokens, at: int
) -> Refused | None:
    refused = None
    if limits.requests is not None:
        refused = missing(LimitKind.REQUESTS, account.requests, limits.requests, 1, at)
    if refused is None and limits.tokens is not None:
        refused = missing(LimitKind.TOKENS, account.tokens, limits.tokens, tokens, at)
    return refused


def _take(bucket: Bucket, limit: int | None, units: int, at: int) -> Bucket:
    """Return the bucket without units that are in it; an unlimited one as it is."""
    if limit is None:
        return bucket
    return Bucket(owed_at(bucket, limit, at) + units * _PERIOD, max(at, bucket.at))


def _stand(kind: LimitKind, limit: int, owed: int) -> Standing:
    remaining = (limit * _PERIOD - owed) // _PERIOD
    return Standing(kind, limit, remaining, owed / limit / _MICROSECONDS)


def to_microseconds(now: Seconds) -> int:
    """Return a time as buckets count it."""
    return round(now * _MICROSECONDS)
