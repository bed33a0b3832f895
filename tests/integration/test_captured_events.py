"""What a real vLLM 0.32 published while it was driven, against what it then reused.

The frames of `tests/data/kv_events` were captured from a small dense model (block 32) and from a
hybrid with three recurrent groups beside one of attention (block 256). The driver sent, in order:
A, a prefix and a tail; B, the same prefix and another tail; C, A again; D and E, A and B under the
cache salt "tenant-A"; then fillers until everything was evicted, a reset, and J, A once more.
"""

from __future__ import annotations

import gzip
from itertools import groupby
from pathlib import Path

import msgspec
import pytest

from kvmeta.backends.memory import MemoryIndex
from kvmeta.hashing import prompt_blocks
from kvmeta.ingest.sequences import ReplayAnswer, ReplayEnd
from kvmeta.ingest.subscriber import parse_answer, parse_message
from kvmeta.ingest.vllm import decode_batch
from kvmeta.types import CacheLayout, GroupKind, KvGroup, SourceId, SourceReport, SourceState
from tests.fakes.clocks import FakeClock

DATA = Path(__file__).parent.parent / "data" / "kv_events"
SOURCE = SourceId("vllm")
SALT = "tenant-A"


def load(name: str) -> object:
    return msgspec.msgpack.decode(gzip.decompress((DATA / f"{name}.msgpack.gz").read_bytes()))


DENSE = CacheLayout("qwen2@1", 32)
HYBRID = CacheLayout(
    "qwen3next@1",
    256,
    groups=(KvGroup(GroupKind.FULL_ATTENTION), KvGroup(GroupKind.RECURRENT, count=3)),
)


class Capture:
    """One captured session, fed to an index phase by phase."""

    def __init__(
        self, name: str, layout: CacheLayout, *, prefix: int, tail: int, step: int
    ) -> None:
        self.layout = layout
        self.index = MemoryIndex(clock=FakeClock().monotonic)
        self.prefix = [100 + at % 500 for at in range(prefix)]
        self.a = [*self.prefix, *((700 + at) % 1_000 for at in range(tail))]
        self.b = [*self.prefix, *((800 + at * step) % 1_000 for at in range(tail))]
        frames = load(f"{name}.frames")
        assert isinstance(frames, list)
        self._phases = [(letter, list(same)) for letter, same in groupby(frames, lambda f: f[0][0])]

    async def attach(self) -> None:
        await self.index.register(SOURCE, self.layout)
        await self.index.begin_epoch(SOURCE, SourceState.SYNCED)

    async def after(self, last: str) -> None:
        """Apply what is left of every phase up to and including `last`."""
        while self._phases and self._phases[0][0] <= last:
            _, frames = self._phases.pop(0)
            for _, *wire in frames:
                message = parse_message(wire)
                batch = decode_batch(message.payload)
                assert not batch.faults
                assert await self.index.apply(SOURCE, message.sequence, batch)

    async def hits(self, *prompts: list[int], salt: str | None = None) -> list[int | None]:
        """What could be reused of each prompt."""
        beliefs = [
            await self.index.look_up(prompt_blocks(self.layout, tokens, salt=salt), [SOURCE])
            for tokens in prompts
        ]
        return [belief[SOURCE].tokens for belief in beliefs]


@pytest.fixture
async def dense() -> Capture:
    capture = Capture("qwen2_block32", DENSE, prefix=64, tail=40, step=1)
    await capture.attach()
    return capture


@pytest.fixture
async def hybrid() -> Capture:
    capture = Capture("qwen3next_block256", HYBRID, prefix=512, tail=320, step=3)
    await capture.attach()
    return capture


async def test_a_dense_model_reuses_every_shared_block(dense: Capture) -> None:
    """B shares A's two whole prefix blocks at once; a repeat hits all three."""
    assert await dense.hits(dense.a, dense.b) == [0, 0]
    await dense.after("A")
    assert await dense.hits(dense.a, dense.b) == [96, 64]
    await dense.after("B")
    assert await dense.hits(dense.a, dense.b) == [96, 96]


async def test_r51_salted_blocks_are_their_tenants_alone(dense: Capture) -> None:
    """The same tokens under a salt start cold, then hit for that salt and for no other."""
    await dense.after("C")
    assert await dense.hits(dense.a, dense.b, salt=SALT) == [0, 0]
    await dense.after("D")
    assert await dense.hits(dense.a, dense.b, salt=SALT) == [96, 64]
    await dense.after("E")
    assert await dense.hits(dense.a, dense.b, salt=SALT) == [96, 96]
    assert await dense.hits(dense.a, dense.b, salt="tenant-B") == [0, 0]


async def test_blocks_filled_while_decoding_count(dense: Capture) -> None:
    """G's ten prompt tokens were too few for a block; its answer filled one."""
    await dense.after("F")
    assert (await _report(dense)).blocks == 8
    await dense.after("G")
    assert (await _report(dense)).blocks == 9


async def test_evicted_blocks_are_gone_and_after_the_reset_only_j_is_there(dense: Capture) -> None:
    """Each removal counts; the reset empties what was left."""
    await dense.after("H")
    assert await dense.hits(dense.a, dense.b) == [0, 0]
    assert await dense.hits(dense.a, dense.b, salt=SALT) == [0, 0]
    await dense.after("J")
    assert await dense.hits(dense.a, dense.b) == [96, 64]
    report = await _report(dense)
    assert (report.blocks, report.state, report.errors) == (3, SourceState.SYNCED, {})


async def test_r48_a_hybrid_needs_a_state_at_the_boundary(hybrid: Capture) -> None:
    """B shares 512 of A's 832 tokens and hits nothing: A left a state at 768 only."""
    await hybrid.after("A")
    assert await hybrid.hits(hybrid.a, hybrid.b) == [768, 0]
    await hybrid.after("B")
    third = [*hybrid.prefix, *range(300)]
    assert await hybrid.hits(hybrid.a, hybrid.b, third) == [768, 768, 512]


async def test_r48_salted_sparse_events_find_their_salt_by_label(hybrid: Capture) -> None:
    """Their own extra keys miss it: only the attention group's first block tells the salt."""
    await hybrid.after("C")
    assert await hybrid.hits(hybrid.a, hybrid.b, salt=SALT) == [0, 0]
    await hybrid.after("D")
    assert await hybrid.hits(hybrid.a, hybrid.b, salt=SALT) == [768, 0]
    await hybrid.after("E")
    assert await hybrid.hits(hybrid.a, hybrid.b, salt=SALT) == [768, 768]


async def test_r44_a_state_stored_twice_and_evicted_twice_leaves_nothing(hybrid: Capture) -> None:
    """Recomputed copies of one block are evicted one by one; J starts from an empty cache."""
    await hybrid.after("H")
    assert await hybrid.hits(hybrid.a, hybrid.b) == [0, 0]
    assert "unknown_removal" not in (await _report(hybrid)).errors
    await hybrid.after("J")
    assert await hybrid.hits(hybrid.a, hybrid.b) == [768, 0]
    report = await _report(hybrid)
    assert (report.blocks, report.waiting, report.state) == (6, 0, SourceState.SYNCED)


async def _report(capture: Capture) -> SourceReport:
    (report,) = await capture.index.describe()
    return report


@pytest.mark.parametrize("name", ["qwen2_block32", "qwen3next_block256"])
@pytest.mark.parametrize("topic", [True, False], ids=["with topic", "without topic"])
def test_r42_captured_replays_are_read_from_the_right(name: str, *, topic: bool) -> None:
    """As a DEALER got them, and as engines before the topic frame would have sent them."""
    frames = load(f"{name}.frames")
    replays = load(f"{name}.replay")
    assert isinstance(frames, list)
    assert isinstance(replays, dict)

    def answers(kind: str) -> list[ReplayAnswer | ReplayEnd]:
        return [parse_answer(wire if topic else [wire[0], *wire[2:]]) for wire in replays[kind]]

    published = [ReplayAnswer(int.from_bytes(wire[2], "big"), wire[3]) for wire in frames]
    assert answers("from_0") == [*published, ReplayEnd()]
    assert answers("from_last_minus_1") == [*published[-2:], ReplayEnd()]
    assert answers("beyond_end") == [ReplayEnd()]
