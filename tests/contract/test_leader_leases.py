"""Every store of the leader's lease against the suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from router.adapters.store.keys import StoreKeys
from router.adapters.store.leases import RedisLeaderLease
from tests.contract.leader_suite import LIFE, LeaderSuite, Parts
from tests.fakes.clocks import FakeClock
from tests.fakes.leader_stores import LeaderStore
from tests.fakes.redis_servers import Cluster, Server, redis_cluster, redis_server
from tests.fakes.shared_stores import Peer, join


class TestLeaderStore(LeaderSuite):
    """The fake that laws are tested on."""

    @pytest.fixture
    def parts(self) -> Parts:
        clock = FakeClock()
        store = LeaderStore(clock)

        async def advance(seconds: float) -> None:
            clock.advance(seconds)

        return Parts(store.seat("a", life=LIFE), store.seat("b", life=LIFE), store, advance)


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with redis_cluster() as servers:
        yield servers


class TestRedisLeaderLease(LeaderSuite):
    """A real Redis, whose own clock ends leases."""

    @pytest.fixture
    async def parts(self, redis: Server) -> AsyncIterator[Parts]:
        redis.call("FLUSHALL")
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(join(redis.url))
            two = await stack.enter_async_context(join(redis.url))
            yield Parts(_seat(one, "a"), _seat(two, "b"), one.state, asyncio.sleep)


async def test_a_cluster_keeps_lease_and_documents_together(cluster: Cluster) -> None:
    """The fence looks at the lease in the same step, so both are on one shard."""
    async with join(cluster.url) as peer:
        await peer.state.read("orders")  # redis-py finds the nodes by its first command
        suite = LeaderSuite()
        parts = Parts(_seat(peer, "a"), _seat(peer, "b"), peer.state, asyncio.sleep)
        await suite.test_without_a_lease_no_fence_holds(parts)
        await suite.test_only_the_leader_writes_behind_a_fence(parts)


def _seat(peer: Peer, owner: str) -> RedisLeaderLease:
    return RedisLeaderLease(peer.store, StoreKeys(), owner=owner, name=owner, life=LIFE)
