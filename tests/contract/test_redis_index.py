"""The Redis back end against the suite: one server, a Cluster, and behind a Sentinel."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from kvmeta.backends.memory import MemoryIndex
from kvmeta.backends.redis import RedisIndex, open_redis_index
from kvmeta.events import AllBlocksCleared, Event
from kvmeta.hashing import prompt_blocks
from kvmeta.types import SourceState
from tests.contract.index_model import IndexModel
from tests.contract.index_suite import LAYOUT, A, B, IndexSuite, MakeIndex
from tests.fakes.clocks import FakeClock
from tests.fakes.kv_events import Engine, batch, removed
from tests.fakes.redis_servers import (
    Cluster,
    Server,
    Watched,
    redis_cluster,
    redis_sentinel,
    redis_server,
)

BUDGET_SECONDS = 10.0
"""The suite is about answers, not about time."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with redis_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with redis_sentinel() as running:
        yield running


async def makers(url: str) -> AsyncIterator[MakeIndex]:
    """Every index made has a namespace of its own, and is closed in the end."""
    made: list[RedisIndex] = []

    async def make(*, clock: FakeClock | None = None, **caps: int) -> RedisIndex:
        index = open_redis_index(
            url,
            namespace=f"t{id(made)}-{len(made)}",
            clock=(clock or FakeClock()).monotonic,
            budget_seconds=BUDGET_SECONDS,
            **caps,
        )
        made.append(index)
        return index

    yield make
    for index in made:
        await index.close()


class TestRedisIndex(IndexSuite):
    """One server."""

    @pytest.fixture
    async def make_index(self, server: Server) -> AsyncIterator[MakeIndex]:
        server.call("FLUSHALL")
        async for make in makers(server.url):
            yield make


class TestRedisClusterIndex(IndexSuite):
    """Three primaries."""

    @pytest.fixture
    async def make_index(self, cluster: Cluster) -> AsyncIterator[MakeIndex]:
        for server in cluster.servers:
            server.call("FLUSHALL")
        async for make in makers(cluster.url):
            yield make


class TestRedisSentinelIndex(IndexSuite):
    """The master is found by asking."""

    @pytest.fixture
    async def make_index(self, watched: Watched) -> AsyncIterator[MakeIndex]:
        watched.primary.call("FLUSHALL")
        async for make in makers(watched.url):
            yield make


def model_on(url: str) -> type[IndexModel]:
    """The model of truth, with an index at `url`; each run has a namespace of its own."""
    numbers = itertools.count()

    class RedisIndexModel(IndexModel):
        @staticmethod
        async def make() -> RedisIndex:
            return open_redis_index(
                url,
                namespace=f"model-{next(numbers)}",
                clock=FakeClock().monotonic,
                budget_seconds=BUDGET_SECONDS,
            )

        def teardown(self) -> None:
            assert isinstance(self.index, RedisIndex)
            self.run(self.index.close())
            super().teardown()

    return RedisIndexModel


def test_random_histories_on_one_server(server: Server) -> None:
    """Stores, removals, clears and restarts in any order: the index knows the truth."""
    run_state_machine_as_test(
        model_on(server.url),
        settings=settings(max_examples=100, stateful_step_count=40, deadline=None),
    )


def test_random_histories_on_a_cluster(cluster: Cluster) -> None:
    """The same over three shards, where a batch is several writes."""
    run_state_machine_as_test(
        model_on(cluster.url),
        settings=settings(max_examples=30, stateful_step_count=30, deadline=None),
    )


async def test_r58_a_random_history_goes_on_through_a_failover() -> None:
    """Before, while and after the replica takes over: in the end Redis knows what memory knows."""
    chance = random.Random(58)
    engines = {source: Engine(seed=source.instance) for source in (A, B)}
    memory = MemoryIndex(clock=FakeClock().monotonic)
    prompts = [[number % 7, *range(20 * number, 20 * number + 39)] for number in range(30)]
    with redis_sentinel() as watched:
        index = open_redis_index(watched.url, budget_seconds=BUDGET_SECONDS)
        for each in (index, memory):
            for source in (A, B):
                await each.register(source, LAYOUT)
                await each.begin_epoch(source, SourceState.SYNCED)
        failing_over: asyncio.Task[None] | None = None
        for sequence in range(300):
            source = chance.choice((A, B))
            tokens = chance.choice(prompts)
            engine = engines[source]
            stored = engine.stored(tokens[: 4 * chance.randrange(1, 11)])
            events: list[Event] = [stored]
            if chance.random() < 0.4:
                events = [removed(engine.labels(tokens)[chance.randrange(10) :])]
            elif chance.random() < 0.02:
                events = [AllBlocksCleared()]
            for each in (index, memory):
                await each.apply(source, sequence, batch(*events))
            if sequence == 100:
                failing_over = asyncio.create_task(asyncio.to_thread(watched.fail_over))
            if sequence % 20 == 0:
                await index.keep_up()
        assert failing_over is not None
        await failing_over

        async def agree() -> bool:
            asked = [prompt_blocks(LAYOUT, [*tokens, 9]) for tokens in prompts]
            return [await index.look_up(one, [A, B]) for one in asked] == [
                await memory.look_up(one, [A, B]) for one in asked
            ]

        async with asyncio.timeout(30):
            while not await agree():
                await index.keep_up()
                await asyncio.sleep(0.1)
        await index.close()
