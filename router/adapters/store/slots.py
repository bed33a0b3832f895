"""Shares of instances' slots in Redis: one hash of claims, compared and granted in one step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

import msgspec

from router.adapters.store.connection import Argument, SharedStore, load_script
from router.control.shares import Claim
from router.domain.units import Seconds
from router.service.slot_shares import Asked, Granted

LEASE_SECONDS: Final[Seconds] = 3.0
"""Twelve exchanges: one that is late costs nothing, and a killed process's slots free soon."""

_SLOTS = load_script("slots")


class _Grant(msgspec.Struct, array_like=True):
    """As the script tells it."""

    share: int
    others: dict[str, tuple[int, int]]


_DECODER: Final = msgspec.json.Decoder(dict[str, _Grant])


class RedisShares:
    """A `ShareStore` that processes share. Calls are numbered, so one that comes late is void."""

    def __init__(
        self, store: SharedStore, key: str, owner: str, *, lease: Seconds = LEASE_SECONDS
    ) -> None:
        """`key` is where the claims are: `StoreKeys.slots` or `StoreKeys.places`."""
        self._store = store
        self._key = key
        self._owner = owner
        self._lease = lease
        self._calls = itertools.count(1)

    async def claim(self, asked: Mapping[str, Asked]) -> tuple[int, Mapping[str, Granted]]:
        """Compare and grant; one script."""
        return await self._call(asked, self._lease)

    async def leave(self) -> None:
        """Claim nothing, for no time; one script."""
        await self._call({}, 0.0)

    async def _call(
        self, asked: Mapping[str, Asked], lease: Seconds
    ) -> tuple[int, Mapping[str, Granted]]:
        values: list[Argument] = [self._owner, round(lease * 1000), next(self._calls)]
        for name, each in asked.items():
            values += [name, each.total, each.have, each.ask, each.demand]
        turn, text = await self._store.run(_SLOTS, [self._key], values)
        granted = {
            name: Granted(
                grant.share, {process: Claim(*claim) for process, claim in grant.others.items()}
            )
            for name, grant in _DECODER.decode(text).items()
        }
        return int(turn), granted
