"""The in-memory back end against the suite, and what is its own: slots, sweeping, memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings

from kvmeta.backends.memory import MemoryIndex
from kvmeta.events import AllBlocksCleared
from kvmeta.types import SourceId, SourceState
from tests.contract.index_model import IndexModel
from tests.contract.index_suite import LAYOUT, A, B, IndexSuite, MakeIndex, Reader, X
from tests.fakes.clocks import FakeClock
from tests.fakes.kv_events import Engine, batch


@pytest.fixture
def make_index() -> MakeIndex:
    async def make(*, clock: FakeClock | None = None, **caps: int) -> MemoryIndex:
        return MemoryIndex(clock=(clock or FakeClock()).monotonic, **caps)

    return make


class TestMemoryIndex(IndexSuite):
    """Every claim of the suite, and these."""

    async def test_a_forgotten_source_leaves_nothing_behind(self) -> None:
        """Bits are swept in bounded steps, masks vanish, slots are used again."""
        index = MemoryIndex(clock=FakeClock().monotonic)
        reader = Reader(index, LAYOUT)
        await reader.attach(A, B)
        await reader.apply(A, Engine().stored(list(range(4_000))))
        await reader.apply(B, Engine().stored(X))
        await index.remove_instance(A.instance)
        assert await reader.hit(A, list(range(4_000))) is None
        steps = 0
        while index.sweep(100):
            steps += 1
        assert steps == 20  # a thousand bits and as many names
        assert len(index._masks) == 4
        assert index._blocks == 4
        await reader.attach(A)
        await reader.apply(A, Engine().stored(X))
        assert index._slots_made == 2

    async def test_it_tells_where_to_go_on(self) -> None:
        """The last number and the digest of its batch are told until the epoch ends."""
        index = MemoryIndex(clock=FakeClock().monotonic)
        reader = Reader(index, LAYOUT)
        await reader.attach(A)
        marked = replace(batch(Engine().stored(X)), digest=b"last")
        assert await index.apply(A, 6, marked)
        report = await reader.report(A)
        assert (report.next_sequence, report.last_digest) == (7, b"last")
        await index.begin_epoch(A, SourceState.UNKNOWN)
        report = await reader.report(A)
        assert (report.next_sequence, report.last_digest) == (None, None)

    async def test_sweeping_keeps_up_with_a_source_that_clears_for_ever(self) -> None:
        """Neither dead bits nor slots pile up under steady clears."""
        index = MemoryIndex(clock=FakeClock().monotonic)
        reader = Reader(index, LAYOUT)
        await reader.attach(A)
        for turn in range(50):
            tokens = list(range(turn * 1_000, turn * 1_000 + 400))
            await reader.apply(A, AllBlocksCleared(), Engine().stored(tokens))
        assert len(index._masks) <= 300
        assert index._slots_made <= 3

    async def test_forgetting_does_not_depend_on_how_much_is_held(self) -> None:
        """A new epoch touches no mask: readers are rid of the old one by its slots alone."""
        index = MemoryIndex(clock=FakeClock().monotonic)
        reader = Reader(index, LAYOUT)
        await reader.attach(A)
        await reader.apply(A, Engine().stored(list(range(4_000))))
        before = dict(index._masks)
        await index.begin_epoch(A, SourceState.SYNCED)
        assert index._masks == before
        assert await reader.hit(A, list(range(4_000))) == 0

    async def test_idle_probes_sweep_as_well(self) -> None:
        """Memory returns although nobody writes."""
        index = MemoryIndex(clock=FakeClock().monotonic)
        reader = Reader(index, LAYOUT)
        await reader.attach(A, B)
        await reader.apply(A, Engine().stored(list(range(4_000))))
        await index.begin_epoch(A, SourceState.SYNCED)
        for _ in range(10):
            await index.touch(B)
        assert not index._masks

    async def test_many_sources_share_one_fetch(self) -> None:
        """Sixty-four sources that hold the prompt to different depths are told apart."""
        index = MemoryIndex(clock=FakeClock().monotonic)
        reader = Reader(index, LAYOUT)
        sources = [SourceId(f"engine-{at}") for at in range(64)]
        tokens = list(range(256))
        await reader.attach(*sources)
        for at, source in enumerate(sources, start=1):
            assert await index.apply(source, 0, batch(Engine().stored(tokens[: 4 * at])))
        assert [await reader.hit(source, tokens) for source in sources] == [
            4 * at for at in range(1, 65)
        ]


class MemoryIndexModel(IndexModel):
    """The in-memory back end against the model of truth."""

    @staticmethod
    async def make() -> MemoryIndex:
        return MemoryIndex(clock=FakeClock().monotonic)


TestMemoryIndexModel = MemoryIndexModel.TestCase
TestMemoryIndexModel.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
