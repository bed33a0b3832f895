"""A cluster's LMCache pool beside the index: only what is placed whole, for whom it is placed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvmeta.pools.lmcache import PoolShape
from router.adapters.clocks import SystemClock
from router.adapters.engine_http import HttpEngineClient
from router.adapters.lmcache import LmcachePool, PoolAddress
from router.control.health import BreakerRules
from router.service.pools import PoolPrompt
from router.settings import SettingsError, load
from tests.fakes.lmcache_coordinator import LmcacheCoordinator, Stored
from tests.fakes.scripted_engine import Hold, Script, json_answer
from tests.fakes.systems import (
    System,
    describe,
    fresh_ids,
    scripted_system,
    write_configuration,
)

CHUNK = 16
SHAPE = PoolShape(chunk_tokens=CHUNK)


@asynccontextmanager
async def pooled(
    coordinator: LmcacheCoordinator, *, shape: PoolShape = SHAPE, timeout: float = 1.0
) -> AsyncIterator[LmcachePool]:
    """The adapter over a live coordinator."""
    client = HttpEngineClient(max_connections=4)
    address = PoolAddress("east/lmcache", coordinator.url, "tiny", coordinator.world_size, timeout)
    try:
        yield LmcachePool(
            client,
            address,
            shape,
            clock=SystemClock(),
            breaker=BreakerRules(failures=3, cooldown=60),
        )
    finally:
        await client.aclose()


async def held(pool: LmcachePool, tokens: list[int], salt: str | None = None) -> Mapping[str, int]:
    return await pool.look_up(PoolPrompt(tokens, salt), ["s0", "s1"])


async def test_the_longest_run_of_whole_chunks_counts() -> None:
    """From the first chunk on, to the first that is missing; a tail that is no chunk is nothing."""
    tokens = fresh_ids(5 * CHUNK + 7)
    async with LmcacheCoordinator() as coordinator, pooled(coordinator) as pool:
        assert await held(pool, tokens) == {"s0": 0, "s1": 0}
        coordinator.store(tokens[: 3 * CHUNK], Stored("s0"))
        coordinator.store(tokens, Stored("s1", tier="l2"))
        assert await held(pool, tokens) == {"s0": 3 * CHUNK, "s1": 5 * CHUNK}


async def test_a_chunk_without_one_of_its_ranks_ends_the_prefix() -> None:
    """Listed is not placed: every rank of the world has to be there."""
    tokens = fresh_ids(4 * CHUNK)
    async with LmcacheCoordinator(world_size=2) as coordinator, pooled(coordinator) as pool:
        coordinator.store(tokens, Stored("s0"), ranks=[0])
        coordinator.store(tokens[: 2 * CHUNK], Stored("s0"), ranks=[1])
        assert (await held(pool, tokens))["s0"] == 2 * CHUNK


async def test_two_servers_together_are_no_server() -> None:
    """Half of a chunk here and half there can be loaded by nobody, unless they are peers."""
    tokens = fresh_ids(2 * CHUNK)
    async with LmcacheCoordinator(world_size=2) as coordinator:
        coordinator.store(tokens, Stored("s0"), ranks=[0])
        coordinator.store(tokens, Stored("s1"), ranks=[1])
        async with pooled(coordinator) as pool:
            assert await held(pool, tokens) == {"s0": 0, "s1": 0}
        async with pooled(coordinator, shape=replace(SHAPE, any_server=True)) as pool:
            assert await held(pool, tokens) == {"s0": 2 * CHUNK, "s1": 2 * CHUNK}


async def test_an_object_group_that_is_missing_is_not_told_and_still_missed() -> None:
    """What a group lacks is left out of the answer: the declared number of groups tells."""
    tokens = fresh_ids(4 * CHUNK)
    async with LmcacheCoordinator() as coordinator:
        coordinator.store(tokens, Stored("s0"), groups=[0])
        coordinator.store(tokens[: 2 * CHUNK], Stored("s0"), groups=[1])
        for groups, expected in ((2, 2), (3, 0)):
            async with pooled(coordinator, shape=replace(SHAPE, object_groups=groups)) as pool:
                assert (await held(pool, tokens))["s0"] == expected * CHUNK


async def test_a_group_that_shows_up_undeclared_is_needed_too() -> None:
    """One chunk in a second group proves that there is one."""
    tokens = fresh_ids(4 * CHUNK)
    async with LmcacheCoordinator() as coordinator, pooled(coordinator) as pool:
        coordinator.store(tokens, Stored("s0"), groups=[0])
        coordinator.store(tokens[:CHUNK], Stored("s0"), groups=[1])
        assert (await held(pool, tokens))["s0"] == CHUNK


async def test_a_shared_backend_serves_every_server() -> None:
    """What lies in a pool of the fleet counts whoever stored it; other tiers only where counted."""
    tokens = fresh_ids(2 * CHUNK)
    async with LmcacheCoordinator() as coordinator:
        coordinator.store(tokens, Stored("elsewhere", tier="l2", shared=True))
        async with pooled(coordinator) as pool:
            assert await held(pool, tokens) == {"s0": 2 * CHUNK, "s1": 2 * CHUNK}
        async with pooled(coordinator, shape=replace(SHAPE, tiers=frozenset({"l1"}))) as pool:
            assert await held(pool, tokens) == {"s0": 0, "s1": 0}


async def test_r51_salts_are_passed_and_keep_tenants_apart() -> None:
    """The salt that engines get goes to the coordinator; another's chunks do not exist for it."""
    tokens = fresh_ids(2 * CHUNK)
    async with LmcacheCoordinator() as coordinator, pooled(coordinator) as pool:
        coordinator.store(tokens, Stored("s0"), salt="t1")
        assert [(await held(pool, tokens, salt))["s0"] for salt in ("t1", "t2", None)] == [32, 0, 0]
        assert [asked["cache_salt"] for asked in coordinator.asked] == ["t1", "t2", ""]


@pytest.mark.parametrize(
    "script",
    [
        json_answer({"detail": "too long"}, 400),
        json_answer({"found_keys": 2, "total_keys": 2}),
        json_answer({"chunks": 2, "results": []}),
        json_answer({"chunks": 9, "results": []}),
        json_answer([]),
        [Hold()],
    ],
    ids=["refused", "counts only", "nothing listed", "other chunks", "no map", "silent"],
)
async def test_what_cannot_be_used_is_no_word_at_all(script: Script) -> None:
    """A pool that errs, hangs or cuts otherwise says nothing; after some of it nobody asks."""
    tokens = fresh_ids(2 * CHUNK)
    async with LmcacheCoordinator() as coordinator, pooled(coordinator, timeout=0.15) as pool:
        coordinator.store(tokens, Stored("s0"))
        coordinator.on("/directory/lookup", script)
        for _ in range(5):
            assert await held(pool, tokens) == {}
        assert len(coordinator.requests) == 3  # then the breaker is open


async def test_a_prompt_without_a_whole_chunk_is_not_asked_for() -> None:
    """Nothing could come of it."""
    async with LmcacheCoordinator() as coordinator, pooled(coordinator) as pool:
        assert await held(pool, fresh_ids(CHUNK - 1)) == {}
        assert coordinator.asked == []


# -- in a whole gateway


def pool(coordinator: LmcacheCoordinator, **changes: object) -> dict[str, Any]:
    return {"kind": "lmcache", "url": coordinator.url, "chunk_size": CHUNK} | changes


@asynccontextmanager
async def system_with_pool(
    directory: Path, coordinator: LmcacheCoordinator, **changes: object
) -> AsyncIterator[System]:
    """A gateway whose home cluster shares a pool."""
    async with scripted_system(
        directory,
        threshold=100,
        pools={"east": pool(coordinator)},
        entries={"p0": {"pool_member": "s0"}},
        **changes,
    ) as system:
        yield system


async def test_a_prompt_that_the_pool_has_stays_home(tmp_path: Path) -> None:
    """What the cluster can load is not uncached: the long prompt goes no further."""
    tokens = fresh_ids(12 * CHUNK)
    async with (
        LmcacheCoordinator() as coordinator,
        system_with_pool(tmp_path, coordinator) as system,
    ):
        cold = await system.complete(tokens)
        coordinator.store(tokens[: 8 * CHUNK], Stored("s0"))
        warm = await system.complete([*tokens, 1])
        latest = (await system.decisions())[0]
        (told,) = (await system.order("GET", "state"))["pools"]
    assert told["answering"]
    assert told["age_seconds"] < 5
    assert cold.headers["x-prfaas-route"] == "prfaas"
    assert warm.headers["x-prfaas-route"] == "local"
    assert warm.headers["x-prfaas-uncached-tokens"] == str(4 * CHUNK + 1)
    assert latest["cache_state"]["east"] == "partial"


async def test_a_prompt_that_the_pool_has_whole_leaves_a_block(tmp_path: Path) -> None:
    """Engines recompute the last token, hence the last block."""
    tokens = fresh_ids(12 * CHUNK)
    async with (
        LmcacheCoordinator() as coordinator,
        system_with_pool(tmp_path, coordinator) as system,
    ):
        coordinator.store(tokens, Stored("s0"))
        answer = await system.complete(tokens)
    assert answer.headers["x-prfaas-uncached-tokens"] == str(CHUNK)


async def test_requests_outlive_their_pool(tmp_path: Path) -> None:
    """With the coordinator gone prompts are routed as if there were none."""
    tokens = fresh_ids(12 * CHUNK)
    async with (
        LmcacheCoordinator() as coordinator,
        system_with_pool(tmp_path, coordinator) as system,
    ):
        coordinator.store(tokens, Stored("s0"))
        await coordinator.stop()
        answer = await system.complete(tokens)
        latest = (await system.decisions())[0]
        (told,) = (await system.order("GET", "state"))["pools"]
    assert told == {"cluster": "east", "model": "tiny", "answering": False, "age_seconds": None}
    assert answer.status_code == 200
    assert answer.headers["x-prfaas-route"] == "prfaas"
    assert latest["cached_tokens"]["east"] is None


async def test_an_adapters_prompt_asks_no_pool(tmp_path: Path) -> None:
    """The pool's keys leave adapters out: what it has is the base model's."""
    tokens = fresh_ids(12 * CHUNK)
    async with (
        LmcacheCoordinator() as coordinator,
        system_with_pool(tmp_path, coordinator, model={"loras": [{"name": "ada"}]}) as system,
    ):
        coordinator.store(tokens, Stored("s0"))
        await system.complete(tokens, model="ada")
        assert coordinator.asked == []


def test_a_pool_slower_than_a_decision_is_refused(tmp_path: Path) -> None:
    """Else every prompt would run out of its time to be decided."""
    clusters = [
        {
            "name": "east",
            "kind": "pd",
            "instances": [],
            "pool": {"url": "http://coordinator:9300", "timeout_ms": 2000},
        }
    ]
    path = write_configuration(tmp_path, describe(clusters, threshold=1, model={}, links=[]))
    with pytest.raises(SettingsError, match=r"pool\.timeout_ms"):
        load(path, {})
