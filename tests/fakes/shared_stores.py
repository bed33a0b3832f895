"""Processes that share a Redis, as many as a test wants in its own event loop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kvmeta.backends.breakers import BreakerRules
from kvmeta.backends.redis_store import open_client
from kvmeta.backends.redis_urls import parse_store_url
from router.adapters.clocks import SystemClock
from router.adapters.store.connection import SharedStore
from router.adapters.store.holds import Holds
from router.adapters.store.keys import StoreKeys
from router.adapters.store.leases import RedisLeaderLease
from router.adapters.store.limits import RedisLimits
from router.adapters.store.state import RedisState

_NAMES = itertools.count(1)


@dataclass
class Peer:
    """What one process has of the store."""

    name: str
    store: SharedStore
    holds: Holds
    limits: RedisLimits
    state: RedisState
    upkeep: asyncio.Task[None]
    killed: bool = False

    def leader_lease(self, owner: str, life: float) -> RedisLeaderLease:
        """A way to the leader's lease, under a name of its own."""
        return RedisLeaderLease(self.store, StoreKeys(), owner=owner, name=owner, life=life)

    def kill(self) -> None:
        """End it as SIGKILL would: nothing is given back."""
        self.killed = True
        self.upkeep.cancel()


@asynccontextmanager
async def join(url: str, *, budget: float = 5.0, lease: float = 6.0) -> AsyncIterator[Peer]:
    """Be one more process for the time of the block."""
    clock, keys, name = SystemClock(), StoreKeys(), f"peer{next(_NAMES)}"
    store = SharedStore(
        open_client(parse_store_url(url)),
        clock=clock,
        budget=budget,
        breaker=BreakerRules(cooldown_seconds=0.3),
    )
    holds = Holds(store, owner=name, clock=clock, lease=lease)
    peer = Peer(
        name,
        store,
        holds,
        RedisLimits(store, holds, keys, clock),
        RedisState(store, keys),
        asyncio.create_task(holds.run()),
    )
    try:
        yield peer
    finally:
        peer.upkeep.cancel()
        await asyncio.gather(peer.upkeep, return_exceptions=True)
        if not peer.killed:
            await holds.close()
        await store.close()


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = 60.0) -> None:
    """Wait until what is asked again and again is true."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - what is waited for is in the store
            await asyncio.sleep(0.02)
