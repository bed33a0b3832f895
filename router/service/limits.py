"""Tenants' limits as a use case: one account a tenant, refusals in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from router.control.limits import (
    Account,
    Bucket,
    LimitKind,
    Refused,
    Standing,
    TenantLimits,
    charge,
    enter,
    leave,
    standings,
)
from router.domain.errors import RateLimited
from router.domain.units import Seconds, Tokens
from router.ports import Clock

_UNITS: Final = {
    LimitKind.CONCURRENCY: "requests at once",
    LimitKind.REQUESTS: "requests a minute",
    LimitKind.TOKENS: "prompt tokens a minute",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a ledger says: why not, or None; and how far the tenant's rates are used then.

    `hold` names what a shared ledger holds for the request, to be given back as it leaves.
    """

    refused: Refused | None
    standings: tuple[Standing, ...]
    hold: str | None = None


class LimitLedger(Protocol):
    """Keeps what tenants have used. Held to `tests/contract/limit_suite.py`.

    A shared implementation makes one round trip a request, in `charge`; is exact there, whoever
    else charges; goes on alone while its store is away; and lets the requests that a process had
    running go with that process.
    """

    def enter(self, tenant: str, limits: TenantLimits) -> Verdict:
        """Count one more request running, unless a limit is reached already.

        By what this process knows, so that a refusal costs nothing; `charge` has the last word.
        """
        ...

    async def charge(self, tenant: str, limits: TenantLimits, tokens: Tokens) -> Verdict:
        """Charge one request that entered and its prompt tokens, or nothing of it."""
        ...

    def leave(self, tenant: str, hold: str | None = None) -> None:
        """Count one request less running: once for each `enter` that was not refused.

        `hold` is what `charge` named. Does not wait: it is called while a request is being
        cancelled.
        """
        ...


class MemoryLimits:
    """A `LimitLedger` for one process. State: a few numbers for each limited tenant."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    def account(self, tenant: str) -> Account:
        """Return what is counted of a tenant."""
        return self._accounts.get(tenant) or Account()

    def learn(self, tenant: str, requests: Bucket, tokens: Bucket) -> None:
        """Take over what is owed to a tenant's buckets from who knows better."""
        account = self.account(tenant)
        self._accounts[tenant] = Account(account.running, requests, tokens)

    def enter(self, tenant: str, limits: TenantLimits) -> Verdict:
        """Count one more request running, unless a limit is reached already."""
        now = self._clock.monotonic()
        return self._keep(tenant, limits, enter(self.account(tenant), limits, now), now)

    async def charge(self, tenant: str, limits: TenantLimits, tokens: Tokens) -> Verdict:
        """Charge one request and its prompt tokens, or nothing of it."""
        now = self._clock.monotonic()
        return self._keep(tenant, limits, charge(self.account(tenant), limits, tokens, now), now)

    def leave(self, tenant: str, hold: str | None = None) -> None:  # noqa: ARG002 - part of the port: memory holds by counting
        """Count one request less running."""
        self._accounts[tenant] = leave(self._accounts[tenant])

    def _keep(
        self, tenant: str, limits: TenantLimits, outcome: Account | Refused, now: Seconds
    ) -> Verdict:
        if isinstance(outcome, Refused):
            return Verdict(outcome, standings(self.account(tenant), limits, now))
        self._accounts[tenant] = outcome
        return Verdict(None, standings(outcome, limits, now))


def refuse(refused: Refused) -> RateLimited:
    """Return the error that tells a client which limit it reached."""
    limit = f"{refused.limit} {_UNITS[refused.kind]}"
    if refused.retry_after is None:
        message = f"the prompt alone is over this key's limit of {limit}: it must be shorter"
        return RateLimited(message, retry_after=None)
    return RateLimited(f"this key's limit of {limit} is reached", retry_after=refused.retry_after)
