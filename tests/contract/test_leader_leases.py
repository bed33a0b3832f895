"""Every store of the leader's lease against the suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from tests.contract.leader_suite import LIFE, LeaderSuite, Parts
from tests.fakes.clocks import FakeClock
from tests.fakes.leader_stores import LeaderStore
from tests.fakes.redis_servers import Server, redis_server
from tests.fakes.shared_stores import join


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


class TestRedisLeaderLease(LeaderSuite):
    """A real Redis, whose own clock ends leases."""

    @pytest.fixture
    async def parts(self, redis: Server) -> AsyncIterator[Parts]:
        redis.call("FLUSHALL")
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(join(redis.url))
            two = await stack.enter_async_context(join(redis.url))
            yield Parts(
                one.leader_lease("a", LIFE), two.leader_lease("b", LIFE), one.state, asyncio.sleep
            )
