"""Both stores of leases against the suite, and what is Redis's own."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from kvmeta.backends.redis_leases import RedisLeases
from kvmeta.leases import LeaseStore, LeaseStoreAway, MemoryLeases
from tests.contract.lease_suite import TTL, LeaseSuite, PassTime
from tests.fakes.clocks import FakeClock


class TestMemoryLeases(LeaseSuite):
    """Leases within one process."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def leases(self, clock: FakeClock) -> LeaseStore:
        return MemoryLeases(clock=clock.monotonic)

    @pytest.fixture
    def pass_time(self, clock: FakeClock) -> PassTime:
        async def advance(seconds: float) -> None:
            clock.advance(seconds)

        return advance


@pytest.fixture(scope="module")
def redis_socket() -> Iterator[Path]:
    """A real Redis on a Unix socket: no port to collide on."""
    with tempfile.TemporaryDirectory(prefix="leases-") as directory:
        path = Path(directory) / "redis.sock"
        arguments = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", directory]
        with subprocess.Popen(  # our own arguments
            ["redis-server", *arguments],  # wherever the system has it
            stdout=subprocess.DEVNULL,
        ) as server:
            try:
                yield path
            finally:
                server.terminate()


@pytest.fixture
async def client(redis_socket: Path) -> AsyncIterator[Redis]:
    client = Redis(unix_socket_path=str(redis_socket))
    async with asyncio.timeout(10):
        while True:
            try:
                await client.flushall()
                break
            except OSError:
                await asyncio.sleep(0.02)
            except Exception:  # noqa: BLE001  # redis wraps what the socket says until it is there
                await asyncio.sleep(0.02)
    yield client
    await client.aclose()


class TestRedisLeases(LeaseSuite):
    """Leases in a real Redis, whose own clock ends them."""

    @pytest.fixture
    def leases(self, client: Redis) -> LeaseStore:
        return RedisLeases(client, prefix="t:l:")

    @pytest.fixture
    def pass_time(self) -> PassTime:
        async def wait(seconds: float) -> None:
            await asyncio.sleep(seconds)

        return wait

    async def test_every_key_expires(self, leases: LeaseStore, client: Redis) -> None:
        """Nothing is left behind by a deployment that is gone."""
        await leases.announce("a", TTL)
        await leases.acquire("p0/0", "a", TTL)
        keys = await client.keys("*")
        assert sorted(keys) == [b"t:l:{members}", b"t:l:{p0/0}", b"t:l:{p0/0}:fence"]
        assert all([await client.pttl(key) > 0 for key in keys])

    async def test_a_store_that_is_away_says_so(self, redis_socket: Path) -> None:
        """No answer is its own error, within the time set: neither granted nor lost."""
        nowhere = Redis(unix_socket_path=f"{redis_socket}.none")
        leases = RedisLeases(nowhere, prefix="t:l:", timeout_seconds=0.5)
        for call in (
            leases.announce("a", TTL),
            leases.acquire("p0/0", "a", TTL),
            leases.renew("p0/0", "a", 1, TTL),
            leases.release("p0/0", "a", 1),
            leases.leave("a"),
        ):
            with pytest.raises(LeaseStoreAway):
                await call
        await nowhere.aclose()
