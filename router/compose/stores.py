"""Settings -> where state is kept: the index, and the leases of processes that share it."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kvmeta.backends.breakers import BreakerRules
from kvmeta.backends.memory import MemoryIndex
from kvmeta.backends.redis import RedisIndex, deployment_secret, open_redis_index
from kvmeta.backends.redis_leases import RedisLeases
from kvmeta.backends.redis_store import open_client
from kvmeta.backends.redis_urls import parse_store_url
from kvmeta.errors import StoreError, StoreUrlError
from kvmeta.index import MetadataIndex
from router.adapters.clocks import SystemClock
from router.adapters.memory_state import MemoryState
from router.adapters.store.connection import SharedStore
from router.adapters.store.holds import Holds
from router.adapters.store.keys import LEASE_PREFIX, StoreKeys
from router.adapters.store.leases import RedisLeaderLease
from router.adapters.store.limits import RedisLimits
from router.adapters.store.origins import RedisOrigins
from router.adapters.store.state import RedisState
from router.compose.models import CompositionError
from router.control.tenures import LeaseRules
from router.ports import StateStore
from router.service.leadership import Leadership
from router.service.limits import LimitLedger, MemoryLimits
from router.settings import Settings

_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Common:
    """What all processes of a deployment share besides the index, by one connection.

    `owner` is this process's name there: new with every start, so that nobody takes what a dead
    process held for its own.
    """

    store: SharedStore
    keys: StoreKeys
    owner: str
    holds: Holds
    origins: RedisOrigins
    lease: RedisLeaderLease


@dataclass(frozen=True, slots=True)
class Store:
    """Where a process keeps what it must not forget, or must share.

    `shared`, `leases` and `common` are there where processes share the store; `shared` is `index`
    then.
    """

    kind: str
    index: MetadataIndex
    shared: RedisIndex | None = None
    leases: RedisLeases | None = None
    common: Common | None = None

    @property
    def origins(self) -> RedisOrigins | None:
        """Where stored responses are, if processes share that."""
        return None if self.common is None else self.common.origins

    @property
    def is_up(self) -> bool:
        """Whether it answers all that asks it: look-ups, limits, leases, orders, other processes.

        In memory it always does.
        """
        away = self.shared is not None and self.shared.is_away
        return not away and (self.common is None or not self.common.store.is_away)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the store in order for the time of the block, then let go of it."""
        if self.shared is None or self.common is None:
            yield
            return
        runs = (self.shared.run(), self.common.holds.run(), self.common.origins.run())
        upkeep = [asyncio.create_task(run) for run in runs]
        try:
            yield
        finally:
            for task in upkeep:
                task.cancel()
            await asyncio.gather(*upkeep, return_exceptions=True)
            await self.common.holds.close()
            await self.shared.close()
            await self.common.store.close()


def open_store(settings: Settings, clock: SystemClock) -> Store:
    """Return the configured store; a shared one connects on first use. Raises CompositionError."""
    kvmeta = settings.kvmeta
    if settings.store.embedded:
        index = MemoryIndex(
            clock=clock.monotonic,
            max_blocks_per_source=kvmeta.max_blocks_per_source,
            max_blocks_total=kvmeta.max_blocks_total,
        )
        return Store("memory", index)
    url = settings.store.url.get_secret_value()
    breaker = BreakerRules(kvmeta.breaker.failures, kvmeta.breaker.cooldown_seconds)
    try:
        shared = open_redis_index(
            url,
            budget_seconds=kvmeta.lookup_timeout_ms / 1000,
            breaker=breaker,
            max_blocks_per_source=kvmeta.max_blocks_per_source,
            max_blocks_total=kvmeta.max_blocks_total,
        )
        client = open_client(parse_store_url(url))
    except StoreUrlError as error:
        raise CompositionError(f"store.url: {error}") from error
    common = _share(
        SharedStore(client, clock=clock, budget=settings.store.timeout_ms / 1000, breaker=breaker),
        clock,
        lease_rules(settings),
    )
    return Store("redis", shared, shared, RedisLeases(client, prefix=LEASE_PREFIX), common)


def lease_rules(settings: Settings) -> LeaseRules:
    """Return how the leader's lease is kept."""
    return LeaseRules(settings.scheduler.leader_lease_seconds)


def process_name() -> str:
    """Return what people know this process by."""
    return f"{socket.gethostname()}/{os.getpid()}"


def _share(store: SharedStore, clock: SystemClock, rules: LeaseRules) -> Common:
    owner = uuid.uuid4().hex[:12]
    keys = StoreKeys()
    holds = Holds(store, owner=owner, clock=clock)
    lease = RedisLeaderLease(store, keys, owner=owner, name=process_name(), life=rules.life)
    return Common(store, keys, owner, holds, RedisOrigins(store, keys), lease)


def build_limits(store: Store, clock: SystemClock) -> LimitLedger:
    """Return where tenants' limits are counted: in the store, where processes share one."""
    common = store.common
    if common is None:
        return MemoryLimits(clock)
    return RedisLimits(common.store, common.holds, common.keys, clock)


def build_state(store: Store) -> StateStore:
    """Return where orders, and what a leader found, are kept."""
    common = store.common
    return MemoryState() if common is None else RedisState(common.store, common.keys)


def build_leadership(settings: Settings, store: Store, clock: SystemClock) -> Leadership:
    """Return this process's part in who controls."""
    lease = None if store.common is None else store.common.lease
    return Leadership(lease, name=process_name(), clock=clock, rules=lease_rules(settings))


def open_shared_store(settings: Settings, clock: SystemClock) -> Store:
    """Return the store that an ingest process of its own writes to. Raises CompositionError."""
    if settings.store.embedded:
        raise CompositionError(
            "kvmeta needs a store that processes share: set store.url to Redis (redis://…);"
            " with memory:// the gateway ingests by itself"
        )
    return open_store(settings, clock)


async def read_secret(settings: Settings) -> bytes:
    """Return the secret that tenants' salts are derived from.

    Of the deployment where its processes share a store, else of this process alone. Raises
    CompositionError where the store cannot be asked: with another secret every tenant's prefixes
    would be cold, and replicas would disagree.
    """
    fresh = secrets.token_bytes(_SECRET_BYTES)
    needed = any(tenant.cache_salt is None for tenant in settings.tenants)
    if settings.store.embedded or not needed:
        return fresh
    try:
        return await deployment_secret(settings.store.url.get_secret_value(), fresh=fresh)
    except (StoreError, StoreUrlError) as error:
        raise CompositionError(f"store.url: {error}") from error
