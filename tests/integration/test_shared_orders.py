"""Operators' orders over whole gateways on one Redis: everywhere, lasting, never undone unseen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes.redis_servers import Server, Watched, redis_sentinel, redis_server
from tests.fakes.systems import Document, System, routing, scripted_system, serve_gateway


@pytest.fixture
def redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@asynccontextmanager
async def replicas(
    directory: Path, url: str, **changes: object
) -> AsyncIterator[tuple[System, System]]:
    """Two gateways of one configuration over the same engines."""
    store = {"url": url, "timeout_ms": 1000}
    async with (
        scripted_system(directory, names="p0 p1 d0 d1 f0", store=store, **changes) as one,
        again(directory, one) as two,
    ):
        yield one, two


@asynccontextmanager
async def again(directory: Path, other: System) -> AsyncIterator[System]:
    """One more gateway of the same configuration: another replica, or the next process."""
    async with serve_gateway(directory / "prfaas.yaml", engines=other.engines) as system:
        yield system


async def told(system: System) -> Document:
    """What a gateway says is ordered."""
    state = await system.order("GET", "state")
    return {
        "thresholds": [pair["effective_tokens"] for pair in state["thresholds"]],
        "links": [(each["health"], each["bandwidth_mode"]) for each in state["links"]],
        "policy": (state["policy"]["policy"], state["policy"]["source"]),
        "overrides": [(each["route"], each["tenant"]) for each in state["overrides"]],
        "instances": {each["name"]: (each["state"], each["role"]) for each in state["instances"]},
    }


async def until(condition: Callable[[], Awaitable[bool]], within: float = 60.0) -> None:
    async with asyncio.timeout(within):
        while not await condition():  # noqa: ASYNC110 - it is in another gateway
            await asyncio.sleep(0.02)


async def agree(one: System, two: System) -> Document:
    """Wait until both tell the same; return it."""

    async def alike() -> bool:
        return await told(one) == await told(two)

    await until(alike)
    return await told(one)


async def give_many_orders(system: System) -> None:
    """One order of each kind."""
    await system.order("PUT", "threshold", {"mode": "manual", "tokens": 777})
    await system.order("PUT", "links/west-east", {"health": "down", "capacity_gbps": 5})
    await system.order("PUT", "bandwidth", {"mode": "abundant"})
    await system.order("PUT", "policy", {"policy": "expected"})
    await system.order("PUT", "override", {"route": "local", "ttl_seconds": 600})
    await system.order("PATCH", "instances/p0", {"state": "draining"})
    await system.order("PATCH", "instances/p1", {"role": "decode"})
    await system.order("DELETE", "instances/d1")
    entry = {"name": "d7", "cluster": "east", "url": "http://127.0.0.1:9", "role": "decode"}
    await system.order("POST", "instances", entry)


ORDERED: Document = {
    "thresholds": [777],
    "links": [("down", "abundant")],
    "policy": ("expected", "operator"),
    "overrides": [("local", None)],
    "instances": {
        "p0": ("draining", "prefill"),
        "p1": ("active", "decode"),
        "d0": ("active", "decode"),
        "f0": ("active", "prefill"),
        "d7": ("active", "decode"),
    },
}


async def test_orders_reach_every_gateway_and_outlive_them_all(
    tmp_path: Path, redis: Server
) -> None:
    """In force at once where they were given, soon elsewhere, and after a restart of everything."""
    async with replicas(tmp_path, redis.url) as (one, two):
        before = await told(two)
        await give_many_orders(one)
        assert await told(one) == ORDERED
        assert await agree(one, two) == ORDERED
        assert routing(await two.complete(800)) == ("local", "override")
    async with replicas(tmp_path, redis.url) as (one, two):
        assert await told(one) == await told(two) != before
        await two.order("PUT", "threshold", {"mode": "config"})
        await two.order("PUT", "bandwidth", {"mode": "config"})
        await two.order("DELETE", "override")
        await two.order("PUT", "links/west-east", {"health": "auto", "capacity_gbps": None})
        back = await agree(one, two)
        assert [back[part] for part in ("thresholds", "links", "overrides")] == [
            before[part] for part in ("thresholds", "links", "overrides")
        ]


async def test_orders_are_everywhere_within_a_second(tmp_path: Path, redis: Server) -> None:
    """The best of some orders, for busy machines: each is seen by a poll, four times a second."""
    async with replicas(tmp_path, redis.url) as (one, two):
        took = []
        for tokens in (500, 600, 700):
            await one.order("PUT", "threshold", {"mode": "manual", "tokens": tokens})
            began = time.monotonic()

            async def seen(expected: int = tokens) -> bool:
                return (await told(two))["thresholds"] == [expected]

            await until(seen)
            took.append(time.monotonic() - began)
        assert min(took) < 1.0


async def test_two_operators_do_not_undo_each_other(tmp_path: Path, redis: Server) -> None:
    """Orders of different things at once all hold; a change of what was not seen is 412."""
    async with replicas(tmp_path, redis.url) as (one, two):
        await asyncio.gather(
            one.order("PATCH", "instances/p0", {"state": "draining"}),
            two.order("PATCH", "instances/p1", {"state": "disabled"}),
            one.order("PUT", "bandwidth", {"mode": "scarce"}),
            two.order("PUT", "threshold", {"mode": "manual", "tokens": 42}),
        )
        agreed = await agree(one, two)
        assert (agreed["thresholds"], agreed["instances"]["p0"]) == ([42], ("draining", "prefill"))
        assert agreed["instances"]["p1"] == ("disabled", "prefill")
        seen = (await one.admin("GET", "threshold")).headers["etag"]
        await two.order("PUT", "threshold", {"mode": "manual", "tokens": 43})
        stale = await one.client.put(
            "/admin/v1/threshold", json={"mode": "off"}, headers={"if-match": seen}
        )
        assert stale.status_code == 412
        assert (await agree(one, two))["thresholds"] == [43]
        (latest, *_) = (await one.order("GET", "audit"))["audit"]
        assert (latest["action"], latest["by"]) == ("threshold.set", "loopback")
        assert latest["before"][0]["tokens"] == 42


async def test_r58_a_killed_store_changes_no_orders_and_gets_them_back(tmp_path: Path) -> None:
    """Requests are served, orders stay in force, new ones are 503; an empty store is refilled."""
    with redis_server() as first:
        async with replicas(tmp_path, first.url) as (one, two):
            await give_many_orders(one)
            await agree(one, two)
            first.stop()
            # No look-up was made: the orders' poll tells.
            await one.until(lambda state: not state["store"]["up"], within=20)
            assert (await one.metrics()).total("prfaas_store_up") == 0
            refused = await one.admin("PUT", "threshold", {"mode": "off"})
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            for system in (one, two):
                assert (await system.complete(800)).status_code == 200
                assert await told(system) == ORDERED
            assert (await one.admin("GET", "audit")).status_code == 503
            with redis_server(port=first.port) as second:

                async def written_back() -> bool:
                    return second.call("HGET", "prfaas:{control}:orders", "version") == b"9"

                await until(written_back)
                await two.until(lambda state: state["store"]["up"], within=20)
                await two.order("PUT", "threshold", {"mode": "manual", "tokens": 5})
                assert (await agree(one, two))["thresholds"] == [5]


async def test_a_failover_loses_no_order(tmp_path: Path) -> None:
    """Whatever the new master had: what was in force is in force, and orders go on."""
    with redis_sentinel() as servers:
        async with replicas(tmp_path, servers.url) as (one, two):
            await one.order("PUT", "threshold", {"mode": "manual", "tokens": 10})
            await agree(one, two)
            await asyncio.to_thread(Watched.fail_over, servers)

            async def taken() -> bool:
                order = {"mode": "manual", "tokens": 11}
                assert (await two.complete(5)).status_code == 200
                return (await two.admin("PUT", "threshold", order)).status_code == 200

            await until(taken)
            assert (await agree(one, two))["thresholds"] == [11]
