"""Tenants' limits, exact over all processes that share a store.

One script charges a request: its place among those that run, its request and its tokens, or nothing
of it. The answer tells what is owed to the buckets by now, which this process takes over into a
ledger of its own. That ledger refuses at the door what it knows to be over a limit, without a round
trip: others can only have used more. And it goes on alone while the store is away.
"""

from __future__ import annotations

from typing import Final

from router.adapters.store.connection import SharedStore, load_script
from router.adapters.store.holds import Holds
from router.adapters.store.keys import StoreKeys
from router.control.limits import (
    Account,
    Bucket,
    LimitKind,
    Refused,
    TenantLimits,
    missing,
    standings,
    to_microseconds,
)
from router.domain.errors import StoreAway
from router.domain.units import Seconds, Tokens
from router.ports import Clock
from router.service.limits import MemoryLimits, Verdict

_CHARGE = load_script("charge")
_UNLIMITED: Final = -1
_RUNNING_RETRY: Final[Seconds] = 1.0
_AT_ONCE, _REQUESTS, _TOKENS = 1, 2, 3
"""What `charge.lua` says of a refusal."""


class RedisLimits:
    """A `LimitLedger` that processes share; of those without limits it hears nothing.

    Without an answer the process's own ledger decides: each process then lets at most the whole
    limit pass, beginning with what it last knew. What it charged meanwhile is not added later.
    """

    def __init__(self, store: SharedStore, holds: Holds, keys: StoreKeys, clock: Clock) -> None:
        self._store = store
        self._holds = holds
        self._keys = keys
        self._clock = clock
        self._own = MemoryLimits(clock)

    def enter(self, tenant: str, limits: TenantLimits) -> Verdict:
        """Count one more request running here, unless this process knows better."""
        return self._own.enter(tenant, limits)

    async def charge(self, tenant: str, limits: TenantLimits, tokens: Tokens) -> Verdict:
        """Charge a request everywhere; one script."""
        key = self._keys.running(tenant)
        hold = None if limits.concurrency is None else self._holds.name()
        asked_at = self._clock.monotonic()
        try:
            verdict = await self._ask(tenant, limits, tokens, hold or "", asked_at)
        except StoreAway:
            verdict = await self._own.charge(tenant, limits, tokens)
            if hold is not None and verdict.refused is not None:
                self._holds.give_back(key, hold)
        except BaseException:  # the client left while the store may be holding it a place
            if hold is not None:
                self._holds.give_back(key, hold)
            raise
        if hold is None or verdict.refused is not None:
            return verdict
        self._holds.keep(key, hold)
        return Verdict(None, verdict.standings, hold)

    def leave(self, tenant: str, hold: str | None = None) -> None:
        """Count one request less running, here and in the store."""
        self._own.leave(tenant)
        if hold is not None:
            self._holds.give_back(self._keys.running(tenant), hold)

    async def _ask(
        self, tenant: str, limits: TenantLimits, tokens: Tokens, hold: str, asked_at: Seconds
    ) -> Verdict:
        rates = (limits.concurrency, limits.requests, limits.tokens)
        reply = await self._store.run(
            _CHARGE,
            [self._keys.buckets(tenant), self._keys.running(tenant)],
            [
                *(_UNLIMITED if rate is None else rate for rate in rates),
                tokens,
                hold,
                self._holds.lease_ms,
            ],
        )
        refused, running, by_request, by_token = (int(number) for number in reply)
        # As of the call, not of the answer: what is taken for owed here was owed there by then.
        at = to_microseconds(asked_at)
        account = Account(running, Bucket(by_request, at), Bucket(by_token, at))
        self._own.learn(tenant, account.requests, account.tokens)
        return Verdict(
            _explain(refused, account, limits, tokens, at), standings(account, limits, asked_at)
        )


def _explain(
    refused: int, account: Account, limits: TenantLimits, tokens: Tokens, at: int
) -> Refused | None:
    """Return a script's refusal with the time to wait, from the same numbers that it saw."""
    if refused == _AT_ONCE and limits.concurrency is not None:
        return Refused(LimitKind.CONCURRENCY, limits.concurrency, _RUNNING_RETRY)
    if refused == _REQUESTS and limits.requests is not None:
        return missing(LimitKind.REQUESTS, account.requests, limits.requests, 1, at)
    if refused == _TOKENS and limits.tokens is not None:
        return missing(LimitKind.TOKENS, account.tokens, limits.tokens, tokens, at)
    return None
