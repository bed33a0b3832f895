"""Leases: who among several processes may do a thing now.

A lease has one owner at a time and ends by itself unless renewed, so what a dead process held comes
free. Each grant has a fencing token, higher than all before it: whoever writes under a lease can
tell a newer owner's work from an older one's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kvmeta.errors import KvMetaError


class LeaseStoreAway(KvMetaError):
    """The store that keeps the leases does not answer. Nothing is known to be granted or lost."""


class LeaseStore(Protocol):
    """Where leases are kept. Held to `tests/contract/lease_suite.py`.

    Every call is one round trip and raises LeaseStoreAway when the store does not answer in time.
    Lifetimes are in seconds and count from when the store takes the call, so an owner that counts
    from before its call never holds on too long.
    """

    async def announce(self, member: str, ttl_seconds: float) -> frozenset[str]:
        """Note that `member` is alive; return every member that is, itself included."""
        ...

    async def leave(self, member: str) -> None:
        """Be no member any more, at once."""
        ...

    async def acquire(self, name: str, owner: str, ttl_seconds: float) -> int | None:
        """Take a free lease; return the fencing token, None while another owner has it."""
        ...

    async def renew(self, name: str, owner: str, token: int, ttl_seconds: float) -> bool:
        """Extend a lease; False when it is not this grant any more."""
        ...

    async def release(self, name: str, owner: str, token: int) -> None:
        """Give a lease up at once; one that is another's by now is left alone."""
        ...


class MemoryLeases:
    """`LeaseStore` in this process, for shards that share it; `clock` in seconds."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._members: dict[str, float] = {}
        self._held: dict[str, tuple[str, int, float]] = {}
        self._tokens: dict[str, int] = {}

    async def announce(self, member: str, ttl_seconds: float) -> frozenset[str]:
        """Note it until its time is up."""
        now = self._clock()
        self._members[member] = now + ttl_seconds
        self._members = {name: until for name, until in self._members.items() if until > now}
        return frozenset(self._members)

    async def leave(self, member: str) -> None:
        """Forget it."""
        self._members.pop(member, None)

    async def acquire(self, name: str, owner: str, ttl_seconds: float) -> int | None:
        """Grant what is free, has expired, or is the owner's own."""
        held = self._held.get(name)
        if held is not None and held[2] > self._clock() and held[0] != owner:
            return None
        token = self._tokens[name] = self._tokens.get(name, 0) + 1
        self._held[name] = (owner, token, self._clock() + ttl_seconds)
        return token

    async def renew(self, name: str, owner: str, token: int, ttl_seconds: float) -> bool:
        """Extend the same grant while it lasts."""
        held = self._held.get(name)
        if held is None or held[:2] != (owner, token) or held[2] <= self._clock():
            return False
        self._held[name] = (owner, token, self._clock() + ttl_seconds)
        return True

    async def release(self, name: str, owner: str, token: int) -> None:
        """Free the same grant."""
        held = self._held.get(name)
        if held is not None and held[:2] == (owner, token):
            del self._held[name]
