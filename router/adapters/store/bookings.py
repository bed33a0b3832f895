"""What processes hold of links' bytes, in Redis: one hash, compared and granted in one step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from router.adapters.store.connection import SharedStore, load_script
from router.adapters.store.keys import StoreKeys
from router.domain.errors import StoreAway
from router.domain.units import Bytes, Seconds
from router.service.reservations import Answered, Stated

LEASE_SECONDS: Final[Seconds] = 3.0
"""Six statements: one that is late costs nothing, and a killed process's bytes are free soon."""

_BOOKINGS = load_script("bookings")
_DECODER: Final = msgspec.json.Decoder(dict[str, int])


class RedisBookings:
    """A `BookingStore` that processes share. Calls are numbered, so one that comes late is void."""

    def __init__(
        self, store: SharedStore, keys: StoreKeys, owner: str, *, lease: Seconds = LEASE_SECONDS
    ) -> None:
        self._store = store
        self._keys = keys
        self._owner = owner
        self._lease = lease
        self._calls = itertools.count(1)

    async def state(
        self, stated: Mapping[str, Stated], asks: Sequence[Mapping[str, Bytes]]
    ) -> Answered:
        """State, ask and hear; one script."""
        return await self._call(stated, asks, self._lease)

    async def leave(self) -> None:
        """Hold nothing, for no time; one script."""
        await self._call({}, (), 0.0)

    async def _call(
        self, stated: Mapping[str, Stated], asks: Sequence[Mapping[str, Bytes]], lease: Seconds
    ) -> Answered:
        mine = {link: (each.held, each.limit) for link, each in stated.items()}
        granted, others = await self._store.run(
            _BOOKINGS,
            [self._keys.bookings],
            [
                self._owner,
                round(lease * 1000),
                next(self._calls),
                msgspec.json.encode(mine),
                msgspec.json.encode(asks),
            ],
        )
        if not others:
            raise StoreAway("a later call was answered first")
        told = {link: Bytes(size) for link, size in _DECODER.decode(others).items()}
        return Answered([bool(each) for each in granted], told)
