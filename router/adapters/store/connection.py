"""One connection to Redis for all that the router shares, with one time-out and one breaker.

Every caller has an answer of its own for when the store is away, so a call may fail but never
takes long: after `budget` it counts as failed, and after some failures in a row nobody asks for a
while (`kvmeta.backends.breakers`). What the store does with a call that was given up is unknown:
scripts state how things shall be, or are repaired by the next lease.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import redis.asyncio as aioredis
from redis.exceptions import NoScriptError, ReadOnlyError

from kvmeta.backends.breakers import BreakerRules, BreakerState, LookUpBreaker
from kvmeta.backends.redis_store import (
    FAILURES,
    MAX_CONNECTIONS,
    close_client,
    stay_cancellable,
)
from router.domain.errors import StoreAway
from router.domain.units import Seconds
from router.ports import Clock

_LOG = logging.getLogger(__name__)

Argument = str | int | bytes
Reply = Any
"""What redis-py makes of an answer: bytes, int, list or None."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script of this package."""

    text: str
    sha: str


def load_script(name: str) -> Script:
    """Read `scripts/{name}.lua`."""
    text = resources.files(__package__).joinpath("scripts", f"{name}.lua").read_text("utf-8")
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class SharedStore:
    """Runs scripts in a Redis, standalone, behind Sentinel or a Cluster.

    Single-threaded: owned by one event loop; connects on first use.
    """

    def __init__(
        self,
        client: aioredis.Redis | aioredis.RedisCluster,
        *,
        clock: Clock,
        budget: Seconds,
        breaker: BreakerRules,
    ) -> None:
        self._client = client
        self._clock = clock
        self._budget = budget
        self._breaker = LookUpBreaker(breaker)
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)

    def __repr__(self) -> str:
        return f"<SharedStore {self._breaker.state}>"

    @property
    def is_away(self) -> bool:
        """Whether the last calls failed, so that nobody is asking now."""
        return self._breaker.state is not BreakerState.CLOSED

    async def run(
        self, script: Script, keys: Sequence[str], values: Sequence[Argument] = ()
    ) -> Reply:
        """Run a script on keys of one shard, in one round trip. Raises StoreAway."""
        if not self._breaker.admits(self._clock.monotonic()):
            raise StoreAway("the store does not answer")
        try:
            async with asyncio.timeout(self._budget), self._turns:
                reply = await self._evaluate(script, keys, values)
        except (*FAILURES, TimeoutError) as error:
            if self._breaker.failed(self._clock.monotonic()):
                _LOG.warning("the store is away (%s): going on alone", type(error).__name__)
            if isinstance(error, ReadOnlyError):
                await self._forget_server()
            raise StoreAway(f"the store does not answer: {type(error).__name__}") from error
        if self._breaker.succeeded(self._clock.monotonic()):
            _LOG.warning("the store is back")
        return reply

    async def close(self) -> None:
        """Close every connection."""
        await close_client(self._client)

    async def _evaluate(
        self, script: Script, keys: Sequence[str], values: Sequence[Argument]
    ) -> Reply:
        client: Any = self._client  # the standalone and the cluster client have no common type
        try:
            return await stay_cancellable(client.evalsha(script.sha, len(keys), *keys, *values))
        except NoScriptError:
            return await stay_cancellable(client.eval(script.text, len(keys), *keys, *values))

    async def _forget_server(self) -> None:
        """Drop idle connections to a demoted server: its name may lead to another one by now."""
        if isinstance(self._client, aioredis.Redis):
            await self._client.connection_pool.disconnect(inuse_connections=False)
