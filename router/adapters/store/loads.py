"""Reports of how busy processes are, in Redis: one hash, one round trip to tell and to hear."""

from __future__ import annotations

from typing import Final

from router.adapters.store.connection import SharedStore, load_script
from router.adapters.store.keys import StoreKeys
from router.domain.units import Seconds

LEASE_SECONDS: Final[Seconds] = 3.0
"""How long a report counts: a process that was killed is busy no longer than that."""

_LOADS = load_script("loads")


class RedisLoads:
    """A `ReportBoard` that processes share."""

    def __init__(
        self, store: SharedStore, keys: StoreKeys, owner: str, *, lease: Seconds = LEASE_SECONDS
    ) -> None:
        self._store = store
        self._keys = keys
        self._owner = owner
        self._lease_ms = round(lease * 1000)

    async def exchange(self, report: bytes) -> list[bytes]:
        """Tell and hear; one script."""
        told = (self._owner, self._lease_ms, report)
        return list(await self._store.run(_LOADS, [self._keys.loads], told))
