"""What any back end of the index must do: one suite, held against each of them.

A back end's test module gives a `make_index` fixture and subclasses `IndexSuite`. Cases of real
users' faults carry their number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Protocol

import pytest

from kvmeta.events import AllBlocksCleared, Event, EventBatch, UnknownEvent
from kvmeta.hashing import encode_extra, prompt_blocks
from kvmeta.index import MetadataIndex
from kvmeta.types import (
    CacheBelief,
    CacheLayout,
    EngineLabel,
    GroupKind,
    KvGroup,
    SourceId,
    SourceReport,
    SourceState,
)
from tests.fakes.clocks import FakeClock
from tests.fakes.kv_events import Engine, batch, removed, with_extra

A = SourceId("engine-a")
B = SourceId("engine-b")
LAYOUT = CacheLayout("model@1", 4)
FULL, WINDOW, STATE = GroupKind.FULL_ATTENTION, GroupKind.SLIDING_WINDOW, GroupKind.RECURRENT
HYBRID = CacheLayout("hybrid@1", 4, groups=(KvGroup(FULL), KvGroup(STATE, count=2)))
WINDOWED = CacheLayout("windowed@1", 4, groups=(KvGroup(FULL), KvGroup(WINDOW, window=9)))
X = list(range(100, 116))  # four blocks


class MakeIndex(Protocol):
    """Builds an empty index; caps as the back end's own defaults unless given."""

    async def __call__(self, *, clock: FakeClock | None = None, **caps: int) -> MetadataIndex: ...


class Reader:
    """An index with sources attached, asked in tokens."""

    def __init__(self, index: MetadataIndex, layout: CacheLayout) -> None:
        self.index = index
        self.layout = layout
        self._next: dict[SourceId, int] = {}

    async def attach(self, *sources: SourceId, state: SourceState = SourceState.SYNCED) -> None:
        for source in sources:
            await self.index.register(source, self.layout)
            await self.index.begin_epoch(source, state)
            self._next[source] = 0

    async def apply(self, source: SourceId, *events: Event) -> None:
        """The source's next batch."""
        sequence = self._next[source]
        self._next[source] = sequence + 1
        assert await self.index.apply(source, sequence, batch(*events))

    async def belief(
        self,
        source: SourceId,
        tokens: Sequence[int],
        *,
        salt: str | None = None,
        lora: str | None = None,
        whole: bool = False,
    ) -> CacheBelief:
        """What `source` could reuse of `tokens`, one more token following unless `whole`."""
        asked = list(tokens) if whole else [*tokens, 9]
        prompt = prompt_blocks(self.layout, asked, salt=salt, lora=lora)
        return (await self.index.look_up(prompt, [source]))[source]

    async def hit(self, source: SourceId, tokens: Sequence[int], **how: str | bool) -> int | None:
        return (await self.belief(source, tokens, **how)).tokens  # type: ignore[arg-type]

    async def report(self, source: SourceId) -> SourceReport:
        return next(one for one in await self.index.describe() if one.source == source)


class IndexSuite:
    """Every claim that a back end is held to."""

    @pytest.fixture
    async def reader(self, make_index: MakeIndex) -> Reader:
        """A and B attached to an empty index of a plain model."""
        reader = Reader(await make_index(), LAYOUT)
        await reader.attach(A, B)
        return reader

    @pytest.fixture
    async def hybrid(self, make_index: MakeIndex) -> Reader:
        """A attached, of a model with one attention and two recurrent groups."""
        reader = Reader(await make_index(), HYBRID)
        await reader.attach(A)
        return reader

    # -- what a look-up answers ------------------------------------------------------------------

    async def test_an_unknown_source_is_unknown_and_still_answered(self, reader: Reader) -> None:
        """Nothing known is neither zero nor a hit."""
        stranger = SourceId("stranger")
        prompt = prompt_blocks(LAYOUT, X)
        beliefs = await reader.index.look_up(prompt, [A, stranger])
        assert set(beliefs) == {A, stranger}
        assert beliefs[stranger] == CacheBelief.unknown()
        assert beliefs[A] == CacheBelief(0, SourceState.SYNCED)

    async def test_a_registered_source_is_unknown_until_its_epoch_begins(
        self, make_index: MakeIndex
    ) -> None:
        """Registering says nothing about the cache."""
        reader = Reader(await make_index(), LAYOUT)
        await reader.index.register(A, LAYOUT)
        await reader.index.apply(A, 0, batch(Engine().stored(X)))
        assert await reader.belief(A, X) == CacheBelief.unknown()

    async def test_the_longest_stored_prefix_is_the_hit(self, reader: Reader) -> None:
        """Whole blocks from the start, up to the first difference."""
        await reader.apply(A, Engine().stored(X))
        assert await reader.hit(A, X) == 16
        assert await reader.hit(A, X[:9]) == 8
        assert await reader.hit(A, [*X[:8], 1, *X[9:]]) == 8
        assert await reader.hit(A, X[4:]) == 0
        assert await reader.hit(B, X) == 0

    async def test_a_chain_may_grow_in_steps(self, reader: Reader) -> None:
        """A later event continues from a parent that an earlier one stored."""
        engine = Engine()
        await reader.apply(A, engine.stored(X[:8]))
        await reader.apply(A, engine.stored(X, start=2))
        assert await reader.hit(A, X) == 16

    async def test_a_hole_ends_the_prefix(self, reader: Reader) -> None:
        """Blocks after an evicted one cannot be reused."""
        engine = Engine()
        await reader.apply(A, engine.stored(X), removed(engine.labels(X)[1:2]))
        assert await reader.hit(A, X) == 4

    async def test_r54_a_wholly_cached_prompt_recomputes_at_most_a_block(
        self, reader: Reader
    ) -> None:
        """The last token is always computed, so the hit ends a block before the end."""
        await reader.apply(A, Engine().stored(X))
        assert await reader.hit(A, X, whole=True) == 12

    async def test_r54_tokens_on_the_cpu_tier_count_in_full(self, make_index: MakeIndex) -> None:
        """12,000 of 30,000 tokens in host memory leave 18,000 uncached, not more."""
        layout = CacheLayout("model@1", 16)
        reader = Reader(await make_index(), layout)
        await reader.attach(A)
        tokens = list(range(30_000))
        await reader.apply(A, Engine(16).stored(tokens[:12_000], medium="CPU", group=None))
        assert 30_000 - (await reader.hit(A, tokens, whole=True) or 0) == 18_000

    async def test_media_that_are_not_counted_give_no_hit(self, make_index: MakeIndex) -> None:
        """A disk tier counts only where the operator says so."""
        for media, expected in ((LAYOUT.counted_media, 0), (frozenset({"DISK"}), 16)):
            reader = Reader(await make_index(), replace(LAYOUT, counted_media=media))
            await reader.attach(A)
            await reader.apply(A, Engine().stored(X, medium="DISK"))
            assert await reader.hit(A, X) == expected

    async def test_eagle_reuses_a_block_less(self, make_index: MakeIndex) -> None:
        """The draft head needs the block after the reused prefix."""
        reader = Reader(await make_index(), replace(LAYOUT, eagle=True))
        await reader.attach(A)
        await reader.apply(A, Engine().stored(X))
        assert await reader.hit(A, X) == 12

    # -- counting --------------------------------------------------------------------------------

    async def test_r44_a_batch_delivered_twice_counts_once(self, reader: Reader) -> None:
        """Live and by replay: one removal empties it again."""
        engine = Engine()
        stored = batch(engine.stored(X[:4]))
        assert await reader.index.apply(A, 5, stored)
        assert not await reader.index.apply(A, 5, stored)
        assert await reader.hit(A, X) == 4
        assert await reader.index.apply(A, 6, batch(removed(engine.labels(X[:4]))))
        assert await reader.hit(A, X) == 0
        assert (await reader.report(A)).blocks == 0
        assert (await reader.report(A)).next_sequence == 7

    async def test_r44_a_block_stored_twice_survives_one_removal(self, reader: Reader) -> None:
        """Engines keep equal blocks side by side and evict each on its own."""
        engine = Engine()
        labels = engine.labels(X[:4])
        await reader.apply(A, engine.stored(X[:4]))
        await reader.apply(A, engine.stored(X[:4]))
        await reader.apply(A, removed(labels))
        assert await reader.hit(A, X) == 4
        await reader.apply(A, removed(labels))
        assert await reader.hit(A, X) == 0

    async def test_an_older_sequence_number_changes_nothing(self, reader: Reader) -> None:
        """Numbers only rise within an epoch."""
        engine = Engine()
        assert await reader.index.apply(A, 7, batch(engine.stored(X)))
        assert not await reader.index.apply(A, 3, batch(removed(engine.labels(X))))
        assert await reader.hit(A, X) == 16

    async def test_a_removal_of_something_never_stored_is_counted_and_ignored(
        self, reader: Reader
    ) -> None:
        """No count falls below zero: a later store is present."""
        engine = Engine()
        await reader.apply(A, removed(engine.labels(X)))
        await reader.apply(A, engine.stored(X))
        assert await reader.hit(A, X) == 16
        assert (await reader.report(A)).errors["unknown_removal"] == 4

    async def test_r53_engines_with_unrelated_hashes_agree_on_the_tokens(
        self, reader: Reader
    ) -> None:
        """Labels live within their source; another source's removals touch nothing."""
        a, b = Engine(seed="a"), Engine(seed="b")
        await reader.apply(A, a.stored(X))
        await reader.apply(B, b.stored(X))
        assert [await reader.hit(source, X) for source in (A, B)] == [16, 16]
        await reader.apply(B, removed(b.labels(X)))
        await reader.apply(A, removed(b.labels(X)))
        assert [await reader.hit(source, X) for source in (A, B)] == [16, 0]

    async def test_ranks_of_one_instance_are_sources_of_their_own(self, reader: Reader) -> None:
        """Each rank has its cache and its sequence."""
        other = SourceId(A.instance, 1)
        await reader.attach(other)
        await reader.apply(A, Engine().stored(X))
        assert [await reader.hit(source, X) for source in (A, other)] == [16, 0]

    async def test_one_label_for_two_contents_is_refused(self, reader: Reader) -> None:
        """The first meaning stays; the source is no longer complete."""
        engine = Engine()
        liar = replace(engine.stored(list(range(4))), labels=engine.labels(X[:4]))
        await reader.apply(A, engine.stored(X))
        await reader.apply(A, liar)
        assert await reader.hit(A, X) == 16
        assert await reader.belief(A, list(range(4))) == CacheBelief(0, SourceState.PARTIAL)
        assert (await reader.report(A)).errors["label_conflict"] == 1

    # -- namespaces ------------------------------------------------------------------------------

    async def test_r51_a_salted_block_matches_its_own_salt_only(self, reader: Reader) -> None:
        """Stored under t1: all for t1, nothing for t2 or without."""
        await reader.apply(A, Engine().stored(X, salt="t1"))
        assert await reader.hit(A, X, salt="t1") == 16
        assert await reader.hit(A, X, salt="t2") == 0
        assert await reader.hit(A, X) == 0

    async def test_r51_what_continues_a_salted_chain_is_salted(self, reader: Reader) -> None:
        """Only the first block tells the salt; the chain carries it on."""
        engine = Engine()
        await reader.apply(A, engine.stored(X[:8], salt="t1"))
        await reader.apply(A, engine.stored(X, start=2, salt="t1"))
        assert await reader.hit(A, X, salt="t1") == 16
        assert await reader.hit(A, X) == 0

    async def test_r51_a_source_that_cannot_tell_salts_is_unknown_for_salted_prompts(
        self, reader: Reader
    ) -> None:
        """Old events have no extra keys: whose block it is stays open."""
        await reader.apply(A, Engine().stored(X, told=False))
        assert await reader.hit(A, X) == 16
        assert await reader.belief(A, X, salt="t1") == CacheBelief.unknown()

    async def test_r51_an_offloaded_copy_keeps_the_salt_of_its_label(self, reader: Reader) -> None:
        """Offload events carry tokens but no salt: the label, not the tokens, says what it is."""
        engine = Engine()
        labels = engine.labels(X, salt="t1")
        await reader.apply(A, engine.stored(X, salt="t1"))
        offloaded = replace(engine.stored(X, told=False, medium="CPU"), labels=labels)
        await reader.apply(A, offloaded, removed(labels))
        assert await reader.hit(A, X, salt="t1") == 16
        assert await reader.hit(A, X) == 0

    @pytest.mark.parametrize("after_gpu_events", [True, False])
    async def test_r51_an_offloaded_copy_that_nothing_explains_is_never_unsalted(
        self, reader: Reader, *, after_gpu_events: bool
    ) -> None:
        """Names of another hash (LMCache's), or lost GPU events: they wait and give no hit."""
        if after_gpu_events:
            await reader.apply(A, Engine().stored(list(range(8))))
        await reader.apply(A, Engine(seed="lmcache").stored(X, told=False, medium="CPU"))
        assert await reader.hit(A, X) == 0
        assert (await reader.report(A)).waiting == 4
        assert await reader.hit(A, X, salt="t1") == 0, "and the source still tells salts"

    async def test_adapters_are_namespaces(self, reader: Reader) -> None:
        """The base model's blocks are not an adapter's."""
        await reader.apply(A, Engine().stored(X, lora="ada"))
        assert await reader.hit(A, X, lora="ada") == 16
        assert await reader.hit(A, X, lora="eve") == 0
        assert await reader.hit(A, X) == 0

    async def test_images_are_part_of_their_block(self, reader: Reader) -> None:
        """The same placeholder tokens with another image are another prompt."""
        await reader.apply(A, with_extra(Engine().stored(X), 1, ("image-a", 0)))

        async def hit(name: str | None) -> int | None:
            extras = {1: encode_extra([(name, 0)])} if name else {}
            prompt = prompt_blocks(LAYOUT, [*X, 9], extras=extras)
            return (await reader.index.look_up(prompt, [A]))[A].tokens

        assert [await hit(name) for name in ("image-a", "image-b", None)] == [16, 4, 4]

    async def test_another_fingerprint_shares_nothing(self, reader: Reader) -> None:
        """A prompt of another model finds no block, on any source."""
        await reader.apply(A, Engine().stored(X))
        prompt = prompt_blocks(replace(LAYOUT, fingerprint="model@2"), [*X, 9])
        assert (await reader.index.look_up(prompt, [A]))[A].tokens == 0

    # -- waiting ---------------------------------------------------------------------------------

    async def test_r45_a_child_of_an_unknown_parent_matches_nothing(self, reader: Reader) -> None:
        """A prompt that starts with the child's tokens is another prompt."""
        engine = Engine()
        await reader.apply(A, engine.stored(X[:12], start=2))
        assert await reader.hit(A, X[8:12]) == 0
        assert await reader.hit(A, X[:12]) == 0
        await reader.apply(A, engine.stored(X[:8]))
        assert await reader.hit(A, X[:12]) == 12
        assert await reader.hit(A, X[8:12]) == 0

    async def test_r45_waiting_descendants_follow_at_any_depth(self, reader: Reader) -> None:
        """Announced backwards, block by block, the chain still comes together."""
        engine = Engine()
        long = list(range(200, 200 + 4 * 50))
        for start in reversed(range(1, 50)):
            await reader.apply(A, engine.stored(long[: 4 * start + 4], start=start))
        assert await reader.hit(A, long) == 0
        await reader.apply(A, engine.stored(long[:4]))
        assert await reader.hit(A, long) == 200
        assert (await reader.report(A)).waiting == 0

    async def test_r45_a_removal_takes_a_waiting_block_out(self, reader: Reader) -> None:
        """Evicted before its parent became known: it must not appear afterwards."""
        engine = Engine()
        await reader.apply(A, engine.stored(X[:12], start=2))
        await reader.apply(A, removed(engine.labels(X[:12])[2:]))
        assert (await reader.report(A)).waiting == 0
        await reader.apply(A, engine.stored(X[:8]))
        assert await reader.hit(A, X[:12]) == 8

    async def test_r45_a_removed_block_still_links_its_waiting_children(
        self, reader: Reader
    ) -> None:
        """Its tokens name them; it is not present itself."""
        engine = Engine()
        labels = engine.labels(X)
        await reader.apply(A, engine.stored(X, start=2))
        await reader.apply(A, removed(labels[2:3]))
        await reader.apply(A, engine.stored(X[:8]))
        assert await reader.hit(A, X) == 8
        report = await reader.report(A)
        assert (report.blocks, report.waiting) == (3, 0), "the last block is named already"
        await reader.apply(A, engine.stored(X[:12], start=2))
        assert await reader.hit(A, X) == 16

    async def test_r45_what_waits_is_bounded_and_counted(self, make_index: MakeIndex) -> None:
        """Beyond the bound the oldest leave; what is kept still resolves."""
        reader = Reader(await make_index(max_waiting=8), LAYOUT)
        await reader.attach(A)
        engine = Engine()
        for seed in range(20):
            await reader.apply(A, engine.stored([seed, *X[1:8]], start=1))
        report = await reader.report(A)
        assert (report.waiting, report.errors["waited_too_long"]) == (8, 12)
        await reader.apply(A, engine.stored([0, *X[1:4]]), engine.stored([19, *X[1:4]]))
        assert await reader.hit(A, [0, *X[1:8]]) == 4
        assert await reader.hit(A, [19, *X[1:8]]) == 8

    async def test_a_parent_removed_in_the_same_batch_still_names_its_child(
        self, reader: Reader
    ) -> None:
        """Within one engine step the order of events does not lose a chain."""
        engine = Engine()
        await reader.apply(
            A,
            engine.stored(X[:4]),
            removed(engine.labels(X[:4])),
            engine.stored(X[:8], start=1),
            engine.stored(X[:4], medium="CPU"),
        )
        assert await reader.hit(A, X) == 8

    # -- media -----------------------------------------------------------------------------------

    async def test_r47_an_offloaded_block_survives_its_eviction_from_the_gpu(
        self, reader: Reader
    ) -> None:
        """Placeholders without tokens are the same block in another tier."""
        engine = Engine()
        labels = engine.labels(X[:4])
        await reader.apply(A, engine.stored(X[:4]))
        await reader.apply(A, engine.placeholder(labels, medium="CPU"))
        await reader.apply(A, removed(labels))
        assert await reader.hit(A, X) == 4
        await reader.apply(A, removed(labels, medium="CPU"))
        assert await reader.hit(A, X) == 0

    async def test_r47_a_placeholder_without_group_is_the_attention_groups(
        self, reader: Reader
    ) -> None:
        """Tiers that know no groups offload attention blocks."""
        engine = Engine()
        labels = engine.labels(X[:4])
        await reader.apply(A, engine.stored(X[:4], group=3))
        await reader.apply(A, engine.placeholder(labels, medium="CPU", group=None))
        await reader.apply(A, removed(labels, group=3))
        assert await reader.hit(A, X) == 4

    async def test_r47_a_prefix_may_lie_in_two_tiers(self, reader: Reader) -> None:
        """Each block in any counted medium is enough."""
        engine = Engine()
        labels = engine.labels(X)
        await reader.apply(A, engine.stored(X))
        await reader.apply(A, engine.placeholder(labels[:2], medium="CPU"), removed(labels[:2]))
        assert await reader.hit(A, X) == 16

    # -- groups ----------------------------------------------------------------------------------

    def _step(self, engine: Engine, tokens: Sequence[int]) -> list[Event]:
        """One engine step of a hybrid model: its last state, and every attention block."""
        return [
            engine.sparse(tokens, [len(tokens)], group=0, kind=STATE),
            engine.sparse(tokens, [len(tokens)], group=1, kind=STATE),
            engine.stored(tokens, group=2),
        ]

    async def test_r48_the_attention_chain_is_whole_whatever_the_order(
        self, make_index: MakeIndex
    ) -> None:
        """Sparse events find their labels in the dense one, before or after it."""
        for order in permutations(range(3)):
            reader = Reader(await make_index(), HYBRID)
            await reader.attach(A)
            events = self._step(Engine(), X)
            await reader.apply(A, *(events[at] for at in order))
            assert await reader.hit(A, X) == 16

    async def test_r48_the_dense_event_may_come_in_a_later_batch(self, hybrid: Reader) -> None:
        """Labels wait across batches."""
        first, second, dense = self._step(Engine(), X)
        await hybrid.apply(A, first, second)
        await hybrid.apply(A, dense)
        assert await hybrid.hit(A, X) == 16

    async def test_r48_a_state_is_needed_at_exactly_the_boundary(self, hybrid: Reader) -> None:
        """Attention blocks alone serve nothing; the state at 16 serves 16 and nothing shorter."""
        await hybrid.apply(A, *self._step(Engine(), X))
        assert await hybrid.hit(A, X[:12]) == 0
        assert await hybrid.hit(A, [*X, 1, 2, 3, 4]) == 16

    async def test_r48_losing_one_group_loses_the_prefix_and_no_other_group(
        self, hybrid: Reader
    ) -> None:
        """Each group has its own copy under the same label."""
        engine = Engine()
        last = engine.labels(X)[-1:]
        await hybrid.apply(A, *self._step(engine, X))
        await hybrid.apply(A, removed(last, group=0))
        assert await hybrid.hit(A, X) == 0
        await hybrid.apply(A, engine.sparse(X, [16], group=0, kind=STATE))
        assert await hybrid.hit(A, X) == 16
        await hybrid.apply(A, removed(last, group=2))
        assert await hybrid.hit(A, X) == 0

    async def test_r48_a_real_hybrids_shape(self, make_index: MakeIndex) -> None:
        """Three recurrent groups and MLA blocks of 768: five blocks, or nothing without state."""
        layout = CacheLayout("kimi@1", 768, groups=(KvGroup(FULL), KvGroup(STATE)))
        engine = Engine(768)
        tokens = list(range(3_840))
        events: list[Event] = [
            *(engine.sparse(tokens, [3_840], group=group, kind=STATE) for group in range(3)),
            engine.stored(tokens, group=3),
        ]
        for seed in range(4):
            reader = Reader(await make_index(), layout)
            await reader.attach(A)
            random.Random(seed).shuffle(events)
            await reader.apply(A, *events)
            assert await reader.hit(A, tokens) == 3_840
            await reader.apply(A, removed(engine.labels(tokens)[-1:], group=0))
            assert await reader.hit(A, tokens) == 0

    async def test_r48_a_sliding_window_needs_only_its_tail(self, make_index: MakeIndex) -> None:
        """Nine tokens of window in blocks of four: the last two blocks, not the first ones."""
        reader = Reader(await make_index(), WINDOWED)
        await reader.attach(A)
        engine = Engine()
        labels = engine.labels(X)
        await reader.apply(
            A, engine.stored(X), engine.sparse(X, [4, 8, 12, 16], group=1, kind=WINDOW, window=9)
        )
        await reader.apply(A, removed(labels[:2], group=1))
        assert await reader.hit(A, X) == 16
        await reader.apply(A, removed(labels[3:], group=1))
        assert await reader.hit(A, X) == 0

    async def test_a_short_run_of_a_window_counts_if_it_reaches_the_start(
        self, make_index: MakeIndex
    ) -> None:
        """One block from the beginning is all the window that there is."""
        reader = Reader(await make_index(), WINDOWED)
        await reader.attach(A)
        engine = Engine()
        await reader.apply(
            A, engine.stored(X), engine.sparse(X, [4], group=1, kind=WINDOW, window=9)
        )
        assert await reader.hit(A, X) == 4

    async def test_a_declared_group_that_announced_nothing_means_zero(
        self, make_index: MakeIndex
    ) -> None:
        """Its states may all be gone: attention blocks prove nothing about it."""
        reader = Reader(await make_index(), HYBRID)
        await reader.attach(A)
        engine = Engine()
        await reader.apply(A, engine.stored(X, group=2))
        assert await reader.hit(A, X) == 0
        await reader.apply(A, engine.sparse(X, [16], group=0, kind=STATE))
        assert await reader.hit(A, X) == 0, "one of two declared groups"
        await reader.apply(A, engine.sparse(X, [16], group=1, kind=STATE))
        assert await reader.hit(A, X) == 16

    async def test_an_undeclared_group_that_announces_itself_is_required(
        self, reader: Reader
    ) -> None:
        """The engine has it, whatever the operator wrote."""
        engine = Engine()
        await reader.apply(A, engine.stored(X), engine.sparse(X, [8], group=1, kind=STATE))
        assert await reader.hit(A, X) == 8

    async def test_a_group_known_by_empty_events_only_is_required(self, reader: Reader) -> None:
        """An engine that kept no state says so with an empty list."""
        engine = Engine()
        await reader.apply(A, engine.stored(X), engine.sparse(X, [], group=1, kind=STATE))
        assert await reader.hit(A, X) == 0

    async def test_groups_may_have_coarser_blocks_than_the_hash_unit(
        self, make_index: MakeIndex
    ) -> None:
        """Hits end where every group's blocks end; a coarse block is named by its last unit."""
        layout = replace(LAYOUT, groups=(KvGroup(FULL), KvGroup(STATE)))
        reader = Reader(await make_index(), layout)
        await reader.attach(A)
        engine = Engine()
        await reader.apply(
            A,
            engine.stored(X),
            engine.sparse(X, [8, 16], group=1, kind=STATE, block=8),
        )
        assert await reader.hit(A, X) == 16
        assert await reader.hit(A, X[:12]) == 8

    # -- block sizes and caps --------------------------------------------------------------------

    async def test_a_block_size_that_does_not_fit_the_layout_is_refused(
        self, reader: Reader
    ) -> None:
        """Counted, not applied; the source is no longer complete."""
        await reader.apply(A, Engine(6).stored(X))
        assert await reader.belief(A, X) == CacheBelief(0, SourceState.PARTIAL)
        assert (await reader.report(A)).errors["block_size"] == 1

    async def test_a_block_over_the_declared_size_is_refused(self, make_index: MakeIndex) -> None:
        """The declaration is what the fleet agreed on."""
        reader = Reader(await make_index(), replace(LAYOUT, groups=(KvGroup(FULL, block_size=4),)))
        await reader.attach(A)
        await reader.apply(A, Engine(8).stored(X))
        assert await reader.belief(A, X) == CacheBelief(0, SourceState.PARTIAL)

    async def test_r57_a_source_is_capped_and_says_so(self, make_index: MakeIndex) -> None:
        """Beyond its cap nothing is taken; what is held stays true; removals make room."""
        reader = Reader(await make_index(max_blocks_per_source=3), LAYOUT)
        await reader.attach(A, B)
        engine = Engine()
        await reader.apply(A, engine.stored(X))
        assert await reader.belief(A, X) == CacheBelief(12, SourceState.PARTIAL)
        assert (await reader.report(A)).blocks == 3
        await reader.apply(A, removed(engine.labels(X)[2:3]), removed(engine.labels(X)[3:]))
        await reader.apply(A, engine.stored(X[:12], start=2))
        assert await reader.hit(A, X) == 12
        await reader.apply(B, engine.stored(X[:12]))
        assert await reader.belief(B, X) == CacheBelief(12, SourceState.SYNCED)

    async def test_r57_all_sources_together_are_capped(self, make_index: MakeIndex) -> None:
        """The total holds whoever comes; a source that leaves makes room."""
        reader = Reader(await make_index(max_blocks_total=6), LAYOUT)
        await reader.attach(A, B)
        engine = Engine()
        await reader.apply(A, engine.stored(X))
        await reader.apply(B, engine.stored(X))
        assert await reader.belief(B, X) == CacheBelief(8, SourceState.PARTIAL)
        await reader.index.remove_instance(A.instance)
        await reader.index.begin_epoch(B, SourceState.SYNCED)
        await reader.index.apply(B, 0, batch(engine.stored(X)))
        assert await reader.belief(B, X) == CacheBelief(16, SourceState.SYNCED)

    async def test_r57_a_cleared_source_that_fills_again_is_never_refused(
        self, make_index: MakeIndex
    ) -> None:
        """What is forgotten costs the living no room, however often."""
        reader = Reader(await make_index(max_blocks_total=4), LAYOUT)
        await reader.attach(A)
        engine = Engine()
        for _ in range(5):
            await reader.apply(A, AllBlocksCleared(), engine.stored(X))
        assert await reader.belief(A, X) == CacheBelief(16, SourceState.SYNCED)

    # -- epochs, clears, trust -------------------------------------------------------------------

    async def test_r46_a_cleared_cache_is_empty_in_every_medium(self, reader: Reader) -> None:
        """A's reset leaves B alone, and A's later blocks count again."""
        engine = Engine()
        for source in (A, B):
            await reader.apply(source, engine.stored(X))
            await reader.apply(source, engine.placeholder(engine.labels(X), medium="CPU"))
        await reader.apply(A, AllBlocksCleared())
        assert [await reader.hit(source, X) for source in (A, B)] == [0, 16]
        await reader.apply(A, engine.stored(X[:8]))
        assert await reader.hit(A, X) == 8

    async def test_r46_a_clear_keeps_its_place_among_the_events(self, reader: Reader) -> None:
        """Stored before it is gone, stored after it is there; twice as well."""
        engine = Engine()
        await reader.apply(
            A,
            engine.stored(X),
            AllBlocksCleared(),
            engine.stored(X[:4]),
            AllBlocksCleared(),
            engine.stored(X[:8]),
        )
        assert await reader.hit(A, X) == 8
        assert (await reader.report(A)).blocks == 2

    async def test_r46_waiting_blocks_are_cleared_as_well(self, reader: Reader) -> None:
        """A parent announced later does not bring them back."""
        engine = Engine()
        await reader.apply(A, engine.stored(X, start=2))
        await reader.apply(A, AllBlocksCleared(), engine.stored(X[:8]))
        assert await reader.hit(A, X) == 8

    async def test_r46_sequence_numbers_go_on_after_a_clear(self, reader: Reader) -> None:
        """A batch replayed from before the clear stays applied."""
        engine = Engine()
        await reader.apply(A, engine.stored(X))
        await reader.apply(A, AllBlocksCleared())
        assert not await reader.index.apply(A, 0, batch(engine.stored(X)))
        assert await reader.hit(A, X) == 0

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (SourceState.PARTIAL, SourceState.SYNCED),
            (SourceState.SYNCED, SourceState.SYNCED),
            (SourceState.UNKNOWN, SourceState.UNKNOWN),
        ],
    )
    async def test_a_cleared_source_is_known_to_be_empty(
        self, reader: Reader, before: SourceState, after: SourceState
    ) -> None:
        """What was missed before no longer matters, unless it was never attached."""
        await reader.index.set_state(A, before)
        await reader.apply(A, AllBlocksCleared())
        assert (await reader.report(A)).state is after

    async def test_a_new_epoch_forgets_everything_and_counts_from_the_start(
        self, reader: Reader
    ) -> None:
        """Also the labels: a child of the old epoch's blocks waits."""
        engine = Engine()
        await reader.apply(A, engine.stored(X))
        epoch = (await reader.report(A)).epoch
        await reader.index.begin_epoch(A, SourceState.PARTIAL)
        assert await reader.belief(A, X) == CacheBelief(0, SourceState.PARTIAL)
        assert await reader.index.apply(A, 0, batch(engine.stored(X, start=2)))
        assert await reader.hit(A, X) == 0
        report = await reader.report(A)
        assert (report.epoch, report.waiting) == (epoch + 1, 2)

    async def test_a_partial_source_still_tells_what_it_holds(self, reader: Reader) -> None:
        """A lower bound, flagged."""
        await reader.apply(A, Engine().stored(X))
        await reader.index.set_state(A, SourceState.PARTIAL)
        assert await reader.belief(A, X) == CacheBelief(16, SourceState.PARTIAL)

    async def test_an_unreadable_event_makes_a_synced_source_partial(self, reader: Reader) -> None:
        """Its neighbours are applied, its cause is counted."""
        stored = Engine().stored(X)
        await reader.index.apply(A, 0, EventBatch(0.0, (stored,), faults={"token_ids": 2}))
        assert await reader.belief(A, X) == CacheBelief(16, SourceState.PARTIAL)
        assert (await reader.report(A)).errors["token_ids"] == 2

    async def test_r39_an_unknown_event_is_counted_and_harmless(self, reader: Reader) -> None:
        """A newer engine's event types do not cost trust."""
        await reader.apply(A, UnknownEvent("Tomorrow"), Engine().stored(X))
        assert await reader.belief(A, X) == CacheBelief(16, SourceState.SYNCED)
        assert (await reader.report(A)).errors["unknown_event"] == 1

    async def test_a_source_that_stops_proving_itself_ages_to_unknown(
        self, make_index: MakeIndex
    ) -> None:
        """Stale hits are worse than none; a proof brings them back."""
        clock = FakeClock(100.0)
        reader = Reader(await make_index(clock=clock), LAYOUT)
        await reader.attach(A, B)
        await reader.index.register(A, LAYOUT, max_age_seconds=10)
        for source in (A, B):
            await reader.apply(source, Engine().stored(X))
        clock.advance(10.5)
        assert await reader.belief(A, X) == CacheBelief.unknown()
        assert (await reader.report(A)).state is SourceState.UNKNOWN
        assert (await reader.report(A)).age_seconds == 10.5
        assert await reader.hit(B, X) == 16, "B cannot prove itself, so its silence means nothing"
        await reader.index.touch(A)
        assert await reader.belief(A, X) == CacheBelief(16, SourceState.SYNCED)

    # -- membership ------------------------------------------------------------------------------

    async def test_a_removed_instance_owns_nothing(self, reader: Reader) -> None:
        """Every rank of it goes; late events of it change nothing."""
        rank = SourceId(A.instance, 1)
        await reader.attach(rank)
        engine = Engine()
        for source in (A, rank, B):
            await reader.apply(source, engine.stored(X))
        await reader.index.remove_instance(A.instance)
        assert not await reader.index.apply(A, 9, batch(engine.stored(X)))
        await reader.index.begin_epoch(A, SourceState.SYNCED)
        await reader.index.set_state(A, SourceState.SYNCED)
        await reader.index.touch(A)
        await reader.index.count_error(A, "late")
        assert await reader.belief(A, X) == CacheBelief.unknown()
        assert {report.source for report in await reader.index.describe()} == {B}
        assert await reader.hit(B, X) == 16

    async def test_registering_again_is_harmless_unless_the_layout_changed(
        self, reader: Reader
    ) -> None:
        """Equal: nothing happens. Another layout: what was held was held under the other."""
        await reader.apply(A, Engine().stored(X))
        await reader.index.register(A, LAYOUT)
        assert await reader.hit(A, X) == 16
        await reader.index.register(A, replace(LAYOUT, fingerprint="model@2"))
        assert await reader.belief(A, X) == CacheBelief.unknown()
        assert (await reader.report(A)).blocks == 0

    async def test_a_report_tells_numbers_and_counted_errors(self, reader: Reader) -> None:
        """What operators see; errors outlive epochs."""
        await reader.apply(A, Engine().stored(X), removed([EngineLabel(b"never here")]))
        await reader.index.count_error(A, "gap")
        await reader.index.begin_epoch(A, SourceState.SYNCED)
        report = await reader.report(A)
        assert report.errors == {"unknown_removal": 1, "gap": 1}
        assert (report.blocks, report.waiting, report.next_sequence) == (0, 0, None)
