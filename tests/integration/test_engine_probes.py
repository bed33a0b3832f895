"""Probes of engines over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from router.adapters.engine_http import HttpEngineClient
from router.adapters.probes import HttpProbe
from router.domain.topology import Instance, Role
from router.service.probing import ProbeOutcome
from tests.fakes.scripted_engine import Hold, RefusedPort, ScriptedEngine, answer

METRICS = b"""\
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_waiting{engine="0"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
"""


@pytest.fixture
async def client() -> AsyncIterator[HttpEngineClient]:
    client = HttpEngineClient()
    yield client
    await client.aclose()


def engine_at(url: str) -> Instance:
    return Instance("e0", "east", url, Role.DECODE, api_key="secret")


async def test_a_probe_tells_health_and_queue(client: HttpEngineClient) -> None:
    """An engine that is well is asked for its queue, with its own key, on one connection."""
    async with ScriptedEngine(answer(200, b"")) as engine:
        engine.on("/metrics", answer(200, METRICS))
        outcome = await HttpProbe(client, 30.0).probe(engine_at(f"{engine.url}/"), at=7.0)
        assert outcome.healthy
        reading = outcome.reading
        assert reading is not None
        assert (reading.at, reading.running, reading.waiting) == (7.0, 3, 2)
        assert reading.kv_usage == 0.25
        health, metrics = engine.requests
        assert (health.path, metrics.path) == ("/health", "/metrics")
        assert metrics.header("authorization") == "Bearer secret"


async def test_what_a_probe_does_not_hear(client: HttpEngineClient) -> None:
    """A refusal, an address that is none and silence are no answer; a status is one."""
    probe = HttpProbe(client, 0.2)
    silent = ProbeOutcome(healthy=False, answered=False)
    with RefusedPort() as refused:
        assert await probe.probe(engine_at(refused), 0.0) == silent
    assert await probe.probe(engine_at("nowhere"), 0.0) == silent
    async with ScriptedEngine([Hold()]) as engine:
        assert await probe.probe(engine_at(engine.url), 0.0) == silent
    async with ScriptedEngine(answer(503, b"")) as engine:
        assert await probe.probe(engine_at(engine.url), 0.0) == ProbeOutcome(healthy=False)
    async with ScriptedEngine(answer(200, b"")) as engine:
        engine.on("/metrics", answer(404, b""))
        assert await probe.probe(engine_at(engine.url), 0.0) == ProbeOutcome(healthy=True)
