"""The timing decorator: tells of every look-up and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from kvmeta.backends.instrumented import InstrumentedIndex
from kvmeta.backends.memory import MemoryIndex
from kvmeta.events import AllBlocksCleared
from kvmeta.hashing import prompt_blocks
from kvmeta.types import CacheBelief, CacheLayout, PromptBlocks, SourceId, SourceState
from tests.fakes.clocks import FakeClock
from tests.fakes.kv_events import Engine, batch

A, B = SourceId("a"), SourceId("b")
LAYOUT = CacheLayout("f", 4)


class RecordingHook:
    """A `LookUpHook` that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[float, int, int]] = []

    def looked_up(self, seconds: float, sources: int, unknown: int) -> None:
        self.told.append((seconds, sources, unknown))


class SlowIndex(MemoryIndex):
    """Each look-up takes two seconds of the fake clock, and fails if told to."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock.monotonic)
        self.time = clock
        self.fails = False

    async def look_up(
        self, prompt: PromptBlocks, sources: Sequence[SourceId]
    ) -> Mapping[SourceId, CacheBelief]:
        self.time.advance(2.0)
        if self.fails:
            raise ConnectionError
        return await super().look_up(prompt, sources)


async def test_every_look_up_is_timed_and_every_call_passed_on() -> None:
    """The decorated index answers as the inner one does."""
    clock, hook = FakeClock(), RecordingHook()
    inner = SlowIndex(clock)
    index = InstrumentedIndex(inner, hook, clock=clock.monotonic)
    await index.register(A, LAYOUT, max_age_seconds=60)
    await index.begin_epoch(A, SourceState.PARTIAL)
    assert await index.apply(A, 0, batch(Engine().stored([1, 2, 3, 4])))
    await index.set_state(A, SourceState.SYNCED)
    await index.touch(A)
    await index.count_error(A, "gap")
    prompt = prompt_blocks(LAYOUT, [1, 2, 3, 4, 5])
    beliefs = await index.look_up(prompt, [A, B])
    assert beliefs == {A: CacheBelief(4, SourceState.SYNCED), B: CacheBelief.unknown()}
    assert hook.told == [(2.0, 2, 1)]
    (report,) = await index.describe()
    assert report.errors == {"gap": 1}
    assert await index.apply(A, 1, batch(AllBlocksCleared()))
    await index.remove_instance("a")
    assert not list(await inner.describe())


async def test_a_look_up_that_fails_is_told_and_raised() -> None:
    """Every source asked for counts as unknown."""
    clock, hook = FakeClock(), RecordingHook()
    inner = SlowIndex(clock)
    inner.fails = True
    index = InstrumentedIndex(inner, hook, clock=clock.monotonic)
    with pytest.raises(ConnectionError):
        await index.look_up(prompt_blocks(LAYOUT, [1]), [A, B])
    assert hook.told == [(2.0, 2, 2)]
