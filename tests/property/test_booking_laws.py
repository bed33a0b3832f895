"""Bytes of a link that gateways reserve in one store: whatever happens in whatever order.

A seeded walk: requests ask, leave and end; calls reach the store late, or never; gateways die, or
stand still for longer than their lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from router.domain.errors import StoreAway
from router.domain.units import Bytes
from router.service.reservations import Reserved, SharedRoom
from tests.fakes.booking_stores import BookingBoard, WaitingCall
from tests.fakes.clocks import FakeClock
from tests.fakes.slack_benches import settle

LIMIT = Bytes(100)
LINK, BACK = "west-east", "east-west"

Asking = asyncio.Task[Sequence[Reserved] | None]


@dataclass(eq=False)
class Gateway:
    """One process: what it asks, and what its requests hold."""

    name: str
    room: SharedRoom
    running: asyncio.Task[None]
    asking: list[Asking] = field(default_factory=list)
    holding: list[Sequence[Reserved]] = field(default_factory=list)
    heard_at: float = 0.0
    lapsed: bool = False

    def collect(self) -> None:
        """Let requests whose answer is here go on, or be decided again."""
        for task in [task for task in self.asking if task.done()]:
            self.asking.remove(task)
            if not task.cancelled() and (reserved := task.result()) is not None:
                self.holding.append(reserved)

    def holds(self, link: str) -> int:
        """What its requests hold of a link."""
        return sum(each.size for held in self.holding for each in held if each.link == link)


class Walk:
    """Several gateways before one store. With `losses` calls and answers may be lost."""

    def __init__(self, chance: Random, *, losses: bool) -> None:
        self.chance = chance
        self.losses = losses
        self.clock = FakeClock()
        self.door: list[WaitingCall] = []
        self.board = BookingBoard(self.clock, door=self.door)
        self.gateways: list[Gateway] = []
        self.begun = 0

    def begin(self) -> None:
        self.begun += 1
        name = f"g{self.begun}"
        room = SharedRoom(self.board.seat(name), lambda _: LIMIT)
        running = asyncio.create_task(room.run())
        self.gateways.append(Gateway(name, room, running, heard_at=self.clock.seconds))

    async def step(self) -> None:
        chance, gateway = self.chance, self.chance.choice(self.gateways)
        match chance.choices(
            ("ask", "leave", "end", "deliver", "lose", "die", "wait"), (6, 1, 4, 12, 2, 0.3, 2)
        )[0]:
            case "ask":
                wanted = {LINK: Bytes(chance.choice((10, 30, 60, 100)))}
                if chance.random() < 0.2:
                    wanted[BACK] = Bytes(40)
                gateway.asking.append(asyncio.create_task(gateway.room.reserve(wanted)))
            case "leave" if gateway.asking:
                chance.choice(gateway.asking).cancel()
            case "end" if gateway.holding:
                ended = gateway.holding.pop(chance.randrange(len(gateway.holding)))
                for reserved in ended:
                    reserved.release()
                    reserved.release()
            case "deliver" if self.door:
                self.deliver(self.door.pop(chance.randrange(len(self.door))))
            case "lose" if self.losses and self.door:
                self.lose(chance.choice(self.door))
            case "die":
                await self.kill(gateway)
            case "wait":
                self.wait(chance.choice((0.5, 0.5, 0.5, 4.0)))
        await settle()
        for each in self.gateways:
            each.collect()

    def deliver(self, call: WaitingCall) -> None:
        for gateway in self.gateways:
            if gateway.name == call.seat.name:
                gateway.heard_at = self.clock.seconds
        self.board.deliver(call)

    def lose(self, call: WaitingCall) -> None:
        """Lose the answer of a call, or let it be given up and come after all."""
        if self.chance.random() < 0.5:
            self.door.remove(call)
            self.board.deliver(call, lose_answer=True)
        else:
            lost, call.answer = call.answer, asyncio.get_running_loop().create_future()
            lost.set_exception(StoreAway("lost"))

    def wait(self, seconds: float) -> None:
        """Let time pass; who was not heard for a lease is not counted by others any more."""
        self.clock.advance(seconds)
        for gateway in self.gateways:
            if self.clock.seconds - gateway.heard_at >= self.board.lease:
                gateway.lapsed |= bool(gateway.holding or gateway.asking)
            gateway.room.take(LINK, Bytes(0))  # it is time to say again what it holds

    async def kill(self, gateway: Gateway) -> None:
        """End a process: its calls are cut off, and so are its requests."""
        self.gateways.remove(gateway)
        self.door[:] = [call for call in self.door if call.seat.name != gateway.name]
        await end([gateway])
        if not self.gateways or self.chance.random() < 0.8:
            self.begin()

    def check(self) -> None:
        for gateway in self.gateways:
            for link in (LINK, BACK):
                assert gateway.room.held.get(link, 0) == gateway.holds(link)
        for link in (LINK, BACK):
            assert self.board.most.get(link, 0) <= LIMIT
            if not self.losses:
                sound = [each for each in self.gateways if not each.lapsed]
                assert sum(each.holds(link) for each in sound) <= LIMIT

    async def calm_down(self) -> None:
        """Let every call through until nobody has anything to say."""
        for gateway in self.gateways:
            gateway.room.take(LINK, Bytes(0))
        for _ in range(1000):
            await settle()
            for each in self.gateways:
                each.collect()
            if not self.door:
                return
            self.board.deliver(self.door.pop(0))


async def end(gateways: Sequence[Gateway]) -> None:
    tasks = [task for each in gateways for task in (each.running, *each.asking)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def walk(chance: Random, *, losses: bool) -> None:
    walking = Walk(chance, losses=losses)
    for _ in range(chance.choice((2, 3))):
        walking.begin()
    try:
        for _ in range(60):
            await walking.step()
            walking.check()
        await walking.calm_down()
        walking.check()
        for gateway in walking.gateways:
            counted = walking.board.holdings.get(gateway.name)
            for link in (LINK, BACK):
                told = counted.of.get(link) if counted else None
                assert (told.held if told else 0) == gateway.holds(link)
    finally:
        await end(walking.gateways)


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_gateways_never_hold_more_than_the_link_may_be_given(chance: Random) -> None:
    """Nor does any interleaving change that, nor a death; what is held is what runs."""
    asyncio.run(walk(chance, losses=False))


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_lost_call_is_put_right_by_the_next(chance: Random) -> None:
    """The store grants nothing over the limit that it knows of, and ends by knowing all."""
    asyncio.run(walk(chance, losses=True))
