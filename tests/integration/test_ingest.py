"""Event ingest over real sockets: what an engine tells arrives, whatever happens on the way."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import msgspec
import pytest

from kvmeta.backends.memory import MemoryIndex
from kvmeta.events import EventBatch
from kvmeta.hashing import prompt_blocks
from kvmeta.ingest.service import OBSERVATIONS_PER_TURN, KvIngest
from kvmeta.ingest.subscriber import SourceSpec
from kvmeta.types import CacheBelief, CacheLayout, SourceId, SourceReport, SourceState
from tests.fakes.clocks import FakeClock
from tests.fakes.kv_events import payload
from tests.fakes.kv_publisher import KvPublisher

A = SourceId("engine-a")
B = SourceId("engine-b")
LAYOUT = CacheLayout("model@1", 4)
DEADLINE_SECONDS = 15.0
NEVER = 3_600.0


def prompt(number: int) -> list[int]:
    """One block of tokens, its own for each number."""
    return [number, 1, 2, 3]


class RecordingHook:
    """An `IngestHook` that keeps everything."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.states: list[SourceState] = []
        self.lags: list[float] = []
        self.sources: set[SourceId] = set()

    def events_applied(self, source: SourceId, kind: str, count: int) -> None:
        self.sources.add(source)
        self.events[kind] += count

    def error(self, source: SourceId, cause: str) -> None:
        self.sources.add(source)
        self.errors[cause] += 1

    def state_changed(self, source: SourceId, state: SourceState) -> None:
        self.sources.add(source)
        self.states.append(state)

    def lag(self, source: SourceId, seconds: float) -> None:
        self.sources.add(source)
        self.lags.append(seconds)


class RecordingIndex(MemoryIndex):
    """Notes the numbers applied, and fails once when told to."""

    def __init__(self) -> None:
        self.time = FakeClock(1_000.0)
        super().__init__(clock=self.time.monotonic)
        self.applied: list[int] = []
        self.touches = 0
        self.break_next = False

    async def apply(self, source: SourceId, sequence: int, batch: EventBatch) -> bool:
        if self.break_next:
            self.break_next = False
            raise RuntimeError("the store is away")
        if source == A:
            self.applied.append(sequence)
        return await super().apply(source, sequence, batch)

    async def touch(self, source: SourceId) -> None:
        self.touches += 1
        await super().touch(source)


class Scene:
    """An index, its ingest running, and questions that wait for their answer."""

    def __init__(self, **settings: float) -> None:
        self.index = RecordingIndex()
        self.hook = RecordingHook()
        self.ingest = KvIngest(
            self.index,
            wall_clock=lambda: 101.0,
            hook=self.hook,
            **{  # type: ignore[arg-type]  # floats by keyword
                "probe_interval_seconds": NEVER,
                "replay_silence_seconds": 5.0,
                **settings,
            },
        )

    async def follow(self, publisher: KvPublisher, source: SourceId = A, **changes: object) -> None:
        """Add the publisher as `source`, and wait until its subscription has arrived."""
        replays = publisher.replay_endpoint if publisher._replays else None
        spec = SourceSpec(
            source,
            LAYOUT,
            publisher.endpoint,
            replays,
            **changes,  # type: ignore[arg-type]
        )
        await self.ingest.add(spec)
        await publisher.subscribed()

    async def report(self, source: SourceId = A) -> SourceReport:
        return next(one for one in await self.index.describe() if one.source == source)

    async def belief(self, number: int, source: SourceId = A) -> CacheBelief:
        blocks = prompt_blocks(LAYOUT, [*prompt(number), 9])
        return (await self.index.look_up(blocks, [source]))[source]

    async def holds(
        self, *numbers: int, state: SourceState = SourceState.SYNCED, source: SourceId = A
    ) -> None:
        """Wait until exactly this trust is reached and all of `numbers` hit."""
        expected = [CacheBelief(4, state)] * len(numbers)
        await self.until(lambda: self._beliefs(numbers, source), expected)

    async def _beliefs(self, numbers: Sequence[int], source: SourceId) -> list[CacheBelief]:
        return [await self.belief(number, source) for number in numbers]

    async def has_state(self, state: SourceState, source: SourceId = A) -> None:
        async def current() -> SourceState:
            return (await self.report(source)).state

        await self.until(current, state)

    async def until(self, ask: Callable[[], Awaitable[object]], expected: object) -> None:
        """Poll `ask` until it gives `expected`."""
        seen: object = None
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while True:
                    seen = await ask()
                    if seen == expected:
                        return
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pytest.fail(f"expected {expected}, still {seen}; errors {self.hook.errors}")

    async def counted(self, cause: str, at_least: int = 1) -> None:
        async def enough() -> bool:
            return self.hook.errors[cause] >= at_least

        await self.until(enough, expected=True)


@asynccontextmanager
async def running(**settings: float) -> AsyncIterator[Scene]:
    """Ingest runs inside, and is cancelled and gone outside."""
    scene = Scene(**settings)
    task = asyncio.create_task(scene.ingest.run())
    await asyncio.sleep(0)
    try:
        yield scene
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def publish(publisher: KvPublisher, *numbers: int, lost: bool = False) -> None:
    for number in numbers:
        await publisher.publish(payload(prompt(number), timestamp=100.0), lost=lost)


async def test_live_events_reach_the_index_and_the_hook() -> None:
    """Attached before the first event: synced, applied in order, counted, with its lag."""
    async with KvPublisher() as engine, running() as scene:
        await scene.follow(engine)
        await scene.has_state(SourceState.SYNCED)
        await publish(engine, 0, 1, 2)
        await scene.holds(0, 1, 2)
        assert scene.index.applied == [0, 1, 2]
        assert scene.hook.events == {"BlockStored": 3}
        assert scene.hook.lags == [1.0] * 3
        assert scene.hook.states[-1] is SourceState.SYNCED
        assert scene.hook.sources == {A}


async def test_a_late_attach_is_replayed_from_the_beginning() -> None:
    """The buffer still has number 0, so nothing was missed."""
    async with KvPublisher() as engine, running() as scene:
        await publish(engine, 0, 1)
        await scene.follow(engine)
        await scene.holds(0, 1)
        assert engine.asked[0] == 0


async def test_a_long_replay_arrives_whole() -> None:
    """Thousands of batches come at once, many times a socket's default high-water mark."""
    async with KvPublisher() as engine, running() as scene:
        await publish(engine, *range(5_000), lost=True)
        await scene.follow(engine)
        await scene.holds(0, 4_999)
        assert scene.index.applied == list(range(5_000))


async def test_a_source_that_catches_up_lets_everybody_else_have_their_turns() -> None:
    """Requests go on while thousands of batches come in: none waits for more than a few of them."""
    async with KvPublisher() as engine, running() as scene:
        await publish(engine, *range(3_000), lost=True)
        await scene.follow(engine)
        applied = [0]
        async with asyncio.timeout(DEADLINE_SECONDS):
            while applied[-1] < 3_000:
                await asyncio.sleep(0)  # somebody else's turn
                applied.append(len(scene.index.applied))
        assert max(after - before for before, after in pairwise(applied)) <= OBSERVATIONS_PER_TURN


async def test_a_publisher_that_was_away_for_long_is_heard_within_a_second() -> None:
    """What its predecessor held is not believed until some growing pause is over."""
    async with KvPublisher() as engine, running() as scene:
        await scene.follow(engine)
        await scene.has_state(SourceState.SYNCED)
        await engine.stop()
        await asyncio.sleep(3.5)  # pauses that double from 0.1 s are longer than a second by now
        await engine.start()
        await engine.subscribed(timeout_seconds=1.5)


async def test_a_late_attach_without_the_beginning_is_partial() -> None:
    """What the buffer lost may have been anything."""
    async with KvPublisher(buffer_size=2) as engine, running() as scene:
        await publish(engine, 0, 1, 2, 3)
        await scene.follow(engine)
        await scene.holds(2, 3, state=SourceState.PARTIAL)
        assert (await scene.belief(0)).tokens == 0


@pytest.mark.parametrize("topic", [True, False], ids=["with topic", "without topic"])
async def test_r42_a_gap_is_filled_in_order_from_the_first_missing_number(*, topic: bool) -> None:
    """Live 0, 1, 4: asked for 2, applied 0 to 4 once each, in both replay formats."""
    async with KvPublisher(topic_in_replay=topic) as engine, running() as scene:
        await scene.follow(engine)
        await scene.has_state(SourceState.SYNCED)
        await publish(engine, 0, 1)
        await publish(engine, 2, 3, lost=True)
        await publish(engine, 4)
        await scene.holds(0, 1, 2, 3, 4)
        assert engine.asked == [0, 2]
        assert scene.index.applied == [0, 1, 2, 3, 4]


async def test_r42_a_gap_that_is_gone_for_good_makes_the_source_partial() -> None:
    """The buffer starts at 3: what came before it is no longer believed."""
    async with KvPublisher(buffer_size=2) as engine, running() as scene:
        await scene.follow(engine)
        await scene.has_state(SourceState.SYNCED)
        await publish(engine, 0, 1)
        await scene.holds(0, 1)
        await publish(engine, 2, 3, lost=True)
        await publish(engine, 4)
        await scene.holds(3, 4, state=SourceState.PARTIAL)
        assert (await scene.belief(0)).tokens == 0
        assert scene.hook.errors["lost"] == 1


async def test_r42_without_a_replay_endpoint_a_gap_makes_the_source_partial() -> None:
    """Nobody to ask, no crash."""
    async with KvPublisher(replays=False) as engine, running() as scene:
        await scene.follow(engine)
        await publish(engine, 0)
        await scene.holds(0)
        await publish(engine, 1, lost=True)
        await publish(engine, 2)
        await scene.holds(2, state=SourceState.PARTIAL)


async def test_a_replay_endpoint_that_never_answers_costs_only_trust() -> None:
    """The gap is given up after the silence; live events go on, and a probe sets it right."""
    async with (
        KvPublisher() as engine,
        running(replay_silence_seconds=0.2, probe_interval_seconds=0.2) as scene,
    ):
        await scene.follow(engine)
        await scene.has_state(SourceState.SYNCED)
        engine.silent = True
        await publish(engine, 0, 1, lost=True)
        await publish(engine, 2)
        await scene.holds(2, state=SourceState.PARTIAL)
        engine.silent = False
        await scene.holds(0, 1, 2)


async def test_r44_what_comes_live_and_by_replay_is_applied_once() -> None:
    """Events published while the attach replay runs arrive twice."""
    async with KvPublisher() as engine, running() as scene:
        await publish(engine, *range(200))
        await scene.follow(engine)
        await publish(engine, *range(200, 260))
        await scene.holds(0, 199, 200, 259)
        assert scene.index.applied == list(range(260))


async def test_a_restarted_engine_is_synced_again_and_its_past_forgotten() -> None:
    """Its numbers begin anew on the same address."""
    async with KvPublisher() as engine, running() as scene:
        await scene.follow(engine)
        await scene.has_state(SourceState.SYNCED)
        await publish(engine, 0, 1, 2)
        await scene.holds(0, 1, 2)
        await engine.restart()
        await engine.subscribed()
        await publish(engine, 7)
        await scene.holds(7)
        assert (await scene.belief(0)).tokens == 0


async def test_a_restart_hidden_behind_a_gap_is_found() -> None:
    """When we are back the new engine is past our number: its numbers alone would look fine."""
    async with KvPublisher() as engine, running() as scene:
        await scene.follow(engine)
        await scene.has_state(SourceState.SYNCED)
        await publish(engine, 0, 1)
        await scene.holds(0, 1)
        await engine.stop()
        await engine.start()
        await publish(engine, 10, 11, 12, 13, lost=True)
        await engine.subscribed()
        await publish(engine, 14)
        await scene.holds(10, 11, 12, 13, 14)
        assert (await scene.belief(0)).tokens == 0


async def test_a_restarted_engine_that_stays_idle_is_found() -> None:
    """Nothing is ever published again, and yet its old blocks are gone."""
    async with KvPublisher() as engine, running(probe_interval_seconds=0.2) as scene:
        await scene.follow(engine)
        await publish(engine, 0)
        await scene.holds(0)
        await engine.restart()
        await scene.until(lambda: scene.belief(0), CacheBelief(0, SourceState.SYNCED))


async def test_the_last_messages_that_got_lost_are_found_by_a_probe() -> None:
    """No later message would ever have shown the gap."""
    async with KvPublisher() as engine, running(probe_interval_seconds=0.2) as scene:
        await scene.follow(engine)
        await publish(engine, 0)
        await publish(engine, 1, lost=True)
        await scene.holds(0, 1)


async def test_probes_keep_an_idle_source_fresh_and_silence_ages_it() -> None:
    """As long as the engine answers, its age stays; when it dies, readers get unknown."""
    async with (
        KvPublisher() as engine,
        running(
            probe_interval_seconds=0.1, replay_silence_seconds=0.2, max_age_seconds=60.0
        ) as scene,
    ):
        await scene.follow(engine)
        await publish(engine, 0)
        await scene.holds(0)
        scene.index.time.advance(61.0)
        assert await scene.belief(0) == CacheBelief.unknown()
        await scene.holds(0)  # the next probe proves it
        await engine.stop()
        await scene.counted("probe_failed")
        scene.index.time.advance(61.0)
        touches = scene.index.touches
        await scene.counted("probe_failed", at_least=3)
        assert await scene.belief(0) == CacheBelief.unknown()
        assert scene.index.touches == touches


async def test_an_engine_that_starts_later_is_attached_when_it_comes() -> None:
    """Nobody is there at first: unknown, no crash, then synced."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with running() as scene:
        await scene.ingest.add(SourceSpec(A, LAYOUT, f"tcp://127.0.0.1:{port}"))
        assert await scene.belief(0) == CacheBelief.unknown()
        engine = KvPublisher(replays=False)
        engine.endpoint = f"tcp://127.0.0.1:{port}"
        async with engine:
            await engine.subscribed()
            await publish(engine, 0)
            await scene.holds(0)


async def test_an_engine_that_connects_is_received_by_binding() -> None:
    """VLLM connects when its endpoint names a host."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"tcp://127.0.0.1:{port}"
    async with KvPublisher(connect_to=endpoint) as engine, running() as scene:
        await scene.follow(engine, bind=True)
        await scene.has_state(SourceState.SYNCED)
        await publish(engine, 0)
        await scene.holds(0)


async def test_only_the_topic_asked_for_is_taken() -> None:
    """One endpoint may carry several publishers' topics."""
    async with KvPublisher(topic=b"kv@b") as engine, running() as scene:
        await scene.follow(engine, topic="kv@b")
        await scene.has_state(SourceState.SYNCED)
        await engine.send_raw([b"kv@a", (99).to_bytes(8, "big"), payload(prompt(5))])
        await publish(engine, 0)
        await scene.holds(0)
        assert (await scene.belief(5)).tokens == 0
        assert scene.hook.errors["gap"] == 0


async def test_r39_what_cannot_be_read_is_counted_and_the_stream_goes_on() -> None:
    """Odd frames, a payload that is no batch, a bad event among good ones, an unknown event."""
    async with KvPublisher() as engine, running() as scene:
        await scene.follow(engine)
        await scene.has_state(SourceState.SYNCED)
        await engine.send_raw([b"only one frame"])
        await publish(engine, 0)
        await scene.holds(0)
        await engine.publish(b"\xc1 no batch")
        await publish(engine, 1)
        await scene.holds(1, state=SourceState.PARTIAL)
        assert (await scene.belief(0)).tokens == 0, "its removals may have been in there"
        good = msgspec.msgpack.decode(payload(prompt(2)))[1][0]
        events = [["BlockRemoved", "x"], ["Tomorrow"], good]
        await engine.publish(msgspec.msgpack.encode([100.0, events, 0]))
        await scene.holds(1, 2, state=SourceState.PARTIAL)
        assert scene.hook.errors == {
            "bad_frames": 1,
            "undecodable_payload": 1,
            "block_hash": 1,
        }
        report = await scene.report()
        assert report.errors == {
            "bad_frames": 1,
            "undecodable_payload": 1,
            "block_hash": 1,
            "unknown_event": 1,
        }


async def test_a_source_whose_task_fails_is_attached_anew_and_others_go_on() -> None:
    """The store was away for one write: everything is learnt again."""
    async with KvPublisher() as one, KvPublisher() as other, running() as scene:
        await scene.follow(one)
        await scene.follow(other, B)
        await scene.has_state(SourceState.SYNCED)
        await publish(one, 0)
        await scene.holds(0)
        scene.index.break_next = True
        await publish(one, 1)
        await scene.counted("task_failed")
        await publish(other, 0)
        await scene.holds(0, source=B)
        await scene.holds(0, 1)


async def test_a_removed_instance_is_followed_no_more() -> None:
    """Its blocks go, its later events change nothing, its sockets are closed."""
    async with KvPublisher() as engine, running() as scene:
        await scene.follow(engine)
        await publish(engine, 0)
        await scene.holds(0)
        await scene.ingest.remove(A.instance)
        await publish(engine, 1)
        assert list(await scene.index.describe()) == []
        await scene.follow(engine)
        await scene.holds(0, 1)


async def test_sources_added_before_the_run_are_followed_once_it_begins() -> None:
    """A configuration is loaded before anything runs."""
    async with KvPublisher() as engine:
        scene = Scene()
        await scene.ingest.add(SourceSpec(A, LAYOUT, engine.endpoint, engine.replay_endpoint))
        await publish(engine, 0)
        task = asyncio.create_task(scene.ingest.run())
        try:
            await scene.holds(0)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


async def test_a_cancelled_run_leaves_no_task_behind() -> None:
    """Listeners, tickers and replays live and die with the run."""
    async with KvPublisher() as engine:
        before = asyncio.all_tasks()
        async with running(probe_interval_seconds=0.05) as scene:
            await scene.follow(engine)
            await publish(engine, 0)
            await scene.holds(0)
        assert asyncio.all_tasks() == before
