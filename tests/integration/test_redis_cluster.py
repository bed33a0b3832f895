"""A Cluster that loses a shard, and TLS: what a look-up answers, and that it comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from kvmeta.backends.breakers import BreakerRules
from kvmeta.backends.redis import RedisIndex, open_redis_index
from kvmeta.events import Event
from kvmeta.hashing import prompt_blocks
from kvmeta.types import CacheBelief, CacheLayout, SourceId, SourceState
from tests.fakes.kv_events import Engine, batch, removed
from tests.fakes.redis_servers import free_port, redis_cluster, redis_server

LAYOUT = CacheLayout("model@1", 4)
A = SourceId("engine-a")
LONG = list(range(4 * 1_000))  # sixteen pages: some on every shard
LOCALHOST = Path(__file__).parent.parent / "fakes" / "localhost.pem"


async def belief(index: RedisIndex, tokens: Sequence[int]) -> CacheBelief:
    prompt = prompt_blocks(LAYOUT, [*tokens, 9])
    return (await index.look_up(prompt, [A]))[A]


async def attach(index: RedisIndex, *events: Event) -> None:
    await index.register(A, LAYOUT)
    await index.begin_epoch(A, SourceState.SYNCED)
    await index.apply(A, 0, batch(*events))


async def test_r58_a_frozen_shard_makes_unknown_and_comes_back() -> None:
    """Two shards answer, one does not: nothing is known, nothing raises, nothing is false."""
    engine = Engine()
    with redis_cluster() as cluster:
        writer = open_redis_index(cluster.url, budget_seconds=5.0)
        reader = open_redis_index(
            cluster.url, budget_seconds=0.3, breaker=BreakerRules(failures=2, cooldown_seconds=0.2)
        )
        await attach(writer, engine.stored(LONG))
        assert await belief(writer, LONG) == CacheBelief(len(LONG), SourceState.SYNCED)
        frozen = cluster.servers[2]
        frozen.freeze()
        for _ in range(4):
            told = await belief(reader, LONG)
            assert told == CacheBelief.unknown()
        frozen.thaw()
        now = asyncio.get_running_loop().time
        began = now()
        while (await belief(reader, LONG)).tokens != len(LONG):
            assert now() - began < 20
            await asyncio.sleep(0.05)
        await writer.apply(A, 1, batch(removed(engine.labels(LONG)[500:])))
        while await belief(reader, LONG) != CacheBelief(2_000, SourceState.SYNCED):
            assert now() - began < 30
            await writer.keep_up()
            await asyncio.sleep(0.05)
        await writer.remove_instance(A.instance)
        await writer.keep_up()
        left = [key for one in cluster.servers for key in one.client().scan_iter()]
        assert not [key for key in left if b"engine-a" in key or key.endswith((b"}p", b"}o"))]
        await writer.close()
        await reader.close()


async def test_tls_with_its_own_authority() -> None:
    """`rediss://` checks the server against the file that the URL names."""
    port = free_port()
    lines = (
        f"tls-port {port}",
        f"tls-cert-file {LOCALHOST}",
        f"tls-key-file {LOCALHOST}",
        f"tls-ca-cert-file {LOCALHOST}",
        "tls-auth-clients no",
    )
    with redis_server(*lines):
        trusting = open_redis_index(f"rediss://127.0.0.1:{port}?ca={LOCALHOST}", budget_seconds=5.0)
        await attach(trusting, Engine().stored(LONG))
        assert (await belief(trusting, LONG)).tokens == len(LONG)
        await trusting.close()
        wary = open_redis_index(f"rediss://127.0.0.1:{port}", budget_seconds=5.0)
        assert await belief(wary, LONG) == CacheBelief.unknown()
        await wary.close()
