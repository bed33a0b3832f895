"""Decode slots that processes share over a real Redis: never too many, nobody starved."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest

from router.adapters.store.keys import StoreKeys
from router.adapters.store.slots import RedisShares
from router.control.admission import AdmissionRules, Lane
from router.domain.topology import Cluster, ClusterKind, Instance, Role
from router.service.admission import Admission, Slot
from router.service.fleet import Fleet
from router.service.members import EngineReading
from router.service.slot_shares import SharedSlots
from router.service.tenants import Tenant
from tests.fakes.clocks import FakeClock
from tests.fakes.decode_slots import Waits
from tests.fakes.redis_servers import Cluster as Servers
from tests.fakes.redis_servers import Server, redis_cluster, redis_server
from tests.fakes.shared_stores import Peer, join, until

LANE = Lane("tiny")
TENANT = Tenant("acme")
_READING = EngineReading(at=0.0, waiting=0, running=3)


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


class Gateway:
    """One process's admission over shared slots, and what it holds."""

    def __init__(self, peer: Peer, limit: int, names: str, lease: float) -> None:
        instances = [Instance(name, "east", "http://x", Role.DECODE) for name in names.split()]
        # A clock that stands still: no reading gets old and no wait too long.
        self.fleet = Fleet([Cluster("east", ClusterKind.PD)], instances, clock=FakeClock())
        for instance in instances:
            self.fleet.record_probe(instance.name, ok=True)
        shares = RedisShares(peer.store, StoreKeys().slots, peer.name, lease=lease)
        self.peer = peer
        self.slots = SharedSlots(self.fleet, shares, me=peer.name)
        self.admission = Admission(
            self.fleet,
            {"tiny": limit},
            source=self.slots,
            clock=FakeClock(),
            hook=Waits(),
            rules=AdmissionRules(1000, 100.0),
            timeout=100.0,
        )
        self.running = asyncio.create_task(self.slots.run(self.admission))

    async def admit(self) -> Slot:
        return await self.admission.admit(TENANT, 0, LANE, since=0.0)

    async def kill(self) -> None:
        """Stop telling anybody."""
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


@asynccontextmanager
async def gateways(
    url: str, count: int, *, limit: int, names: str = "d0", lease: float = 3.0, budget: float = 5.0
) -> AsyncIterator[list[Gateway]]:
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(join(url, budget=budget)) for _ in range(count)]
        every = [Gateway(peer, limit, names, lease) for peer in peers]
        try:
            yield every
        finally:
            for gateway in every:
                await gateway.kill()


async def pass_through(gateway: Gateway, held: dict[str, int], most: dict[str, int]) -> None:
    """Take a slot, count who holds one where, and give it back."""
    slot = await gateway.admit()
    assert slot.instance is not None
    held[slot.instance] = held.get(slot.instance, 0) + 1
    most[slot.instance] = max(most.get(slot.instance, 0), held[slot.instance])
    await asyncio.sleep(random.uniform(0.001, 0.02))
    held[slot.instance] -= 1
    slot.release()


@pytest.mark.parametrize(("limit", "count"), [(1, 3), (4, 3), (10, 2)])
async def test_never_more_than_there_are_and_all_get_one(
    redis: Server, limit: int, count: int
) -> None:
    """Under contention of all processes every request is served and no instance gets too many."""
    redis.call("FLUSHALL")
    held: dict[str, int] = {}
    most: dict[str, int] = {}
    async with gateways(redis.url, count, limit=limit, names="d0 d1") as every:
        await until(partial(_heard, every))
        async with asyncio.timeout(60):
            await asyncio.gather(
                *(pass_through(each, held, most) for each in every for _ in range(15))
            )
    assert set(held.values()) == {0}
    assert all(value <= limit for value in most.values())


async def _heard(every: list[Gateway]) -> bool:
    return all(each.slots._heard for each in every)


async def test_one_process_alone_gets_all_of_them(redis: Server) -> None:
    """Whatever others kept to spare: who needs every slot has it soon."""
    redis.call("FLUSHALL")
    async with gateways(redis.url, 3, limit=9) as (one, *others):
        await until(partial(_heard, [one, *others]))
        async with asyncio.timeout(30):
            slots = [await one.admit() for _ in range(9)]
        waiting = asyncio.create_task(others[0].admit())
        await asyncio.sleep(0.3)
        assert not waiting.done()
        slots.pop().release()
        async with asyncio.timeout(30):
            (await waiting).release()
        for slot in slots:
            slot.release()


async def test_a_killed_process_frees_its_slots_by_its_lease(redis: Server) -> None:
    """The others have them soon after, all of them."""
    redis.call("FLUSHALL")
    async with gateways(redis.url, 2, limit=4, lease=1.0) as (killed, alive):
        await until(partial(_heard, [killed, alive]))
        async with asyncio.timeout(30):
            for _ in range(4):
                await killed.admit()
            await killed.kill()
            for _ in range(4):
                await alive.admit()


async def test_while_the_store_is_away_each_keeps_to_its_share(redis: Server) -> None:
    """Nobody takes more than he had, nobody loses it, and it goes on when the store is back."""
    redis.call("FLUSHALL")
    async with gateways(redis.url, 2, limit=8, lease=60.0, budget=0.2) as (one, two):
        await until(partial(_heard, [one, two]))
        async with asyncio.timeout(30):
            first = [await one.admit() for _ in range(3)]
        redis.freeze()
        try:
            tasks = [asyncio.create_task(each.admit()) for each in (one, two) for _ in range(8)]
            await asyncio.sleep(0.5)
            assert 3 <= one.admission.held("d0") + two.admission.held("d0") <= 8
        finally:
            redis.thaw()
        for slot in first:
            slot.release()

        async def settled() -> bool:
            for task in tasks:
                if task.done():
                    task.result().release()
            return all(task.done() for task in tasks)

        await until(settled)


async def test_strangers_at_an_instance_leave_less(redis: Server) -> None:
    """What no gateway sent takes slots as well."""
    redis.call("FLUSHALL")
    async with gateways(redis.url, 1, limit=5) as (one,):
        one.fleet.member("d0").unexplained = 3
        one.fleet.member("d0").reading = _READING
        await until(partial(_heard, [one]))
        tasks = [asyncio.create_task(one.admit()) for _ in range(4)]

        async def two_in() -> bool:
            return sum(task.done() for task in tasks) >= 2

        await until(two_in)
        await asyncio.sleep(0.2)
        assert one.admission.held("d0") == 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_on_a_cluster_claims_are_on_one_shard() -> None:
    """Two processes share over a Cluster as over one server."""
    held: dict[str, int] = {}
    most: dict[str, int] = {}
    with redis_cluster() as servers:
        assert isinstance(servers, Servers)
        async with gateways(servers.url, 2, limit=3) as every:
            await until(partial(_heard, every))
            async with asyncio.timeout(60):
                await asyncio.gather(
                    *(pass_through(each, held, most) for each in every for _ in range(10))
                )
    assert most["d0"] <= 3
