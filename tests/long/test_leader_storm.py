"""Leaders on a real Redis that stalls and forgets, with processes that sleep and die."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from router.adapters.clocks import SystemClock
from router.control.tenures import LeaseRules
from router.domain.errors import NotLeading, StoreAway
from router.service.leadership import Leadership
from tests.fakes.redis_servers import Server, redis_server
from tests.fakes.shared_stores import Peer, join

RULES = LeaseRules(within=0.6)
WRITES = 300
"""Accepted ones; the store remembers the last thousand."""


async def write(peer: Peer, leadership: Leadership, draw: random.Random) -> None:
    """Write as a leader would, but sometimes long after the look at the lease."""
    while True:
        await asyncio.sleep(draw.uniform(0.0, 0.01))
        if not leadership.leads:
            continue
        with suppress(NotLeading, StoreAway):
            fence = leadership.fence
            assert fence is not None
            if draw.random() < 0.1:
                await asyncio.sleep(draw.uniform(0.0, 2 * RULES.within))
            kept = await peer.state.read("storm")
            record = f"{fence.term} {fence.owner}".encode()
            await peer.state.write("storm", b"x", after=kept.version, record=record, fence=fence)


@asynccontextmanager
async def process(url: str, owner: str, draw: random.Random) -> AsyncIterator[None]:
    """One process: it renews and writes until it is killed, and gives nothing back."""
    async with join(url, budget=0.3) as peer:
        lease = peer.leader_lease(owner, RULES.life)
        leadership = Leadership(lease, name=owner, clock=SystemClock(), rules=RULES)
        tasks = [
            asyncio.create_task(leadership.run()),
            asyncio.create_task(write(peer, leadership, draw)),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def live_and_die(url: str, name: str, draw: random.Random) -> None:
    """Be one process after another."""
    for life in range(10**6):
        async with process(url, f"{name}{life}", draw):
            await asyncio.sleep(draw.uniform(0.3, 3.0))


async def disturb(server: Server, draw: random.Random) -> None:
    """Stall the store, or have it forget who leads."""
    while True:
        await asyncio.sleep(draw.uniform(0.2, 1.0))
        if draw.random() < 0.5:
            await asyncio.to_thread(server.call, "DEL", "prfaas:{control}:leader")
            continue
        server.freeze()
        try:
            await asyncio.sleep(draw.uniform(0.1, RULES.within))
        finally:
            server.thaw()


@pytest.mark.long
async def test_what_a_store_accepts_is_in_the_order_of_terms_each_of_one_process() -> None:
    """Through kills, sleeps in the midst of a write, stalls and losses of the lease."""
    draw = random.Random(7)
    with redis_server() as server:
        tasks = [asyncio.create_task(live_and_die(server.url, name, draw)) for name in "abc"]
        tasks.append(asyncio.create_task(disturb(server, draw)))
        async with join(server.url) as observer:
            try:
                async with asyncio.timeout(120):
                    while len(await observer.state.records(WRITES)) < WRITES:
                        assert not any(task.done() for task in tasks)
                        await asyncio.sleep(0.2)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            records = [each.decode().split() for each in await observer.state.records(1000)]
    terms = [int(term) for term, _ in reversed(records)]
    owners: dict[str, set[str]] = defaultdict(set)
    for term, owner in records:
        owners[term].add(owner)
    assert terms == sorted(terms)
    assert all(len(names) == 1 for names in owners.values())
    assert len(owners) > 3
