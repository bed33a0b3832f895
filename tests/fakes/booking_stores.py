"""Everybody's bytes of links in memory, as the store's script counts them, over a network to order.

A call waits at the `door` until the test delivers or loses it; a `BookingBoard` without a door
answers at once. Held to the real one by `tests/integration/test_shared_links.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from router.domain.errors import StoreAway
from router.domain.units import Bytes
from router.service.reservations import Answered, Stated
from tests.fakes.clocks import FakeClock


@dataclass
class _Holding:
    call: int
    ends: float
    of: dict[str, Stated]


@dataclass(eq=False)
class WaitingCall:
    """A call that has not reached the store."""

    seat: BookingSeat
    number: int
    stated: Mapping[str, Stated]
    asks: Sequence[Mapping[str, Bytes]]
    answer: asyncio.Future[Answered]


@dataclass
class BookingBoard:
    """The store. `most` is the most that any link was ever granted."""

    clock: FakeClock
    lease: float = 3.0
    door: list[WaitingCall] | None = None
    holdings: dict[str, _Holding] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    def seat(self, name: str) -> BookingSeat:
        """One process's way to the store."""
        return BookingSeat(self, name)

    def held(self, link: str, *, but: str = "") -> int:
        """What all hold of a link whose lease has not ended."""
        return sum(
            holding.of[link].held
            for name, holding in self.holdings.items()
            if name != but and link in holding.of and holding.ends > self.clock.seconds
        )

    def deliver(self, call: WaitingCall, *, lose_answer: bool = False) -> None:
        """Let a call reach the store; its answer may be lost."""
        answer = self.apply(call.seat.name, call.number, call.stated, call.asks)
        if call.answer.done():
            return
        if lose_answer or answer is None:
            call.answer.set_exception(StoreAway("no answer"))
            call.answer.exception()  # whoever asked may be gone, and nobody else looks at it
        else:
            call.answer.set_result(answer)

    def apply(
        self,
        name: str,
        number: int,
        stated: Mapping[str, Stated],
        asks: Sequence[Mapping[str, Bytes]],
    ) -> Answered | None:
        """Do what the script does; None for a call that a later one has overtaken."""
        now, known = self.clock.seconds, self.holdings.get(name)
        if known is not None and known.call > number:
            return None
        others = {link: Bytes(self.held(link, but=name)) for link in stated}
        limits = {
            link: min(
                [each.limit]
                + [
                    holding.of[link].limit
                    for other, holding in self.holdings.items()
                    if other != name and link in holding.of and holding.ends > now
                ]
            )
            for link, each in stated.items()
        }
        mine, granted = {link: int(each.held) for link, each in stated.items()}, []
        for ask in asks:
            fits = all(
                mine[link] + others[link] + size <= limits[link] for link, size in ask.items()
            )
            granted.append(fits)
            if fits:
                for link, size in ask.items():
                    mine[link] += size
                    self.most[link] = max(self.most.get(link, 0), mine[link] + others[link])
        of = {link: Stated(Bytes(mine[link]), each.limit) for link, each in stated.items()}
        self.holdings[name] = _Holding(number, now + self.lease, of)
        return Answered(granted, others)


class BookingSeat:
    """A `BookingStore`: one process's."""

    def __init__(self, board: BookingBoard, name: str) -> None:
        self.board = board
        self.name = name
        self._numbers = itertools.count(1)

    async def state(
        self, stated: Mapping[str, Stated], asks: Sequence[Mapping[str, Bytes]]
    ) -> Answered:
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        call = WaitingCall(self, next(self._numbers), dict(stated), list(asks), answer)
        if self.board.door is None:
            self.board.deliver(call)
        else:
            self.board.door.append(call)
        return await answer

    async def leave(self) -> None:
        self.board.holdings.pop(self.name, None)
