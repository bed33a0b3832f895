"""Shards of the ingest over one index: shared out, taken over, and never two at one source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import yaml

from kvmeta.backends.memory import MemoryIndex
from kvmeta.errors import LeaseLost
from kvmeta.ingest.sharded import LeasedIndex
from kvmeta.leases import LeaseStoreAway, MemoryLeases
from kvmeta.types import CacheLayout, SourceId, SourceReport, SourceState
from router.adapters.clocks import SystemClock
from router.adapters.memory_state import MemoryState
from router.commands.app import run
from router.compose.ingest import IngestShard, build_shard
from router.domain.topology import Instance, Role
from router.service.order_book import ORDERS
from router.service.orders import Orders, encode_orders
from router.settings import Settings, load
from router.settings.reloads import settle
from tests.fakes.clocks import FakeClock
from tests.fakes.kv_events import Engine, payload
from tests.fakes.kv_publisher import KvPublisher
from tests.fakes.systems import BLOCK, describe, fresh_ids, write_configuration

LEASE = 1.5
NAMES = [f"p{at}" for at in range(6)]


class CutLeases(MemoryLeases):
    """One shard's way to a store of leases; `cut` is the network gone."""

    def __init__(self, shared: MemoryLeases) -> None:
        super().__init__(clock=SystemClock().monotonic)
        self.shared = shared
        self.cut = False

    def _reach(self) -> MemoryLeases:
        if self.cut:
            raise LeaseStoreAway("cut")
        return self.shared

    async def announce(self, member: str, ttl_seconds: float) -> frozenset[str]:
        return await self._reach().announce(member, ttl_seconds)

    async def leave(self, member: str) -> None:
        await self._reach().leave(member)

    async def acquire(self, name: str, owner: str, ttl_seconds: float) -> int | None:
        return await self._reach().acquire(name, owner, ttl_seconds)

    async def renew(self, name: str, owner: str, token: int, ttl_seconds: float) -> bool:
        return await self._reach().renew(name, owner, token, ttl_seconds)

    async def release(self, name: str, owner: str, token: int) -> None:
        await self._reach().release(name, owner, token)


@dataclass
class Scene:
    """Six publishers, one index, one store of leases, and the shards that were started."""

    settings: Settings
    publishers: Mapping[str, KvPublisher]
    index: MemoryIndex
    leases: MemoryLeases
    state: MemoryState = field(default_factory=MemoryState)
    shards: dict[str, IngestShard] = field(default_factory=dict)
    ways: dict[str, CutLeases] = field(default_factory=dict)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        way = self.ways[name] = CutLeases(self.leases)
        shard = self.shards[name] = build_shard(
            self.settings,
            self.index,
            way,
            name=name,
            clock=SystemClock(),
            lease_seconds=LEASE,
            state=self.state,
        )
        self.tasks[name] = asyncio.create_task(shard.run())

    async def stop(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks.pop(name), return_exceptions=True)
        del self.shards[name]

    def held(self, name: str) -> set[str]:
        shard = self.shards[name].sharded
        return {source.instance for source in shard._running}

    async def reports(self) -> dict[str, SourceReport]:
        return {report.source.instance: report for report in await self.index.describe()}

    async def until_synced(self, blocks: int, within: float = 60.0) -> None:
        """Every source synced, each with so many blocks."""
        async with asyncio.timeout(within):
            while True:
                reports = (await self.reports()).values()
                right = [each for each in reports if each.blocks == blocks]
                if len([each for each in right if each.state is SourceState.SYNCED]) == len(NAMES):
                    return
                await asyncio.sleep(0.02)

    async def publish(self) -> None:
        for publisher in self.publishers.values():
            await publisher.publish(payload(fresh_ids(2 * BLOCK), engine=Engine(BLOCK)))


@asynccontextmanager
async def scene(directory: Path, *, buffer_size: int = 10_000) -> AsyncIterator[Scene]:
    publishers = {name: KvPublisher(buffer_size=buffer_size) for name in NAMES}
    for publisher in publishers.values():
        await publisher.start()
    entries = [
        {
            "name": name,
            "url": f"http://127.0.0.1:{port}",
            "role": "prefill",
            "kv_events": publisher.endpoint,
            "kv_replay": publisher.replay_endpoint,
        }
        for port, (name, publisher) in enumerate(publishers.items(), start=1)
    ]
    clusters = [
        {"name": "east", "kind": "pd", "instances": entries},
        {"name": "west", "kind": "prfaas"},
    ]
    model = {"cache": {"block_size": BLOCK}}
    document = describe(clusters, threshold=100, model=model)
    settings = load(write_configuration(directory, document), {}).settings
    clock = SystemClock().monotonic
    built = Scene(settings, publishers, MemoryIndex(clock=clock), MemoryLeases(clock=clock))
    try:
        yield built
    finally:
        for name in list(built.tasks):
            await built.stop(name)
        for publisher in publishers.values():
            await publisher.__aexit__(None, None, None)


async def until(condition: Callable[[], bool], within: float = 60.0) -> None:
    async with asyncio.timeout(within):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


async def shared_out(built: Scene, *names: str) -> None:
    """Wait until the shards hold every source, each exactly once."""
    await until(lambda: sorted(one for name in names for one in built.held(name)) == NAMES)


async def test_one_shard_ingests_every_source(tmp_path: Path) -> None:
    """Alone, a shard holds all; what is published reaches the index."""
    async with scene(tmp_path) as built:
        built.start("a")
        await shared_out(built, "a")
        await built.publish()
        await built.until_synced(blocks=2)


async def test_a_second_shard_takes_its_share(tmp_path: Path) -> None:
    """Sources are handed over one by one, and the index keeps up through it."""
    async with scene(tmp_path) as built:
        built.start("a")
        await shared_out(built, "a")
        await built.publish()
        built.start("b")
        await until(lambda: bool(built.held("b")))
        await shared_out(built, "a", "b")
        await built.publish()
        await built.until_synced(blocks=4)


async def test_instances_come_and_go_as_operators_order(tmp_path: Path) -> None:
    """Any shard follows one that was added while it ran, and drops one that was removed."""
    async with scene(tmp_path) as built, KvPublisher() as late:
        built.start("a")
        await shared_out(built, "a")
        added = Instance(
            "late",
            "west",
            "http://127.0.0.1:9",
            Role.PREFILL,
            kv_events=late.endpoint,
            kv_replay=late.replay_endpoint,
        )
        elsewhere = replace(added, name="elsewhere", cluster="moon")
        orders = replace(Orders(), added={"late": added, "elsewhere": elsewhere}, removed=("p0",))
        await built.state.write(ORDERS, encode_orders(orders), after=0)
        expected = sorted({*NAMES, "late"} - {"p0"})
        await until(lambda: sorted(built.held("a")) == expected)
        built.start("b")
        await until(lambda: sorted([*built.held("a"), *built.held("b")]) == expected)
        await built.state.write(ORDERS, encode_orders(Orders()), after=1)
        await shared_out(built, "a", "b")
        assert "late" not in await built.reports()


async def test_instances_come_and_go_with_the_file(tmp_path: Path) -> None:
    """A reload lets a shard follow what is new and forget what is gone, and no more than that."""
    async with scene(tmp_path) as built, KvPublisher() as late:
        built.start("a")
        await shared_out(built, "a")
        await built.publish()
        await built.until_synced(blocks=2)
        path = tmp_path / "prfaas.yaml"
        running = load(path, {})
        document = yaml.safe_load(path.read_text("utf-8"))
        entries = document["clusters"][0]["instances"]
        entry = {"kv_events": late.endpoint, "kv_replay": late.replay_endpoint}
        entries[0] = {**entries[0], "name": "late", **entry}
        path.write_text(yaml.safe_dump(document), "utf-8")
        await built.shards["a"].reload(settle(running, load(path, {})))
        expected = sorted({*NAMES, "late"} - {NAMES[0]})
        await until(lambda: sorted(built.held("a")) == expected)
        reports = await built.reports()
        assert NAMES[0] not in reports
        assert all(reports[name].blocks == 2 for name in NAMES[1:])


async def test_a_shard_that_ends_hands_over_at_once(tmp_path: Path) -> None:
    """What it held is followed by the other, from the engines' replay buffers."""
    async with scene(tmp_path) as built:
        built.start("a")
        built.start("b")
        await shared_out(built, "a", "b")
        await built.publish()
        await built.until_synced(blocks=2)
        await built.stop("a")
        await shared_out(built, "b")
        await built.publish()
        await built.until_synced(blocks=4)


async def test_what_the_index_knows_outlives_a_shard(tmp_path: Path) -> None:
    """With no more than the last batch in the engines' buffers a take-over loses nothing."""
    async with scene(tmp_path, buffer_size=2) as built:
        built.start("a")
        await shared_out(built, "a")
        await built.until_synced(blocks=0)
        for _ in range(4):
            await built.publish()
        await built.until_synced(blocks=8)
        epochs = {name: report.epoch for name, report in (await built.reports()).items()}
        await built.stop("a")
        await built.publish()
        built.start("b")
        await built.until_synced(blocks=10)
        assert {name: each.epoch for name, each in (await built.reports()).items()} == epochs


async def test_a_shard_that_is_cut_off_is_taken_over(tmp_path: Path) -> None:
    """Without the store it stops with the end of its leases; then the other one has them all."""
    async with scene(tmp_path) as built:
        built.start("a")
        built.start("b")
        await shared_out(built, "a", "b")
        built.ways["a"].cut = True
        await shared_out(built, "b")
        assert built.held("a") == set()
        await built.publish()
        await built.until_synced(blocks=2)
        built.ways["a"].cut = False
        await until(lambda: bool(built.held("a")))
        await shared_out(built, "a", "b")


async def test_nothing_is_written_after_the_end_of_a_lease() -> None:
    """A shard that stalled cannot touch what is another's by now."""
    clock = FakeClock()
    inner = MemoryIndex(clock=clock.monotonic)
    source = SourceId("p0")
    index = LeasedIndex(inner, lambda _: clock.monotonic() < 8)
    await index.register(source, CacheLayout("m@1", 4))
    await index.begin_epoch(source, SourceState.SYNCED)
    clock.advance(8)
    for write in (
        index.begin_epoch(source, SourceState.PARTIAL),
        index.set_state(source, SourceState.PARTIAL),
        index.touch(source),
    ):
        with pytest.raises(LeaseLost):
            await write
    assert next(iter(await inner.describe())).state is SourceState.SYNCED


def test_memory_is_refused_and_redis_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `memory://` there is nothing to share: exit code 2, one line that names Redis."""
    clusters = [{"name": "east", "kind": "pd", "instances": []}]
    document = describe(clusters, threshold=100, model={}, links=[])
    path = write_configuration(tmp_path, document)
    assert run(["kvmeta", "--config", str(path)]) == 2
    told = capsys.readouterr().err
    assert "redis://" in told
    assert told.count("\n") == 1
