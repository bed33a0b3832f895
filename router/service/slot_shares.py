"""Slots of instances that several gateways share: each hands out its share by itself.

Admission asks nobody: what may decode here is the process's share. Shares move in an exchange over
the store, four times a second, at once where a request finds none free, and faster while one waits.
The store's script grants what nobody has and never more (`router.control.shares` says what to ask
for). A process that was killed loses its shares with their lease; while the store is away each
keeps to the share that it had last, or after a time to nobody's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol
from zlib import crc32

from router.control.shares import Claim, aim, is_contended
from router.domain.errors import StoreAway
from router.domain.units import Seconds
from router.service.fleet import Fleet
from router.service.members import Member

_PAUSE: Final[Seconds] = 0.25
_PAUSE_WAITING: Final[Seconds] = 0.05
"""While somebody waits here: what others gave back is had that soon."""

_PAUSE_LEAST: Final[Seconds] = 0.01
"""However many come and go: at most a hundred exchanges a second."""


@dataclass(frozen=True, slots=True)
class Need:
    """How an instance's slots stand here: `limit` in all, `held` and waited for by our requests.

    `foreign` are taken by requests of no gateway.
    """

    limit: int
    held: int
    waiting: int
    foreign: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What a process says of one instance: it keeps `have`, wants `ask`, could use `demand`."""

    total: int
    have: int
    ask: int
    demand: int


@dataclass(frozen=True, slots=True)
class Granted:
    """What it has then, and what the others have."""

    share: int
    others: Mapping[str, Claim] = field(default_factory=dict)


class ShareStore(Protocol):
    """Where shares are kept; each call is one round trip and one step."""

    async def claim(self, asked: Mapping[str, Asked]) -> tuple[int, Mapping[str, Granted]]:
        """State all of one's claims, and have what is granted; also the turn, which all share.

        Instances that are not named are given up. Raises StoreAway; nothing is known then, and the
        next call puts right what this one may have done.
        """
        ...

    async def leave(self) -> None:
        """Give everything up. Raises StoreAway."""
        ...


class Claimant(Protocol):
    """Whose requests want slots."""

    def needs(self) -> Mapping[str, Need]:
        """Return how every instance with a limit stands."""
        ...

    def let_in(self) -> None:
        """Told that there may be more room."""
        ...


@dataclass(slots=True)
class _Place:
    """One instance's slots as this process knows them. `cap` bounds it while others want some."""

    share: int = 0
    cap: int | None = None
    others: Mapping[str, Claim] = field(default_factory=dict)


class SharedSlots:
    """A `SlotSource` over shares. Single-threaded: owned by one event loop."""

    def __init__(
        self, fleet: Fleet, store: ShareStore, *, me: str, alone_after: Seconds | None = None
    ) -> None:
        """Without the store for `alone_after` a process counts as the only one; None: never.

        Of a slot or two an instance a process may have no share, and nobody could give it one.
        """
        self._alone_after = alone_after
        self._heard_at: Seconds = 0.0
        self._fleet = fleet
        self._store = store
        self._me = me
        self._places: dict[str, _Place] = {}
        self._turn = 0
        self._heard = False
        self._waiting = False
        self._stirred = asyncio.Event()

    def __repr__(self) -> str:
        return f"<SharedSlots { ({name: place.share for name, place in self._places.items()}) }>"

    def room(self, member: Member, limit: int, held: int) -> int:
        """Return how many more of our requests may decode at an instance now.

        Before the store is heard of this process counts as the only one.
        """
        if not self._heard:
            return limit - held - self._fleet.others_running(member)
        place = self._places.get(member.instance.name)
        if place is None:
            return 0
        share = place.share if place.cap is None else min(place.share, place.cap)
        return min(share, limit) - held

    def short(self) -> None:
        """Ask for more at once: a request found no slot."""
        self._waiting = True
        self._stirred.set()

    def came_back(self, instance: str) -> None:
        """Give a slot back at once where others want it."""
        place = self._places.get(instance)
        if place is not None and place.cap is not None and place.share > place.cap:
            self._stirred.set()

    async def run(self, claimant: Claimant) -> None:
        """Exchange shares until cancelled."""
        while True:
            await self.exchange(claimant)
            await asyncio.sleep(_PAUSE_LEAST)
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_WAITING if self._waiting else _PAUSE):
                    await self._stirred.wait()
            self._stirred.clear()

    async def exchange(self, claimant: Claimant) -> None:
        """Give back what is not needed, ask for what is, once."""
        needs = claimant.needs()
        if not needs and not self._places:
            return
        self._waiting = any(need.waiting for need in needs.values())
        self._places = {name: self._places.get(name, _Place()) for name in needs}
        asked = {name: self._ask(name, need) for name, need in needs.items()}
        try:
            self._turn, granted = await self._store.claim(asked)
        except StoreAway:
            self._go_alone(claimant)
            return
        self._heard, self._heard_at = True, self._fleet.now()
        for name, grant in granted.items():
            place = self._places[name]
            place.share, place.others = grant.share, grant.others
            self._strive(name, Claim(place.share, asked[name].demand), asked[name].total)
        claimant.let_in()

    async def leave(self) -> None:
        """Give all shares up; where the store does not answer they end with their lease."""
        with suppress(StoreAway):
            await self._store.leave()

    def _go_alone(self, claimant: Claimant) -> None:
        """Stop counting on what was heard long ago: all leases of then have ended."""
        after = self._alone_after
        if after is not None and self._heard and self._fleet.now() - self._heard_at > after:
            self._heard = False
            claimant.let_in()

    def _ask(self, name: str, need: Need) -> Asked:
        """Return what to say; what is given back is not handed out from here on."""
        place = self._places[name]
        total = max(0, need.limit - need.foreign)
        demand = need.held + need.waiting
        target = self._strive(name, Claim(place.share, demand), total)
        # Before the first answer nothing is ours but what runs.
        share = place.share if self._heard else need.held
        place.share = min(share, max(need.held, target))
        return Asked(total, place.share, max(place.share, target), demand)

    def _strive(self, name: str, mine: Claim, total: int) -> int:
        """Return the share to strive for; what does not divide begins elsewhere each time."""
        place = self._places[name]
        target = aim(total, self._me, mine, place.others, self._turn + crc32(name.encode()))
        place.cap = target if is_contended(total, mine, place.others) else None
        return target
