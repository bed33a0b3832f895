"""Tenants' limits over two whole gateways on one Redis, and while it is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.redis_servers import Server, redis_server
from tests.fakes.systems import System, scripted_system, serve_gateway

BEARER = {"authorization": "Bearer sk-acme"}


@pytest.fixture
def redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@asynccontextmanager
async def two_gateways(
    directory: Path, redis: Server, **limits: int
) -> AsyncIterator[tuple[System, System]]:
    """Two replicas of one configuration, over the same scripted engines."""
    tenants: list[dict[str, Any]] = [{"name": "acme", "api_keys": ["sk-acme"], **limits}]
    store = {"url": redis.url, "timeout_ms": 500}
    async with (
        scripted_system(directory, store=store, tenants=tenants) as one,
        serve_gateway(directory / "prfaas.yaml", engines=one.engines) as two,
    ):
        yield one, two


async def test_replicas_count_a_tenant_once(tmp_path: Path, redis: Server) -> None:
    """Of a rate just the limit passes through both, and headers tell what is left of it."""
    async with two_gateways(tmp_path, redis, requests_per_minute=4) as systems:
        answers = [
            await system.complete(10, headers=BEARER) for _ in range(2) for system in systems
        ]
        assert [answer.status_code for answer in answers] == [200] * 4
        remaining = [answer.headers["x-ratelimit-remaining-requests"] for answer in answers]
        assert remaining == ["3", "2", "1", "0"]
        for system in systems:
            refused = await system.complete(10, headers=BEARER)
            assert refused.status_code == 429
            assert 1 <= int(refused.headers["retry-after"]) <= 15


async def test_r58_limits_do_not_fail_requests(tmp_path: Path, redis: Server) -> None:
    """Killed, the store costs no request; each gateway then counts by itself."""
    async with two_gateways(tmp_path, redis, requests_per_minute=6, max_concurrency=50) as systems:
        for system in systems:
            assert (await system.complete(10, headers=BEARER)).status_code == 200
        redis.stop()
        answers = await asyncio.gather(
            *(systems[0].complete(10, headers=BEARER) for _ in range(10))
        )
        statuses = sorted(answer.status_code for answer in answers)
        assert set(statuses) == {200, 429}
        assert statuses.count(200) in (4, 5)
