"""A whole system over a real Redis: engines, an ingest process, a gateway, as processes."""

from __future__ import annotations

import time
from pathlib import Path

import httpx

from tests.fakes.redis_servers import redis_server
from tests.fakes.replays import GROUPS, local_system, replay_trace

REQUESTS = 60


def test_beliefs_read_from_redis_are_what_the_engines_found(tmp_path: Path) -> None:
    """Requests one after another: where the gateway was told in time, it was told the truth."""
    with (
        redis_server() as redis,
        local_system(tmp_path, GROUPS["recurrent"], time_scale=5000, store=redis.url) as system,
    ):
        replayed = replay_trace(system, tmp_path, "--sequential", limit=REQUESTS)
        agreement = replayed.report["agreement"]
        assert replayed.report["errors"] == {}
        assert agreement["equal"] == agreement["compared"] > 0
        assert replayed.report["reported_cached"] > 0
        state = httpx.get(f"{system.url}/admin/v1/state", trust_env=False).json()
        assert state["store"] == {"kind": "redis", "up": True}


def test_r58_requests_are_served_while_redis_is_frozen(tmp_path: Path) -> None:
    """No request fails, nothing cached is invented, and the store is told to be away and back."""
    with (
        redis_server() as redis,
        local_system(tmp_path, GROUPS["dense"], time_scale=5000, store=redis.url) as system,
    ):
        replay_trace(system, tmp_path, "--sequential", limit=10)
        redis.freeze()
        try:
            frozen = replay_trace(system, tmp_path, "--sequential", limit=20)
            assert frozen.report["errors"] == {}
            assert frozen.report["believed_known"] == 0
        finally:
            redis.thaw()
        with httpx.Client(base_url=system.url, trust_env=False) as client:
            until_store_is_up(client)
        assert replay_trace(system, tmp_path, "--sequential", limit=10).report["errors"] == {}


def until_store_is_up(client: httpx.Client) -> None:
    """Send requests until look-ups reach the store again: its breaker asks now and then."""
    body = {"model": "demo", "prompt": list(range(300, 500)), "max_tokens": 1}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert client.post("/v1/completions", json=body, timeout=10).status_code == 200
        if "prfaas_store_up 1.0" in client.get("/metrics").text:
            return
    raise AssertionError("look-ups did not reach the store again")
