"""Leases in Redis: compared and extended in one step by small scripts.

    PREFIX{NAME}          string  "OWNER TOKEN", expires with the lease
    PREFIX{NAME}:fence    string  the last token given; outlives the lease by a day, after which
                                  counting may begin anew: no process pauses that long
    PREFIX{members}       sorted set of members by the time at which they are given up

A lease and its fence share a hash tag, hence a shard of a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from importlib.resources import files
from typing import Any, cast

from kvmeta.backends.redis_store import FAILURES, close_client, stay_cancellable
from kvmeta.leases import LeaseStoreAway

FENCE_SECONDS = 86_400.0


def _read_script(name: str) -> str:
    return files("kvmeta.backends").joinpath("scripts", f"{name}.lua").read_text("utf-8")


class RedisLeases:
    """`kvmeta.leases.LeaseStore` over a `redis.asyncio` client, standalone or cluster.

    `prefix` begins every key. Calls end after `timeout_seconds`: half of what a shard waits
    between two renewals is plenty.
    """

    def __init__(self, client: Any, *, prefix: str, timeout_seconds: float = 1.0) -> None:  # noqa: ANN401  # standalone and cluster clients have no common type
        self._client = client
        self._prefix = prefix
        self._timeout_seconds = timeout_seconds
        self._acquire = _read_script("lease_acquire")
        self._renew = _read_script("lease_renew")
        self._release = _read_script("lease_release")
        self._announce = _read_script("members_announce")

    async def close(self) -> None:
        """Close every connection."""
        await close_client(self._client)

    async def announce(self, member: str, ttl_seconds: float) -> frozenset[str]:
        """One script: note, prune, list."""
        found = await self._run(self._announce, [self._members], [member, _ms(ttl_seconds)])
        return frozenset(_text(name) for name in cast("list[bytes | str]", found))

    async def leave(self, member: str) -> None:
        """Take it out of the set."""
        await self._answered(self._client.zrem(self._members, member))

    async def acquire(self, name: str, owner: str, ttl_seconds: float) -> int | None:
        """One script: SET if free or the owner's own, under a new token."""
        asked: list[str | int] = [owner, _ms(ttl_seconds), _ms(FENCE_SECONDS)]
        token = int(cast("int", await self._run(self._acquire, self._keys(name), asked)))
        return token or None

    async def renew(self, name: str, owner: str, token: int, ttl_seconds: float) -> bool:
        """One script: PEXPIRE if owner and token are the same."""
        held: list[str | int] = [f"{owner} {token}", _ms(ttl_seconds), _ms(FENCE_SECONDS)]
        return bool(await self._run(self._renew, self._keys(name), held))

    async def release(self, name: str, owner: str, token: int) -> None:
        """One script: DEL if owner and token are the same."""
        await self._run(self._release, self._keys(name)[:1], [f"{owner} {token}"])

    @property
    def _members(self) -> str:
        return f"{self._prefix}{{members}}"

    def _keys(self, name: str) -> list[str]:
        lease = f"{self._prefix}{{{name}}}"
        return [lease, f"{lease}:fence"]

    async def _run(self, script: str, keys: list[str], values: list[str | int]) -> object:
        # EVAL, not EVALSHA: a few calls a second, and nothing to load anew after a failover.
        return await self._answered(self._client.eval(script, len(keys), *keys, *values))

    async def _answered(self, call: Awaitable[object]) -> object:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await stay_cancellable(call)
        except (*FAILURES, TimeoutError) as error:
            raise LeaseStoreAway(type(error).__name__) from error


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
