"""A store in memory that processes of a test share: one leader's lease, and documents behind it.

Held to the same suite as the real one. It can be away, and it can lose everything.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.adapters.memory_state import MemoryState
from router.control.tenures import Leader, Standing
from router.domain.errors import NotLeading, StoreAway
from router.ports import Clock, Fence, Kept


@dataclass
class _Lease:
    owner: str
    leader: Leader
    ends: float


class LeaderStore(MemoryState):
    """The store; `clock` is its own. Documents are written by whoever the fence lets."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self._lease: _Lease | None = None
        self.away = False
        self.accepted: list[Fence] = []

    def seat(self, owner: str, *, life: float) -> LeaderSeat:
        """One process's way to the lease."""
        return LeaderSeat(self, owner, life)

    def lose_everything(self) -> None:
        """As a flush, or a failover to a server that had nothing yet."""
        self._documents.clear()
        self._records.clear()
        self._lease = None

    async def write(
        self,
        name: str,
        document: bytes,
        *,
        after: int,
        record: bytes | None = None,
        fence: Fence | None = None,
    ) -> Kept | None:
        self.answer()
        if fence is not None:
            lease = self.held()
            if lease is None or Fence(lease.owner, lease.leader.term) != fence:
                raise NotLeading("fenced off")
        kept = await super().write(name, document, after=after, record=record)
        if kept is not None and fence is not None:
            self.accepted.append(fence)
        return kept

    async def read(self, name: str) -> Kept:
        self.answer()
        return await super().read(name)

    def answer(self) -> None:
        """Raise StoreAway where it is."""
        if self.away:
            raise StoreAway("away")

    def held(self) -> _Lease | None:
        """The lease that somebody has."""
        if self._lease is None or self._lease.ends <= self.clock.monotonic():
            return None
        return self._lease

    def hold(self, owner: str, life: float, term: int, highest: int) -> Standing:
        """As `lead.lua`."""
        self.answer()
        now = self.clock.monotonic()
        held = self.held()
        if held is None or (held.owner == owner and held.leader.term != term):
            last = 0 if self._lease is None else self._lease.leader.term
            wall = self.clock.now().timestamp()
            number = max(last + 1, highest + 1, round(wall * 1000))
            held = self._lease = _Lease(owner, Leader(owner, number, wall), now + life)
        elif held.owner == owner:
            held.ends = now + life
        return Standing(held.leader, held.owner == owner, held.ends - now)

    def give_back(self, owner: str, term: int) -> None:
        """As `lead_end.lua`."""
        self.answer()
        held = self.held()
        if held is not None and (held.owner, held.leader.term) == (owner, term):
            held.ends = 0.0


class LeaderSeat:
    """One process's `LeaderLease`."""

    def __init__(self, store: LeaderStore, owner: str, life: float) -> None:
        self._store = store
        self._life = life
        self.owner = owner

    async def hold(self, term: int, highest: int) -> Standing:
        return self._store.hold(self.owner, self._life, term, highest)

    async def give_back(self, term: int) -> None:
        self._store.give_back(self.owner, term)
