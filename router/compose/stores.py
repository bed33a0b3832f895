"""Settings -> where state is kept: the index, and the leases of processes that share it."""

from __future__ import annotations

import asyncio
import secrets
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
from router.adapters.metrics import PrometheusMetrics
from router.compose.models import CompositionError
from router.settings import Settings

_SECRET_BYTES = 32
_LEASES = "prfaas:lease:"


@dataclass(frozen=True, slots=True)
class Store:
    """Where a process keeps what it must not forget, or must share.

    `shared` and `leases` are there where processes share the store; `shared` is `index` then.
    """

    kind: str
    index: MetadataIndex
    shared: RedisIndex | None = None
    leases: RedisLeases | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the store in order for the time of the block, then let go of it."""
        if self.shared is None:
            yield
            return
        upkeep = asyncio.create_task(self.shared.run())
        try:
            yield
        finally:
            upkeep.cancel()
            await asyncio.gather(upkeep, return_exceptions=True)
            await self.shared.close()
            if self.leases is not None:
                await self.leases.close()


def open_store(
    settings: Settings, clock: SystemClock, metrics: PrometheusMetrics | None = None
) -> Store:
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
    try:
        shared = open_redis_index(
            url,
            budget_seconds=kvmeta.lookup_timeout_ms / 1000,
            breaker=BreakerRules(kvmeta.breaker.failures, kvmeta.breaker.cooldown_seconds),
            max_blocks_per_source=kvmeta.max_blocks_per_source,
            max_blocks_total=kvmeta.max_blocks_total,
            hook=metrics,
        )
    except StoreUrlError as error:
        raise CompositionError(f"store.url: {error}") from error
    leases = RedisLeases(open_client(parse_store_url(url)), prefix=_LEASES)
    return Store("redis", shared, shared, leases)


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
