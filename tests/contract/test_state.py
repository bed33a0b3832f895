"""Every store of documents against the suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from router.adapters.memory_state import MemoryState
from router.domain.errors import StoreAway
from router.ports import StateStore
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
