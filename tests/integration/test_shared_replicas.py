"""Two whole gateways on one Redis: decode slots of all, and responses that either of them made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.adapters.store.keys import StoreKeys
from router.adapters.store.origins import RedisOrigins
from router.service.stored_responses import Origin
from tests.fakes.live_engines import completed
from tests.fakes.redis_servers import Server, redis_server
from tests.fakes.scripted_engine import Until, json_answer
from tests.fakes.shared_stores import join, until
from tests.fakes.systems import MODEL, System, scripted_system, serve_gateway

RESPONSES = "/v1/responses"


@pytest.fixture
def redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@asynccontextmanager
async def two_gateways(
    directory: Path, redis: Server, **changes: object
) -> AsyncIterator[tuple[System, System]]:
    store = {"url": redis.url, "timeout_ms": 1000}
    async with (
        scripted_system(directory, store=store, **changes) as one,  # type: ignore[arg-type]
        serve_gateway(directory / "prfaas.yaml", engines=one.engines) as two,
    ):
        yield one, two


async def test_r63_an_instance_gets_no_more_than_it_decodes(tmp_path: Path, redis: Server) -> None:
    """However many ask both gateways at once, no more than the limit decode; all are answered."""
    model = {"decode": {"max_concurrency": 3}}
    async with two_gateways(tmp_path, redis, model=model) as systems:
        engine = systems[0].engine("d0")
        gate = asyncio.Event()
        engine.reply([Until(gate), *completed("d0", MODEL)])

        async def shared() -> bool:
            return redis.call("HLEN", "prfaas:{fleet}:slots") == 2

        await until(shared)
        running = [asyncio.create_task(system.complete(10)) for _ in range(4) for system in systems]
        await engine.called(3)
        await asyncio.sleep(0.5)
        assert sum(call.path.endswith("completions") for call in engine.calls) == 3
        gate.set()
        assert [(await task).status_code for task in running] == [200] * 8


async def test_either_gateway_reads_what_the_other_made(tmp_path: Path, redis: Server) -> None:
    """By id, and to continue it; what nobody made is 404, also while the store is away."""
    async with two_gateways(tmp_path, redis, names="d0 d1") as (one, two):
        answer = json_answer({"id": "resp_7", "object": "response", "model": MODEL, "output": []})
        for name in ("d0", "d1"):
            one.engine(name).on(RESPONSES, answer)
            one.engine(name).on(f"{RESPONSES}/resp_7", answer)
        asked = {"model": MODEL, "input": "hello"}
        made = await one.client.post(RESPONSES, json=asked)
        home = made.headers["x-prfaas-decode"]

        async def known() -> bool:
            return (await two.client.get(f"{RESPONSES}/resp_7")).status_code == 200

        await until(known)
        continued = await two.client.post(
            RESPONSES, json={**asked, "previous_response_id": "resp_7"}
        )
        assert continued.headers["x-prfaas-decode"] == home
        assert (await two.client.get(f"{RESPONSES}/resp_8")).status_code == 404
        redis.stop()
        assert (await two.client.get(f"{RESPONSES}/resp_8")).status_code == 404
        assert (await two.client.get(f"{RESPONSES}/resp_7")).status_code == 200


async def test_a_response_is_its_tenants_and_ends(redis: Server) -> None:
    """Under another tenant it is nobody's, whatever the names are made of; the key expires."""
    async with join(redis.url) as peer:
        origins = RedisOrigins(peer.store, StoreKeys())
        writing = asyncio.create_task(origins.run())
        origin = Origin("d0", "tiny")
        origins.put("a:b", "c", origin)

        async def written() -> bool:
            return await origins.get("a:b", "c") == origin

        await until(written)
        assert await origins.get("a", "b:c") is None
        (key,) = redis.call("KEYS", "*")  # type: ignore[misc]
        assert 0 < redis.call("TTL", key) <= 24 * 3600  # type: ignore[operator]
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
