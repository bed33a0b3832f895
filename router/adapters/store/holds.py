"""What this process holds in the store, under leases that end soon after the process does.

A hold is a member of a sorted set, scored by when its lease ends. A process renews all of its own
every `lease / 3`; one that was killed stops to, and its holds are free within the lease. Whoever
counts a set prunes it first. Names are unique, so asking twice for the same hold takes one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from router.adapters.store.connection import SharedStore, load_script
from router.domain.errors import StoreAway
from router.domain.units import Seconds
from router.ports import Clock

LEASE_SECONDS: Final[Seconds] = 6.0
"""Three renewals fit: one lost answer costs nothing, and a killed process's holds free soon."""

_RENEW = load_script("holds")
_AT_ONCE: Final = 1000
"""Names in one call: it takes about a millisecond of the server's time."""


class Holds:
    """This process's holds by key. Single-threaded: owned by one event loop."""

    def __init__(
        self, store: SharedStore, *, owner: str, clock: Clock, lease: Seconds = LEASE_SECONDS
    ) -> None:
        self._store = store
        self._owner = owner
        self._clock = clock
        self._numbers = itertools.count(1)
        self._held: dict[str, set[str]] = {}
        self._returned: dict[str, set[str]] = {}
        self._stirred = asyncio.Event()
        self._lease = lease

    def __repr__(self) -> str:
        return f"<Holds {sum(map(len, self._held.values()))} in {len(self._held)} sets>"

    @property
    def lease_ms(self) -> int:
        """The lease as scripts take it."""
        return round(self._lease * 1000)

    def name(self) -> str:
        """Return the name of a hold that a script may take."""
        return f"{self._owner}:{next(self._numbers)}"

    def keep(self, key: str, name: str) -> None:
        """Keep a hold that was taken alive from now on; one that was lost comes back."""
        self._held.setdefault(key, set()).add(name)

    def give_back(self, key: str, name: str) -> None:
        """Let a hold go, also one of which it is not known whether it was taken.

        Does not wait: `run` tells the store at once.
        """
        held = self._held.get(key)
        if held is not None:
            held.discard(name)
            if not held:
                del self._held[key]
        self._returned.setdefault(key, set()).add(name)
        self._stirred.set()

    async def run(self) -> None:
        """Tell the store what is given back, and renew the rest, until cancelled."""
        renew_at = self._clock.monotonic() + self._lease / 3
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(renew_at - self._clock.monotonic()):
                    await self._stirred.wait()
            self._stirred.clear()
            await self._give_back()
            if self._clock.monotonic() >= renew_at:
                await self._renew()
                renew_at = self._clock.monotonic() + self._lease / 3

    async def close(self) -> None:
        """Give everything back; what the store does not learn of, its lease frees."""
        for key, names in self._held.items():
            self._returned.setdefault(key, set()).update(names)
        self._held.clear()
        await self._give_back()

    async def _give_back(self) -> None:
        returned, self._returned = self._returned, {}
        for key, names in returned.items():
            for some in _pieces(names):
                await self._tell(key, (len(some), *some))

    async def _renew(self) -> None:
        for key in list(self._held):
            for some in _pieces(self._held.get(key, set())):
                await self._tell(key, (0, *some))

    async def _tell(self, key: str, values: Sequence[str | int]) -> None:
        try:
            await self._store.run(_RENEW, [key], [self.lease_ms, *values])
        except StoreAway:
            return  # what was to be given back, its lease frees; the rest is renewed next time


def _pieces(names: set[str]) -> Iterator[list[str]]:
    every = sorted(names)
    for start in range(0, len(every), _AT_ONCE):
        yield every[start : start + _AT_ONCE]
