"""SGLang's payloads: its arrays, its media, its way to tell salts."""

from __future__ import annotations

import msgspec
import pytest

from kvmeta.backends.memory import MemoryIndex
from kvmeta.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvmeta.hashing import pack_tokens, prompt_blocks
from kvmeta.ingest.vllm import decode_batch
from kvmeta.types import CacheLayout, EngineLabel, SourceId, SourceState
from tests.fakes.clocks import FakeClock

SOURCE = SourceId("sglang")
LAYOUT = CacheLayout("m@1", 4)
X = list(range(100, 108))  # two blocks


def encode(*events: object) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events)])


def stored(
    *rest: object, hashes: tuple[int, ...] = (11, 12), parent: int | None = None
) -> list[object]:
    """An array event of five fields and what follows them."""
    return ["BlockStored", list(hashes), parent, X, 4, None, *rest]


def stored_as_map(**fields: object) -> dict[str, object]:
    """The latest form: a tagged map."""
    return {
        "type": "BlockStored",
        "block_hashes": [11, 12],
        "parent_block_hash": None,
        "token_ids": X,
        "block_size": 4,
        "lora_id": None,
        "medium": "GPU",
    } | fields


def read_one(event: object) -> BlockStored:
    batch = decode_batch(encode(event))
    assert not batch.faults
    (only,) = batch.events
    assert isinstance(only, BlockStored)
    return only


@pytest.mark.parametrize(
    "event",
    [stored(), stored("GPU"), stored("GPU", {"session_id": "s"}), stored_as_map(session_id="s")],
    ids=["five fields", "with medium", "with metadata", "map"],
)
def test_r39_every_shape_of_sglang_says_the_same(event: object) -> None:
    """Five fields, a medium, a metadata map, or a tagged map: one store, nothing refused."""
    read = read_one(event)
    assert read.labels == (
        EngineLabel((11).to_bytes(8, "big")),
        EngineLabel((12).to_bytes(8, "big")),
    )
    assert (read.tokens, read.block_size, read.medium) == (pack_tokens(X), 4, "GPU")
    assert (read.lora, read.salt, read.extras) == (None, None, None)


@pytest.mark.parametrize(
    ("told", "medium"),
    [("GPU", "GPU"), ("CPU_PINNED", "CPU"), ("DISK", "DISK"), ("EXTERNAL", "EXTERNAL")],
)
def test_r47_sglangs_media_are_tiers(told: str, medium: str) -> None:
    """Pinned host memory is the CPU tier; disk and external pools are tiers of their own."""
    batch = decode_batch(encode(stored(told), ["BlockRemoved", [11], told]))
    assert [event.medium for event in batch.events] == [medium, medium]  # type: ignore[union-attr]


def test_removals_without_a_medium_are_of_the_gpu() -> None:
    """Older removals carry hashes alone, signed ones included."""
    batch = decode_batch(encode(["BlockRemoved", [-1]], ["AllBlocksCleared"]))
    assert batch.events == (
        BlockRemoved((EngineLabel(b"\xff" * 8),), "GPU"),
        AllBlocksCleared(),
    )


@pytest.mark.parametrize(
    "event",
    [stored("GPU", {"cache_salt": "t1"}), stored_as_map(cache_salt="t1", session_id="s")],
    ids=["metadata", "field"],
)
def test_r51_a_named_salt_is_read(event: object) -> None:
    """Both ways to name the salt are the salt, and no repr shows it."""
    read = read_one(event)
    assert read.salt == "t1"
    assert "t1" not in repr(read)


@pytest.mark.parametrize("event", [stored("GPU", {"cache_salt": 7}), stored_as_map(cache_salt=7)])
def test_a_salt_that_is_no_text_costs_its_event(event: object) -> None:
    """Nothing is guessed where the namespace cannot be told."""
    batch = decode_batch(encode(event, ["AllBlocksCleared"]))
    assert batch.events == (AllBlocksCleared(),)
    assert batch.faults == {"cache_salt": 1}


class Scene:
    """An index that hears one SGLang engine."""

    def __init__(self) -> None:
        self.index = MemoryIndex(clock=FakeClock().monotonic)
        self.next = 0

    async def attach(self) -> Scene:
        await self.index.register(SOURCE, LAYOUT)
        await self.index.begin_epoch(SOURCE, SourceState.SYNCED)
        return self

    async def hear(self, *events: object) -> None:
        assert await self.index.apply(SOURCE, self.next, decode_batch(encode(*events)))
        self.next += 1

    async def hit(self, salt: str | None = None) -> int | None:
        prompt = prompt_blocks(LAYOUT, [*X, 1], salt=salt)
        return (await self.index.look_up(prompt, [SOURCE]))[SOURCE].tokens


async def test_r51_a_source_that_never_told_a_salt_is_unknown_for_salted_prompts() -> None:
    """Older servers store salted blocks and say nothing of it: nobody knows whose they are."""
    scene = await Scene().attach()
    await scene.hear(stored("GPU"))
    assert (await scene.hit(), await scene.hit("t1")) == (8, None)


async def test_r51_salted_and_unsalted_chains_live_side_by_side() -> None:
    """A named salt is its tenant's alone; what names none stays everybody's."""
    scene = await Scene().attach()
    await scene.hear(stored("GPU"))
    await scene.hear(stored("GPU", {"cache_salt": "t1"}, hashes=(21, 22)))
    shorter = ["BlockStored", [31], None, X[:4], 4, None, "GPU", {"cache_salt": "t2"}]
    await scene.hear(shorter)
    assert [await scene.hit(salt) for salt in (None, "t1", "t2", "t3")] == [8, 8, 4, 0]
    await scene.hear(["BlockRemoved", [21, 22], "GPU"])
    assert [await scene.hit(salt) for salt in (None, "t1", "t2")] == [8, 0, 4]


async def test_r51_one_hash_under_two_salts_never_crosses() -> None:
    """A server whose hashes leave the salt out: the second namespace is refused, not mixed up."""
    scene = await Scene().attach()
    await scene.hear(stored("GPU", {"cache_salt": "t1"}))
    await scene.hear(stored("GPU", {"cache_salt": "t2"}))
    assert [await scene.hit(salt) for salt in ("t1", "t2", None)] == [8, 0, 0]
    report = next(iter(await scene.index.describe()))
    assert report.state is SourceState.PARTIAL
    assert report.errors["label_conflict"] == 1
