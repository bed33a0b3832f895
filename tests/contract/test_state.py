"""Every store of documents against the suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from router.adapters.memory_state import MemoryState
from router.domain.errors import StoreAway
from router.ports import StateStore
from tests.contract.leader_suite import LIFE, LeaderSuite, Parts
from tests.contract.state_suite import StateSuite
from tests.fakes.redis_servers import Cluster, Server, redis_cluster, redis_server
from tests.fakes.shared_stores import join


class TestMemoryState(StateSuite):
    """Documents within one process."""

    @pytest.fixture
    def state(self) -> StateStore:
        return MemoryState()


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with redis_cluster() as servers:
        yield servers


class TestRedisState(StateSuite):
    """Documents in a real Redis."""

    @pytest.fixture
    async def state(self, redis: Server) -> AsyncIterator[StateStore]:
        redis.call("FLUSHALL")
        async with join(redis.url) as peer:
            yield peer.state


class TestClusterState(StateSuite):
    """Documents in a Redis Cluster."""

    @pytest.fixture
    async def state(self, cluster: Cluster) -> AsyncIterator[StateStore]:
        for server in cluster.servers:
            server.call("FLUSHALL")
        async with join(cluster.url) as peer:
            await peer.state.read("orders")  # redis-py finds the nodes by its first command
            yield peer.state


async def test_a_cluster_keeps_lease_and_documents_together(cluster: Cluster) -> None:
    """The fence looks at the lease in the same step, so both are on one shard."""
    for server in cluster.servers:
        server.call("FLUSHALL")
    async with join(cluster.url) as peer:
        await peer.state.read("orders")  # redis-py finds the nodes by its first command
        suite = LeaderSuite()
        parts = Parts(
            peer.leader_lease("a", LIFE), peer.leader_lease("b", LIFE), peer.state, asyncio.sleep
        )
        await suite.test_without_a_lease_no_fence_holds(parts)
        await suite.test_only_the_leader_writes_behind_a_fence(parts)


async def test_a_store_that_is_away_says_so(redis: Server) -> None:
    """Neither written nor lost: nothing is known."""
    async with join(redis.url, budget=0.2) as peer:
        redis.freeze()
        try:
            for call in (
                peer.state.read("orders"),
                peer.state.write("orders", b"x", after=0),
                peer.state.records(1),
            ):
                with pytest.raises(StoreAway):
                    await call
        finally:
            redis.thaw()
