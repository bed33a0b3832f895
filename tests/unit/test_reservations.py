"""Bytes of links as a process reserves them: who waits, who is refused, and without a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from router.domain.errors import StoreAway
from router.domain.units import Bytes
from router.service.reservations import Answered, OwnRoom, SharedRoom, Stated
from tests.fakes.booking_stores import BookingBoard, WaitingCall
from tests.fakes.clocks import FakeClock
from tests.fakes.slack_benches import settle

LINK = "west-east"
LIMIT = Bytes(100)


@asynccontextmanager
async def running(board: BookingBoard, name: str, limit: int = LIMIT) -> AsyncIterator[SharedRoom]:
    room = SharedRoom(board.seat(name), lambda _: Bytes(limit))
    task = asyncio.create_task(room.run())
    await settle()
    try:
        yield room
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ask(room: SharedRoom, size: int) -> bool:
    return await room.reserve({LINK: Bytes(size)}) is not None


async def test_of_two_that_ask_at_once_one_is_refused() -> None:
    """Until the first gives its bytes back."""
    board = BookingBoard(FakeClock())
    async with running(board, "a") as one, running(board, "b") as two:
        first, second = await asyncio.gather(
            one.reserve({LINK: Bytes(60)}), two.reserve({LINK: Bytes(60)})
        )
        assert (first is None) is not (second is None)
        for each in first or second or ():
            each.release()
        await settle()
        assert await ask(one, 60) is not await ask(two, 60)


async def test_the_most_careful_holder_bounds_all() -> None:
    """Who has learnt that a link carries less is believed, while it holds bytes there."""
    board = BookingBoard(FakeClock())
    async with running(board, "a") as one, running(board, "b", limit=50) as two:
        assert await ask(two, 10)
        assert not await ask(one, 60)
        assert await ask(one, 40)


async def test_asks_that_come_during_a_call_go_together() -> None:
    """One call at a time, and one more for all who came meanwhile."""
    door: list[WaitingCall] = []
    board = BookingBoard(FakeClock(), door=door)
    async with running(board, "a") as room:
        asking = [asyncio.create_task(ask(room, 30))]
        await settle()
        asking += [asyncio.create_task(ask(room, 30)) for _ in range(3)]
        await settle()
        for asks in (1, 3):
            (call,) = door
            assert len(call.asks) == asks
            board.deliver(door.pop())
            await settle()
        assert [task.result() for task in asking] == [True, True, True, False]


async def test_who_leaves_while_waiting_holds_nothing() -> None:
    """Whether the answer was under way or just here; the store hears of it."""
    door: list[WaitingCall] = []
    board = BookingBoard(FakeClock(), door=door)
    async with running(board, "a") as room:
        for late in (False, True):
            asking = asyncio.create_task(ask(room, 30))
            await settle()
            if late:
                board.deliver(door.pop())
                asking.cancel()
            else:
                asking.cancel()
                await settle()
                board.deliver(door.pop())
            await settle()
            assert asking.cancelled()
            assert not room.held[LINK]
            while door:
                board.deliver(door.pop())
                await settle()
            assert board.held(LINK) == 0


class AwayStore:
    """A store that never answers in time."""

    async def state(
        self,
        stated: Mapping[str, Stated],  # noqa: ARG002 - the protocol's
        asks: Sequence[Mapping[str, Bytes]],  # noqa: ARG002 - the protocol's
    ) -> Answered:
        raise StoreAway("away")

    async def leave(self) -> None:
        raise StoreAway("away")


async def test_without_the_store_requests_go_as_decided() -> None:
    """They are counted all the same, so that the store hears of them when it is back."""
    room = SharedRoom(AwayStore(), lambda _: LIMIT)
    assert await room.reserve({LINK: Bytes(500)}) is not None  # nobody runs it yet
    task = asyncio.create_task(room.run())
    reserved = await room.reserve({LINK: Bytes(70)})
    assert reserved is not None
    assert room.held == {LINK: 570}
    for each in reserved:
        each.release()
        each.release()
    assert room.held == {LINK: 500}
    await room.leave()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_who_waits_when_the_gateway_ends_is_let_go() -> None:
    """Nobody is left waiting for an answer that will not come."""
    door: list[WaitingCall] = []
    async with running(BookingBoard(FakeClock(), door=door), "a") as room:
        first = asyncio.create_task(ask(room, 30))
        await settle()
        second = asyncio.create_task(ask(room, 30))
        await settle()
    await settle()
    assert (first.result(), second.result()) == (True, True)


async def test_a_gateway_alone_asks_nobody() -> None:
    """It has just looked."""
    reserved = await OwnRoom().reserve({LINK: Bytes(1 << 60)})
    assert [each.size for each in reserved] == [1 << 60]
    reserved[0].release()
