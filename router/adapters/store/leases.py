"""The leader's lease in Redis: compared and extended in one step, by the server's clock."""

from __future__ import annotations

from router.adapters.store.connection import SharedStore, load_script
from router.adapters.store.keys import StoreKeys
from router.control.tenures import Leader, Standing
from router.domain.units import Seconds

_LEAD = load_script("lead")
_END = load_script("lead_end")


class RedisLeaderLease:
    """A `LeaderLease` that processes share."""

    def __init__(
        self, store: SharedStore, keys: StoreKeys, *, owner: str, name: str, life: Seconds
    ) -> None:
        """`owner` is new with every start, `name` is for people; `life` is that of the lease."""
        self._store = store
        self._keys = keys
        self._name = name
        self._life_ms = round(life * 1000)
        self.owner = owner

    async def hold(self, term: int, highest: int) -> Standing:
        """Renew or take; one script."""
        values = (self.owner, self._name, term, self._life_ms, highest)
        reply = await self._store.run(_LEAD, [self._keys.leader], values)
        mine, name, number, since, left = reply
        leader = Leader(name.decode(), int(number), int(since) / 1000)
        return Standing(leader, bool(mine), int(left) / 1000)

    async def give_back(self, term: int) -> None:
        """End it, if this process still has it; one script."""
        await self._store.run(_END, [self._keys.leader], (self.owner, term))
