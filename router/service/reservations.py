"""Bytes of links that several gateways share: reserved in the store before a request is sent.

What others have booked is told four times a second; two gateways that decide in the same moment
would both take the room that either saw. So a request that will move bytes over a link reserves
them first, in one step of the store that counts everybody's. These are the few and long requests:
a round trip is small beside a prefill of seconds. Where it is refused the request is decided again.

Each process *states* what it holds with every call, so whatever became of a call that was given up
is put right by the next. What a killed process held is free with its lease. While the store is
away each goes by what it last heard, as it does for choosing instances.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from router.domain.errors import StoreAway
from router.domain.units import Bytes, Seconds

_PAUSE: Final[Seconds] = 0.5
"""What is held is stated six times in its lease. Who asks or gives back does not wait for it."""


class Reserved:
    """Bytes of one link, until they are released."""

    __slots__ = ("_release", "link", "size")

    def __init__(
        self, link: str, size: Bytes, release: Callable[[str, Bytes], None] | None = None
    ) -> None:
        self.link = link
        self.size = size
        self._release = release

    def __repr__(self) -> str:
        return f"<Reserved {self.size} on {self.link}>"

    def release(self) -> None:
        """Give the bytes back. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release(self.link, self.size)


class LinkRoom(Protocol):
    """Who says whether a request's bytes still have room on the links."""

    async def reserve(self, wanted: Mapping[str, Bytes]) -> Sequence[Reserved] | None:
        """Reserve bytes on links, by name: all of them, or None. At most one wait for a store.

        Cancelled, it holds nothing.
        """
        ...

    def take(self, link: str, size: Bytes) -> Reserved:
        """Count bytes that cross whether or not there is room."""
        ...


class OwnRoom:
    """A gateway that is alone: what it has booked is all that is, and it has just looked."""

    async def reserve(self, wanted: Mapping[str, Bytes]) -> Sequence[Reserved]:
        """Grant it, without a wait."""
        return [self.take(link, size) for link, size in wanted.items()]

    def take(self, link: str, size: Bytes) -> Reserved:
        """There is nobody to tell."""
        return Reserved(link, size)


@dataclass(frozen=True, slots=True)
class Stated:
    """What a process holds of a link, and the most that it would let all of them hold."""

    held: Bytes
    limit: Bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """Which of the asks were granted, in their order, and what others hold of each link named."""

    granted: Sequence[bool]
    others: Mapping[str, Bytes]


class BookingStore(Protocol):
    """Where everybody's bytes are counted; each call is one round trip and one step."""

    async def state(
        self, stated: Mapping[str, Stated], asks: Sequence[Mapping[str, Bytes]]
    ) -> Answered:
        """State all that one holds, and ask for more: each ask is granted whole or not at all.

        All links of the asks are stated. Nothing is granted beyond the least limit that anybody
        states who holds bytes of the link. Raises StoreAway; what became of the asks is unknown
        then, and the next call puts it right.
        """
        ...

    async def leave(self) -> None:
        """Hold nothing. Raises StoreAway."""
        ...


@dataclass(eq=False, slots=True)
class _Ask:
    """One request that waits for the store's answer."""

    wanted: Mapping[str, Bytes]
    turn: asyncio.Future[Sequence[Reserved] | None]

    def settle(self, reserved: Sequence[Reserved] | None) -> None:
        if not self.turn.done():
            self.turn.set_result(reserved)
        elif reserved is not None:
            _release_all(reserved)


class SharedRoom:
    """A `LinkRoom` over a store. Single-threaded: owned by one event loop.

    Calls follow each other, one at a time: whoever asks meanwhile goes with the next.
    """

    def __init__(
        self,
        store: BookingStore,
        limit: Callable[[str], Bytes],
        *,
        heard: Callable[[Mapping[str, Bytes]], None] = lambda _: None,
    ) -> None:
        """`limit` tells how many bytes all may book of a link; `heard` is told what others have."""
        self._store = store
        self._limit = limit
        self._tell = heard
        self._held: Counter[str] = Counter()
        self._asks: list[_Ask] = []
        self._stated = False
        self._runs = False
        self._stirred = asyncio.Event()

    def __repr__(self) -> str:
        return f"<SharedRoom {dict(self._held)}, {len(self._asks)} asked>"

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes that this process holds, by link."""
        return self._held

    async def reserve(self, wanted: Mapping[str, Bytes]) -> Sequence[Reserved] | None:
        """Ask the store; without it the request goes by what it was decided by."""
        if not self._runs:
            return self._take_all(wanted)
        ask = _Ask(wanted, asyncio.get_running_loop().create_future())
        self._asks.append(ask)
        self._stirred.set()
        try:
            return await ask.turn
        except asyncio.CancelledError:
            if ask.turn.done() and not ask.turn.cancelled():
                _release_all(ask.turn.result() or ())
            raise

    def take(self, link: str, size: Bytes) -> Reserved:
        """Count bytes here; others hear of it with the next call."""
        self._held[link] += size
        self._stirred.set()
        return Reserved(link, size, self._give_back)

    async def run(self) -> None:
        """Ask for whoever waits, and state what is held, until cancelled."""
        self._runs = True
        try:
            while True:
                self._stirred.clear()
                await self.exchange()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSE):
                        await self._stirred.wait()
        finally:
            self._runs = False
            self._settle_alone(self._asks)

    async def exchange(self) -> None:
        """Make one call, with all that is asked now; nothing where nothing is held or asked."""
        asks, self._asks = [ask for ask in self._asks if not ask.turn.done()], []
        links = {link for link, size in self._held.items() if size}
        links |= {link for ask in asks for link in ask.wanted}
        if not links and not self._stated:
            return
        self._stated = bool(links)
        stated = {link: Stated(Bytes(self._held[link]), self._limit(link)) for link in links}
        try:
            answer = await self._store.state(stated, [ask.wanted for ask in asks])
        except StoreAway:
            self._settle_alone(asks)
            return
        except asyncio.CancelledError:
            self._settle_alone(asks)
            raise
        self._tell(answer.others)
        for ask, granted in zip(asks, answer.granted, strict=True):
            ask.settle(self._take_all(ask.wanted) if granted else None)

    async def leave(self) -> None:
        """Hold nothing any more; where the store does not answer that ends with the lease."""
        with suppress(StoreAway):
            await self._store.leave()

    def _settle_alone(self, asks: list[_Ask]) -> None:
        """Let requests go as they were decided: nobody can be asked."""
        for ask in asks:
            ask.settle(self._take_all(ask.wanted))

    def _take_all(self, wanted: Mapping[str, Bytes]) -> Sequence[Reserved]:
        return [self.take(link, size) for link, size in wanted.items()]

    def _give_back(self, link: str, size: Bytes) -> None:
        self._held[link] -= size
        self._stirred.set()


def _release_all(reserved: Sequence[Reserved]) -> None:
    for each in reserved:
        each.release()
