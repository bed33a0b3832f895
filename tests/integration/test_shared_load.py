"""Two whole gateways on one Redis see each other's dispatches, bookings and telemetry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.adapters.store.keys import StoreKeys
from router.adapters.store.loads import RedisLoads
from tests.fakes.live_engines import LiveEngine, completed
from tests.fakes.redis_servers import Server, redis_server
from tests.fakes.scripted_engine import Until
from tests.fakes.shared_stores import join, until
from tests.fakes.systems import MODEL, Document, System, scripted_system, serve_gateway


@pytest.fixture
def redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@asynccontextmanager
async def two_gateways(
    directory: Path, redis: Server, **changes: object
) -> AsyncIterator[tuple[System, System]]:
    store = {"url": redis.url, "timeout_ms": 1000}
    names = "p0 p1 d0 d1 f0"
    async with (
        scripted_system(directory, names=names, store=store, **changes) as one,
        serve_gateway(directory / "prfaas.yaml", engines=one.engines) as two,
    ):
        yield one, two


def hold(engine: LiveEngine) -> asyncio.Event:
    """Let an engine answer only once the event is set."""
    gate = asyncio.Event()
    engine.reply([Until(gate), *completed(engine.name, MODEL)])
    return gate


async def instance(system: System, name: str) -> Document:
    document: Document = await system.order("GET", f"instances/{name}")
    return document


async def test_each_gateway_counts_what_the_other_sent(tmp_path: Path, redis: Server) -> None:
    """A decode that runs for one sends the other's to the other instance, until it ends."""
    async with two_gateways(tmp_path, redis) as (one, two):
        gate = hold(one.engine("d0"))
        running = asyncio.create_task(one.complete(50))
        await one.engine("d0").called(1)

        async def seen() -> bool:
            return bool((await instance(two, "d0"))["peers_inflight"])

        await until(seen)
        assert (await two.complete(50)).headers["x-prfaas-decode"] == "d1"
        assert (await instance(one, "d0"))["peers_inflight"] == 0
        gate.set()
        assert (await running).status_code == 200

        async def forgotten() -> bool:
            return not (await instance(two, "d0"))["peers_inflight"]

        await until(forgotten)
        assert (await two.complete(50)).headers["x-prfaas-decode"] == "d0"


async def test_telemetry_and_bookings_reach_both(tmp_path: Path, redis: Server) -> None:
    """What an agent tells one gateway, and what is booked through it, the other knows soon."""
    async with two_gateways(tmp_path, redis) as (one, two):
        telemetry = {"egress_gbps": 0.5, "available_gbps": 0.6}
        await one.order("POST", "links/west-east/telemetry", telemetry)

        async def told() -> bool:
            return bool((await two.order("GET", "links/west-east"))["telemetry"])

        await until(told)
        link = await two.order("GET", "links/west-east")
        assert link["telemetry"]["available_gbps"] == pytest.approx(0.6)
        assert link["utilization"] == pytest.approx(0.5 / 0.6)


async def test_a_killed_process_is_forgotten_by_its_lease(redis: Server) -> None:
    """Its report counts for the lease; whoever leaves takes his back; no key stays behind."""
    async with join(redis.url) as peer:
        boards = [
            RedisLoads(peer.store, StoreKeys(), name, lease=lease)
            for name, lease in (("a", 30), ("b", 1), ("c", 30))
        ]
        for board, report in zip(boards, (b"A", b"B {1}", b"C"), strict=True):
            await board.exchange(report)
        assert set(await boards[0].exchange(b"A")) <= {b"B {1}", b"C"}
        await boards[2].exchange(b"")

        async def alone() -> bool:
            return await boards[0].exchange(b"A") == []

        await until(alone)
        assert redis.call("HKEYS", "prfaas:{fleet}:loads") == [b"a"]
        assert 0 < redis.call("PTTL", "prfaas:{fleet}:loads") <= 30_000  # type: ignore[operator]
