"""What goes wrong with a Redis, and what the index answers: no error, and never a false hit."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest
import redis

from kvmeta.backends.breakers import BreakerRules
from kvmeta.backends.redis import RedisIndex, deployment_secret, open_redis_index
from kvmeta.backends.redis_store import Command, RedisStore, Reply, open_store
from kvmeta.backends.redis_urls import parse_store_url
from kvmeta.errors import StoreError
from kvmeta.events import AllBlocksCleared, Event, EventBatch
from kvmeta.hashing import prompt_blocks
from kvmeta.types import CacheBelief, CacheLayout, SourceId, SourceState
from tests.fakes.clocks import FakeClock
from tests.fakes.kv_events import Engine, batch, removed
from tests.fakes.redis_servers import Server, redis_sentinel, redis_server

LAYOUT = CacheLayout("model@1", 4)
A = SourceId("engine-a")
B = SourceId("engine-b")
X = list(range(100, 116))
LONG = list(range(4 * 200))  # two hundred blocks: more than three pages


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    with redis_server() as running:
        yield running


@pytest.fixture
def server(shared: Server) -> Iterator[Server]:
    """An empty server with its own settings as they were."""
    shared.call("FLUSHALL")
    yield shared
    shared.thaw()
    shared.call("CONFIG", "SET", "maxmemory", "0")
    shared.call("CONFIG", "SET", "maxmemory-policy", "noeviction")


class Process:
    """One process of the deployment: an index and the sequence numbers of what it is sent."""

    def __init__(self, index: RedisIndex) -> None:
        self.index = index

    async def attach(self, *sources: SourceId) -> None:
        for source in sources:
            await self.index.register(source, LAYOUT)
            await self.index.begin_epoch(source, SourceState.SYNCED)

    async def send(self, source: SourceId, *events: Event) -> bool:
        """The batch that the source is expected to send next."""
        reports = {report.source: report for report in await self.index.describe()}
        return await self.index.apply(source, reports[source].next_sequence or 0, batch(*events))

    async def belief(
        self, source: SourceId, tokens: Sequence[int], salt: str | None = None
    ) -> CacheBelief:
        prompt = prompt_blocks(LAYOUT, [*tokens, 9], salt=salt)
        return (await self.index.look_up(prompt, [source]))[source]

    async def hit(
        self, source: SourceId, tokens: Sequence[int], salt: str | None = None
    ) -> int | None:
        return (await self.belief(source, tokens, salt)).tokens


Open = Callable[..., Process]


@pytest.fixture
async def start(server: Server) -> AsyncIterator[Open]:
    """Starts processes of one deployment; each is closed in the end."""
    opened: list[RedisIndex] = []

    def make(
        url: str = server.url, clock: FakeClock | None = None, budget: float = 5.0, **how: object
    ) -> Process:
        index = open_redis_index(
            url,
            clock=(clock or FakeClock(1_000.0)).monotonic,
            budget_seconds=budget,
            **how,  # type: ignore[arg-type]
        )
        opened.append(index)
        return Process(index)

    yield make
    for index in opened:
        await index.close()


def keys_of(server: Server, what: str = "") -> set[bytes]:
    with server.client() as client:
        return {key for key in client.scan_iter(count=1_000) if what.encode() in key}


# -- readers and restarts -----------------------------------------------------------------------


async def test_a_reader_in_another_process_sees_every_batch_at_once(start: Open) -> None:
    """Also clears, new states and sources that come and go: nothing is cached past its change."""
    writer, reader = start(), start()
    assert await reader.hit(A, X) is None
    await writer.attach(A)
    assert await reader.hit(A, X) == 0
    engine = Engine()
    await writer.send(A, engine.stored(LONG))
    assert await reader.hit(A, LONG) == len(LONG)
    await writer.send(A, removed(engine.labels(LONG)[150:151]))
    assert await reader.hit(A, LONG) == 600
    await writer.index.set_state(A, SourceState.PARTIAL)
    assert await reader.belief(A, LONG) == CacheBelief(600, SourceState.PARTIAL)
    await writer.send(A, AllBlocksCleared())
    assert await reader.belief(A, LONG) == CacheBelief(0, SourceState.SYNCED)
    await writer.index.remove_instance(A.instance)
    assert await reader.hit(A, LONG) is None


async def test_a_restarted_ingest_goes_on_where_it_was(start: Open) -> None:
    """Labels, counts and the sequence number outlive the process; nothing counts twice."""
    first = start()
    await first.attach(A)
    engine = Engine()
    stored = engine.stored(LONG)
    await first.send(A, stored)
    again = EventBatch(0.0, (engine.stored(LONG[:8]),), digest=b"the last payload")
    await first.index.apply(A, 1, again)
    second = start()
    await second.index.register(A, LAYOUT)
    (report,) = await second.index.describe()
    assert (report.next_sequence, report.blocks, report.state) == (2, 200, SourceState.SYNCED)
    assert report.last_digest == b"the last payload"
    assert not await second.index.apply(A, 1, batch(engine.stored(LONG[:8])))
    await second.send(A, removed(engine.labels(LONG)[:2]))
    assert await second.hit(A, LONG) == len(LONG), "the second copy of the first two is there"
    await second.send(A, removed(engine.labels(LONG)[:1]))
    assert await second.hit(A, LONG) == 0
    await second.send(A, engine.stored([*LONG, 1, 2, 3, 4], start=200), engine.stored(LONG[:4]))
    assert await second.hit(A, [*LONG, 1, 2, 3, 4]) == len(LONG) + 4, "children find their parent"


async def test_what_waited_is_lost_with_the_process_and_said(start: Open) -> None:
    """Tokens are never stored, so what had no name yet makes the source partial."""
    first = start()
    await first.attach(A)
    await first.send(A, Engine().stored(X, start=2))
    second = start()
    await second.index.register(A, LAYOUT)
    assert (await second.belief(A, X)).state is SourceState.PARTIAL


async def test_a_process_that_lost_its_source_changes_nothing_any_more(start: Open) -> None:
    """Late batches of an earlier owner, and all that it does afterwards, are in vain."""
    first, second, reader = start(), start(), start()
    await first.attach(A)
    engine = Engine()
    await first.send(A, engine.stored(X))
    await second.index.register(A, LAYOUT)
    await first.index.apply(A, 1, batch(removed(engine.labels(X)), engine.stored(LONG)))
    await first.index.begin_epoch(A, SourceState.PARTIAL)
    await first.index.keep_up()
    assert await reader.belief(A, X) == CacheBelief(16, SourceState.SYNCED)
    assert await reader.hit(A, LONG) == 0
    await second.send(A, removed(engine.labels(X)[2:]))
    assert await reader.hit(A, X) == 8


async def test_a_proof_from_a_host_with_a_later_clock_has_no_negative_age(start: Open) -> None:
    """Hosts' clocks differ by some seconds; what was proved just now is new, not from tomorrow."""
    writer, reader = start(clock=FakeClock(1_002.0)), start(clock=FakeClock(1_000.0))
    await writer.attach(A)
    await writer.send(A, Engine().stored(X))
    (report,) = await reader.index.describe()
    assert report.age_seconds == 0
    assert await reader.hit(A, X) == 16


async def test_a_process_that_lost_its_source_gives_no_signs_for_it(start: Open) -> None:
    """Its last proof is older than its successor's, and must not hide it."""
    clock = FakeClock(1_000.0)
    first, second, reader = (start(clock=clock) for _ in range(3))
    await first.attach(A)
    await first.index.register(A, LAYOUT, max_age_seconds=10)
    await first.send(A, Engine().stored(X))
    clock.advance(9)
    await second.index.register(A, LAYOUT, max_age_seconds=10)
    await second.send(A, Engine().stored(LONG))
    clock.advance(5)
    await first.index.keep_up()
    assert await reader.belief(A, LONG) == CacheBelief(len(LONG), SourceState.SYNCED)
    (report,) = await first.index.describe()
    assert report.next_sequence == 2, "told by the store, since it is another's"


class DyingStore:
    """A store whose process dies in mid-write: of one script call nothing arrives."""

    def __init__(self, store: RedisStore, script: str) -> None:
        self._store = store
        self._script = script
        self.dead = False
        self.pages_per_command = store.pages_per_command
        self.is_atomic = False

    async def fetch(self, key: bytes, pages: Sequence[str]) -> tuple[Reply, Sequence[bytes | None]]:
        return await self._store.fetch(key, pages)

    async def read(self, commands: Sequence[Command]) -> list[Reply]:
        return await self._store.read(commands)

    async def write(self, commands: Sequence[Command]) -> list[Reply]:
        if self.dead:
            before = list(itertools.takewhile(lambda one: one[1] != self._script, commands))
            if before:
                await self._store.write(before)
            raise StoreError("the process is dead")
        return await self._store.write(commands)

    async def free(self, commands: Sequence[Command]) -> list[Reply]:
        return await self.write(commands)

    def scan(self, pattern: bytes) -> AsyncIterator[Sequence[bytes]]:
        return self._store.scan(pattern)

    async def mark(self) -> str:
        return await self._store.mark()

    async def close(self) -> None:
        await self._store.close()


async def test_r44_a_batch_cut_off_before_its_record_is_applied_once_in_the_end(
    server: Server, start: Open
) -> None:
    """Its pages were written, its number was not: the replayed batch counts once."""
    from kvmeta.backends.redis_store import COMMIT  # noqa: PLC0415

    store = DyingStore(open_store(parse_store_url(server.url)), COMMIT.sha)
    dying = Process(RedisIndex(store, clock=FakeClock(1_000.0).monotonic, budget_seconds=5.0))
    await dying.attach(A)
    engine = Engine()
    await dying.send(A, engine.stored(X[:8]))
    store.dead = True
    await dying.send(A, engine.stored(X, start=2), engine.stored(X[:4]))
    await dying.index.close()
    after = start()
    await after.index.register(A, LAYOUT)
    (report,) = await after.index.describe()
    assert (report.next_sequence, report.blocks) == (1, 2)
    assert await after.hit(A, X) == 8
    await after.send(A, engine.stored(X, start=2), engine.stored(X[:4]))
    assert await after.hit(A, X) == 16
    await after.send(A, removed(engine.labels(X)[:1]))
    assert await after.hit(A, X) == 16
    await after.send(A, removed(engine.labels(X)[:1]))
    assert await after.hit(A, X) == 0


@pytest.mark.parametrize("lost", ["a label", "all labels", "the record"])
async def test_records_that_are_not_whole_are_worthless(
    server: Server, start: Open, lost: str
) -> None:
    """A block whose label is gone could never be removed: the epoch ends."""
    first = start()
    await first.attach(A)
    engine = Engine()
    await first.send(A, engine.stored(X))
    labels = "prfaas:kv:s:{engine-a/0}:labels"
    match lost:
        case "a label":
            server.call("HDEL", labels, engine.labels(X)[2])
        case "all labels":
            server.call("DEL", labels)
        case _:
            server.call("DEL", "prfaas:kv:s:{engine-a/0}:record")
    second = start()
    await second.index.register(A, LAYOUT)
    assert await second.belief(A, X) == CacheBelief.unknown()
    (report,) = await second.index.describe()
    assert (report.blocks, report.next_sequence) == (0, None)


# -- nothing is left ----------------------------------------------------------------------------


async def test_r57_nothing_is_left_of_a_removed_instance(server: Server, start: Open) -> None:
    """After upkeep no key, field or bit of it is in Redis; the others are as they were."""
    process = start()
    await process.attach(B)
    await process.send(B, Engine("b" and 4).stored(X))
    before = {key: server.call("DUMP", key) for key in keys_of(server, "}p")}
    ranks = [SourceId("engine-a", rank) for rank in range(2)]
    await process.attach(*ranks)
    for rank in ranks:
        await process.send(rank, Engine().stored(LONG), Engine().stored(X, medium="CPU"))
    await process.index.remove_instance("engine-a")
    await process.index.keep_up()
    assert {key: server.call("DUMP", key) for key in keys_of(server, "}p")} == before
    assert not keys_of(server, "engine-a")
    for table in ("prfaas:kv:{t}:table", "prfaas:kv:{t}:seen"):
        with server.client() as client:
            assert list(client.hgetall(table)) == [b"engine-b/0"]


async def test_r57_what_a_dead_process_left_is_found_by_walking(
    server: Server, start: Open
) -> None:
    """Bits of slots that no table names vanish, also from pages that overflowed."""
    dead = start()
    await dead.attach(A)
    for branch in range(300):
        await dead.send(A, Engine().stored([*X[:4], branch, 1, 2, 3]))
    assert keys_of(server, "}o"), "one page cannot hold three hundred branches"
    other = start()
    await other.index.remove_instance(A.instance)
    await other.attach(B)
    await other.send(B, Engine().stored(X))
    await other.index.keep_up()
    assert len(keys_of(server, "}p")) == 1
    assert await other.hit(B, X) == 16
    await other.send(B, AllBlocksCleared())
    await other.index.keep_up()
    assert not keys_of(server, "}p") | keys_of(server, "}o")


async def test_r57_blocks_and_keys_stay_under_the_cap(server: Server, start: Open) -> None:
    """Four sources bring five times what is allowed: refused and said, and a clear makes room."""
    cap = 1_000
    process = start(max_blocks_total=cap)
    sources = [SourceId(f"engine-{name}") for name in "abcd"]
    await process.attach(*sources)
    for round_ in range(5):
        for number, source in enumerate(sources):
            tokens = [1_000 * number + round_, *range(1_000)]
            await process.send(source, Engine().stored(tokens))
    reports = {report.source: report for report in await process.index.describe()}
    assert sum(report.blocks for report in reports.values()) == cap
    with server.client() as client:
        assert sum(client.hlen(key) for key in keys_of(server, ":labels")) <= cap
    assert len(keys_of(server, "}p")) <= cap / 64 + 20
    full = reports[sources[3]]
    assert full.state is SourceState.PARTIAL
    assert full.errors["capacity"] > 0
    await process.index.remove_instance("engine-a")
    await process.send(sources[3], AllBlocksCleared(), Engine().stored(LONG))
    assert await process.belief(sources[3], LONG) == CacheBelief(len(LONG), SourceState.SYNCED)


async def test_r57_steady_clears_pile_nothing_up(server: Server, start: Open) -> None:
    """A source that clears for ever leaves what it holds now, after upkeep."""
    process = start()
    await process.attach(A)
    for turn in range(30):
        tokens = list(range(turn * 1_000, turn * 1_000 + 400))
        await process.send(A, AllBlocksCleared(), Engine().stored(tokens))
    await process.index.keep_up()
    assert len(keys_of(server, "}p")) == 2
    assert await process.hit(A, tokens) == 400


async def test_an_abandoned_source_is_removed_by_another_process(
    server: Server, start: Open
) -> None:
    """Unknown to readers after half a minute, gone after an hour."""
    clock = FakeClock(1_000.0)
    gone, other = start(clock=clock), start(clock=clock)
    await gone.attach(A)
    await other.attach(B)
    await gone.send(A, Engine().stored(X))
    clock.advance(31)
    assert await other.belief(A, X) == CacheBelief.unknown()
    await other.index.keep_up()
    assert keys_of(server, "engine-a"), "an ingest that restarts still finds it"
    clock.advance(3_600)
    await other.index.keep_up()
    assert not keys_of(server, "engine-a")
    assert not keys_of(server, "}p")


async def test_forgetting_does_not_depend_on_how_much_is_held(server: Server, start: Open) -> None:
    """A new epoch writes a handful of commands and touches no page."""
    process = start()
    await process.attach(A)
    for part in range(10):
        await process.send(A, Engine().stored([part, *range(4_000)]))
    pages = keys_of(server, "}p")
    before = server.client().info("commandstats")
    await process.index.begin_epoch(A, SourceState.SYNCED)
    after = server.client().info("commandstats")
    calls = sum(one["calls"] for one in after.values()) - sum(
        one["calls"] for one in before.values()
    )
    assert calls < 20
    assert keys_of(server, "}p") == pages
    assert await process.hit(A, [0, *range(4_000)]) == 0


# -- namespaces ---------------------------------------------------------------------------------


async def test_r51_redis_holds_no_salt_and_no_tokens(server: Server, start: Open) -> None:
    """Neither in keys nor in values, of records, pages and tables."""
    process = start()
    await process.attach(A)
    salt = "tenant-one-secret"
    tokens = [0x41424344 + at for at in range(16)]
    await process.send(A, Engine().stored(tokens, salt=salt, lora="ada"))
    assert await process.hit(A, tokens, salt=salt) == 0, "another adapter"
    prompt = prompt_blocks(LAYOUT, [*tokens, 9], salt=salt, lora="ada")
    assert (await process.index.look_up(prompt, [A]))[A].tokens == 16
    needles = [salt.encode(), *(token.to_bytes(4, "little") for token in tokens)]
    for key in keys_of(server):
        held = key + (server.call("DUMP", key) or b"")  # type: ignore[operator]
        with server.client() as client:
            kind = client.type(key)
            if kind == b"hash":
                held += b"".join(itertools.chain(*client.hgetall(key).items()))
            elif kind == b"string":
                held += client.get(key) or b""
        assert not any(needle in held for needle in needles), key


async def test_the_deployments_secret_is_the_same_for_everybody(server: Server) -> None:
    """Whoever comes first makes it."""
    first, second = await asyncio.gather(
        deployment_secret(server.url, fresh=b"one"), deployment_secret(server.url, fresh=b"two")
    )
    assert first == second
    assert first in (b"one", b"two")
    assert await deployment_secret(server.url, fresh=b"three") == first


# -- a store that loses things ------------------------------------------------------------------


async def test_r57_a_flushed_redis_is_refilled(server: Server, start: Open) -> None:
    """Unknown at once, for readers too; whole again after upkeep; later batches count."""
    writer, reader = start(), start()
    await writer.attach(A)
    engine = Engine()
    await writer.send(A, engine.stored(LONG))
    assert await reader.hit(A, LONG) == len(LONG)
    server.call("FLUSHALL")
    assert await reader.belief(A, LONG) == CacheBelief.unknown()
    await writer.send(A, removed(engine.labels(LONG)[100:]))
    await writer.index.keep_up()
    assert await reader.belief(A, LONG) == CacheBelief(400, SourceState.SYNCED)
    await writer.send(A, engine.stored(LONG, start=100))
    assert await reader.hit(A, LONG) == len(LONG)


async def test_r57_a_flush_nobody_noticed_never_gives_ones_slots_to_another(
    server: Server, start: Open
) -> None:
    """A reader that slept through it does not take B's blocks for A's."""
    writer, reader, other = start(), start(), start()
    await writer.attach(A)
    await writer.send(A, Engine().stored(X))
    assert await reader.hit(A, X) == 16
    server.call("FLUSHALL")
    await other.attach(B)
    await other.send(B, Engine().stored(LONG))
    assert await reader.hit(A, LONG) is None
    await writer.index.keep_up()
    assert await reader.hit(A, LONG) == 0
    assert await reader.hit(A, X) == 16


async def test_r57_a_full_redis_gives_misses_and_recovers(server: Server, start: Open) -> None:
    """Writes refused: unknown or less than the truth, no exception; room again: all of it."""
    writer, reader = start(), start()
    await writer.attach(A, B)
    engine = Engine()
    await writer.send(B, engine.stored(X))
    used = server.client().info("memory")["used_memory"]
    server.call("CONFIG", "SET", "maxmemory", used + 200_000)
    prompts = [[seed, *range(1_000, 1_799)] for seed in range(20)]
    for prompt in prompts:
        assert await writer.send(A, engine.stored(prompt))
    await writer.send(B, removed(engine.labels(X)[:1]))
    await writer.index.keep_up()
    assert (await reader.belief(A, prompts[0])).tokens in (None, 0, 800)
    assert (await reader.belief(B, X)).tokens in (None, 0), "the removal is not forgotten"
    server.call("CONFIG", "SET", "maxmemory", "0")
    await writer.index.keep_up()
    for prompt in prompts:
        assert await reader.belief(A, prompt) == CacheBelief(800, SourceState.SYNCED)
    assert await reader.hit(B, X) == 0


async def test_r57_what_a_full_redis_holds_in_vain_is_swept(server: Server, start: Open) -> None:
    """A source that was withdrawn and holds little now comes back without more memory."""
    process = start()
    await process.attach(A)
    used = server.client().info("memory")["used_memory"]
    server.call("CONFIG", "SET", "maxmemory", used + 300_000)
    for seed in range(20):
        await process.send(A, Engine().stored([seed, *range(1_000, 1_799)]))
    assert await process.hit(A, X) is None
    await process.send(A, AllBlocksCleared(), Engine().stored(X))
    for _ in range(3):
        await process.index.keep_up()
    assert await process.belief(A, X) == CacheBelief(16, SourceState.SYNCED)


async def test_r57_evicted_keys_are_misses_and_never_hits(server: Server, start: Open) -> None:
    """allkeys-lru takes pages, labels, tables: what is answered is never more than the truth."""
    writer, reader = start(), start()
    await writer.attach(A)
    engine = Engine()
    used = server.client().info("memory")["used_memory"]
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    server.call("CONFIG", "SET", "maxmemory", used + 150_000)
    truth: dict[int, int] = {}
    chance = random.Random(7)
    for seed in range(60):
        prompt = [seed, *range(1_000, 1_399)]
        await writer.send(A, engine.stored(prompt))
        truth[seed] = 400
        gone = chance.randrange(seed + 1)
        if truth[gone]:
            labels = engine.labels([gone, *range(1_000, 1_399)])
            await writer.send(A, removed(labels))
            truth[gone] = 0
        if seed % 10 == 9:
            await writer.index.keep_up()
        for asked in range(seed + 1):
            told = await reader.hit(A, [asked, *range(1_000, 1_399)])
            assert told is None or told <= truth[asked]
    assert server.client().info("stats")["evicted_keys"] > 0


async def test_scripts_that_the_server_forgot_are_sent_again(server: Server, start: Open) -> None:
    """SCRIPT FLUSH costs one round trip, not a source."""
    process = start()
    await process.attach(A)
    server.call("SCRIPT FLUSH")
    await process.send(A, Engine().stored(X))
    assert await process.hit(A, X) == 16


# -- a store that does not answer ---------------------------------------------------------------


async def test_r58_a_frozen_redis_costs_the_budget_and_then_nothing(
    server: Server, start: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Unknown within the budget, then at once; one line a change; back by itself."""
    rules = BreakerRules(failures=3, cooldown_seconds=0.3)
    writer = start()
    reader = start(budget=0.25, breaker=rules)
    await writer.attach(A)
    await writer.send(A, Engine().stored(X))
    assert await reader.hit(A, X) == 16
    now = asyncio.get_running_loop().time
    caplog.set_level(logging.INFO, logger="kvmeta")
    server.freeze()
    took: list[float] = []
    for _ in range(40):
        began = now()
        assert await reader.belief(A, X) == CacheBelief.unknown()
        took.append(now() - began)
        await asyncio.sleep(0.02)
    waited = sum(1 for one in took if one > 0.2)
    assert 3 <= waited <= 20, "three failures, then one trial each 0.3 s"
    assert sorted(took)[len(took) // 2] < 0.2, "most are answered at once"
    assert reader.index.is_away
    server.thaw()
    began = now()
    while await reader.hit(A, X) != 16:
        assert now() - began < 5
        await asyncio.sleep(0.02)
    assert not reader.index.is_away
    assert len([one for one in caplog.records if one.levelno >= logging.INFO]) == 2


async def test_r58_a_store_that_nobody_asks_is_found_back(server: Server, start: Open) -> None:
    """An idle process learns by its own beat that the store is back, without a look-up."""
    reader = start(budget=0.25, breaker=BreakerRules(failures=1, cooldown_seconds=0.1))
    server.freeze()
    assert await reader.belief(A, X) == CacheBelief.unknown()
    assert reader.index.is_away
    server.thaw()
    upkeep = asyncio.create_task(reader.index.run())
    async with asyncio.timeout(30):
        while reader.index.is_away:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)
    upkeep.cancel()
    await asyncio.wait([upkeep])


async def test_r58_a_store_that_is_away_never_raises(start: Open) -> None:
    """Refused connections: every call returns; what was applied meanwhile is shown later."""
    with redis_server() as other:
        process = start(url=other.url)
        await process.attach(A)
        await process.send(A, Engine().stored(X))
        other.stop()
        assert await process.belief(A, X) == CacheBelief.unknown()
        assert await process.send(A, Engine().stored(LONG))
        await process.index.register(B, LAYOUT)
        await process.index.touch(A)
        await process.index.set_state(A, SourceState.PARTIAL)
        await process.index.begin_epoch(B, SourceState.SYNCED)
        await process.index.keep_up()
        await process.index.remove_instance("nobody")
        assert {report.source for report in await process.index.describe()} == {A, B}


async def test_r58_answers_belong_to_who_asked_whatever_was_cancelled(start: Open) -> None:
    """Hundreds of look-ups, many cancelled at any moment: no answer reaches another question."""
    process = start()
    await process.attach(A)
    prompts = [[seed, *range(1_000, 1_000 + 4 * (seed % 40) + 3)] for seed in range(80)]
    for prompt in prompts:
        await process.send(A, Engine().stored(prompt))
    chance = random.Random(3)

    async def ask(prompt: list[int]) -> None:
        await asyncio.sleep(chance.random() / 50)
        assert await process.hit(A, prompt) == len(prompt)

    for _ in range(6):
        tasks = [asyncio.create_task(ask(prompt)) for prompt in prompts]
        cancelled = 0
        for task in tasks:
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() / 2_000)
                cancelled += task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        wrong = [
            one
            for one in results
            if one is not None and not isinstance(one, asyncio.CancelledError)
        ]
        assert wrong == []
        assert cancelled
    for prompt in prompts:
        assert await process.hit(A, prompt) == len(prompt)


async def test_r58_a_read_only_master_is_left_for_the_new_one() -> None:
    """Through a failover writes reach the new master, and what was lost is repaired."""
    with redis_sentinel() as watched:
        writer = Process(open_redis_index(watched.url, budget_seconds=2.0))
        reader = Process(open_redis_index(watched.url, budget_seconds=2.0))
        engine = Engine()
        await writer.attach(A)
        await writer.send(A, engine.stored(LONG))
        assert await reader.hit(A, LONG) == len(LONG)
        await asyncio.to_thread(watched.fail_over)
        assert await writer.send(A, removed(engine.labels(LONG)[100:]))
        now = asyncio.get_running_loop().time
        began = now()
        while await reader.belief(A, LONG) != CacheBelief(400, SourceState.SYNCED):
            assert now() - began < 10
            await writer.index.keep_up()
            await asyncio.sleep(0.1)
        await writer.send(A, engine.stored(LONG, start=100))
        assert await reader.hit(A, LONG) == len(LONG)
        await writer.index.close()
        await reader.index.close()


async def test_a_failover_that_lost_removals_gives_no_false_hit() -> None:
    """What the replica had not received is written again, under slots it never saw."""
    with redis_sentinel() as watched:
        writer = Process(open_redis_index(watched.url, budget_seconds=2.0))
        reader = Process(open_redis_index(watched.url, budget_seconds=2.0))
        engine = Engine()
        await writer.attach(A)
        await writer.send(A, engine.stored(X))
        await writer.index.keep_up()
        before = watched.primary
        (replica,) = [one for one in watched.servers if one is not before]
        replica.freeze()
        await writer.send(A, removed(engine.labels(X)))
        assert await writer.hit(A, X) == 0
        before.stop()
        replica.thaw()
        now = asyncio.get_running_loop().time
        began = now()
        while await reader.belief(A, X) != CacheBelief(0, SourceState.SYNCED):
            assert now() - began < 20
            await writer.index.keep_up()
            await asyncio.sleep(0.1)
        await writer.index.close()
        await reader.index.close()


# -- ways to connect ----------------------------------------------------------------------------


async def test_an_acl_user_and_a_unix_socket(server: Server, start: Open) -> None:
    """A user with the rights that the operations page names does all of it, over a socket file."""
    categories = ("+@read", "+@write", "+@scripting", "+@transaction", "+@connection")
    rights = ("~prfaas:*", "-@all", *categories, "+info", "+scan", "+time")
    server.call("ACL SETUSER", "router", "on", ">pass word", *rights)
    path = server.directory / "redis.sock"
    process = start(url=f"unix://router:pass%20word@{path}")
    await process.attach(A)
    await process.send(A, Engine().stored(X))
    await process.index.keep_up()
    assert await process.hit(A, X) == 16
    await process.index.remove_instance(A.instance)
    await process.index.keep_up()
    assert not keys_of(server, "}p")
    stranger = start(url=f"unix://router:wrong@{path}")
    assert await stranger.belief(A, X) == CacheBelief.unknown()


def test_the_tests_have_a_redis_of_the_floor_version(server: Server) -> None:
    """Seven or later: what the back end is built for."""
    version = server.client().info("server")["redis_version"]
    assert int(str(version).split(".")[0]) >= 7
    assert redis.VERSION[0] >= 5
