"""Both ledgers of tenants' limits against the suite, and what is the shared one's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from router.control.limits import LimitKind, TenantLimits
from router.service.limits import LimitLedger, MemoryLimits
from tests.contract.limit_suite import LimitSuite, PassTime, run_one
from tests.fakes.clocks import FakeClock
from tests.fakes.redis_servers import Cluster, Server, redis_cluster, redis_server
from tests.fakes.shared_stores import Peer, join, until


async def wait(seconds: float) -> None:
    await asyncio.sleep(seconds)


class TestMemoryLimits(LimitSuite):
    """Limits within one process."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def ledger(self, clock: FakeClock) -> LimitLedger:
        return MemoryLimits(clock)

    @pytest.fixture
    def pass_time(self, clock: FakeClock) -> PassTime:
        async def advance(seconds: float) -> None:
            clock.advance(seconds)

        return advance


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with redis_cluster() as servers:
        yield servers


class TestRedisLimits(LimitSuite):
    """Limits in a real Redis, by its own clock."""

    @pytest.fixture
    async def ledger(self, redis: Server) -> AsyncIterator[LimitLedger]:
        redis.call("FLUSHALL")
        async with join(redis.url) as peer:
            yield peer.limits

    @pytest.fixture
    def pass_time(self) -> PassTime:
        return wait


class TestClusterLimits(LimitSuite):
    """Limits in a Redis Cluster: each script is at home on one shard."""

    @pytest.fixture
    async def ledger(self, cluster: Cluster) -> AsyncIterator[LimitLedger]:
        for server in cluster.servers:
            server.call("FLUSHALL")
        async with join(cluster.url) as peer:
            yield peer.limits

    @pytest.fixture
    def pass_time(self) -> PassTime:
        return wait


async def take(peer: Peer, limits: TenantLimits, count: int) -> int:
    """Return how many of `count` requests at once passed."""
    verdicts = await asyncio.gather(
        *(run_one(peer.limits, "acme", limits, 1) for _ in range(count))
    )
    return sum(verdict.refused is None for verdict in verdicts)


def passing(peer: Peer, limits: TenantLimits) -> Callable[[], Awaitable[bool]]:
    """Return what asks whether one more passes."""

    async def passes() -> bool:
        return await take(peer, limits, 1) == 1

    return passes


async def test_limits_are_exact_over_processes(redis: Server) -> None:
    """Of what three processes ask at once just the limit passes, of every kind."""
    for limits in (
        TenantLimits(concurrency=20),
        TenantLimits(requests=20),
        TenantLimits(tokens=20),
    ):
        redis.call("FLUSHALL")
        async with join(redis.url) as one, join(redis.url) as two, join(redis.url) as three:
            passed = await asyncio.gather(*(take(peer, limits, 15) for peer in (one, two, three)))
        # A rate of 20 a minute lets one more pass every three seconds.
        assert 20 <= sum(passed) <= (20 if limits.concurrency else 24)


async def test_a_killed_process_frees_what_it_held(redis: Server) -> None:
    """Its requests count until its lease ends, those of a living one as long as they run."""
    redis.call("FLUSHALL")
    limits = TenantLimits(concurrency=4)
    async with join(redis.url, lease=1.2) as alive, join(redis.url, lease=1.2) as killed:
        assert await take(alive, limits, 2) == 2
        began = time.monotonic()
        assert await take(killed, limits, 2) == 2
        killed.kill()
        passed = await take(alive, limits, 1)
        assert passed == 0 or time.monotonic() - began > 1.0
        await until(passing(alive, limits))
    assert redis.call("ZCARD", "prfaas:limits:{acme}:running") == 0


async def test_every_key_ends_by_itself(redis: Server) -> None:
    """Nothing is left behind by tenants that stopped asking, and no name stands as it is."""
    redis.call("FLUSHALL")
    async with join(redis.url) as peer:
        await run_one(peer.limits, "a b", TenantLimits(5, 5, 5), 1)
        keys = redis.call("KEYS", "*")
        assert isinstance(keys, list)
        assert sorted(keys) == [b"prfaas:limits:{a%20b}:buckets", b"prfaas:limits:{a%20b}:running"]
        assert all(0 < redis.call("PTTL", key) <= 61_000 for key in keys)  # type: ignore[operator]


async def test_requests_pass_while_the_store_is_away(redis: Server) -> None:
    """Each process goes on by itself, from what it last knew, and waits for nobody."""
    redis.call("FLUSHALL")
    limits = TenantLimits(requests=10, concurrency=8)
    async with join(redis.url, budget=0.2) as one, join(redis.url, budget=0.2) as two:
        assert await take(one, limits, 2) == 2
        assert await take(two, limits, 4) == 4
        redis.freeze()
        try:
            for peer, passed in ((one, 8), (two, 4)):
                assert await take(peer, limits, 12) <= passed
            assert one.store.is_away
            started = asyncio.get_running_loop().time()
            await take(one, TenantLimits(tokens=1000), 100)
            assert asyncio.get_running_loop().time() - started < 10
        finally:
            redis.thaw()

        async def back() -> bool:
            await take(one, TenantLimits(tokens=10_000_000), 1)
            return not one.store.is_away

        await until(back)


async def test_what_is_held_comes_back_after_a_flush(redis: Server) -> None:
    """Requests that still run are counted again by the next renewal of their leases."""
    redis.call("FLUSHALL")
    limits = TenantLimits(concurrency=3)
    async with join(redis.url, lease=1.2) as one, join(redis.url, lease=1.2) as two:
        assert await take(one, limits, 3) == 3
        redis.call("FLUSHALL")

        async def counted() -> bool:
            return redis.call("ZCARD", "prfaas:limits:{acme}:running") == 3

        await until(counted)
        assert await take(two, limits, 1) == 0


async def test_a_client_that_leaves_while_it_is_charged_holds_nothing(redis: Server) -> None:
    """Whatever the store made of the call that was given up, the place is free."""
    redis.call("FLUSHALL")
    limits = TenantLimits(concurrency=1)
    async with join(redis.url) as peer:
        peer.limits.enter("acme", limits)
        charging = asyncio.create_task(peer.limits.charge("acme", limits, 1))
        await asyncio.sleep(0)
        charging.cancel()
        await asyncio.gather(charging, return_exceptions=True)
        peer.limits.leave("acme")
        await until(passing(peer, limits))


async def test_what_is_known_to_be_over_a_limit_is_refused_without_asking(redis: Server) -> None:
    """What others used counts at the door as soon as an answer told of it."""
    redis.call("FLUSHALL")
    limits = TenantLimits(requests=2)
    async with join(redis.url) as one, join(redis.url) as two:
        assert await take(one, limits, 2) == 2
        assert (await run_one(two.limits, "acme", limits, 1)).refused is not None
        refused = two.limits.enter("acme", limits).refused
        assert refused is not None
        assert refused.kind is LimitKind.REQUESTS
