"""A back end against a model that keeps the truth in the plainest way: prompts and counts.

Random engines store, remove, offload, clear, restart and repeat themselves over groups and media,
and prompts are looked up in between. Orderly engines place every label before they hang anything on
it, and the index must know the truth exactly. Others announce children of parents that nobody ever
heard of: while something waits to be named the index may know less, but never claims more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmeta.events import AllBlocksCleared, BlockStored, Event
from kvmeta.hashing import prompt_blocks
from kvmeta.index import MetadataIndex
from kvmeta.types import CacheLayout, EngineLabel, GroupKind, KvGroup, SourceId, SourceState
from tests.fakes.kv_events import Engine, batch, removed

T = TypeVar("T")

UNIT = 2
WINDOW = 4
KINDS = {0: GroupKind.FULL_ATTENTION, 1: GroupKind.RECURRENT, 2: GroupKind.SLIDING_WINDOW}
MEDIA = ("GPU", "GPU", "CPU", "DISK")
COUNTED = ("GPU", "CPU")
SALTS = (None, "s")
SOURCES = (SourceId("a"), SourceId("b"))

Prefix = tuple[int, ...]
Copy = tuple[str, int, str | None, Prefix]  # medium, group, salt, tokens up to the block's end

PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=4).map(
    lambda blocks: [token for block in blocks for token in (block, block)]
)


class Truth:
    """What one engine holds, as it knows itself."""

    def __init__(self, groups: tuple[int, ...]) -> None:
        self.copies: Counter[Copy] = Counter()
        self.announced: set[int] = set()
        self.groups = groups

    def reusable(self, salt: str | None, tokens: list[int]) -> int:
        """The longest prefix of `tokens` that every group could serve, by trying them all."""
        if not self.announced.issuperset(self.groups):
            return 0
        for length in range((len(tokens) - 1) // UNIT * UNIT, 0, -UNIT):
            if all(self._serves(group, salt, tokens, length) for group in self.announced):
                return length
        return 0

    def _serves(self, group: int, salt: str | None, tokens: list[int], length: int) -> bool:
        def has(end: int) -> bool:
            prefix = tuple(tokens[:end])
            return any(self.copies[medium, group, salt, prefix] > 0 for medium in COUNTED)

        match KINDS[group]:
            case GroupKind.FULL_ATTENTION:
                return all(has(end) for end in range(UNIT, length + 1, UNIT))
            case GroupKind.RECURRENT:
                return has(length)
            case GroupKind.SLIDING_WINDOW:
                blocks = -(-(WINDOW - 1) // UNIT)
                first = max(UNIT, length - (blocks - 1) * UNIT)
                return all(has(end) for end in range(first, length + 1, UNIT))


class IndexModel(RuleBasedStateMachine):
    """Subclass with `make`: a coroutine function that returns an empty index."""

    make: Callable[[], Awaitable[MetadataIndex]]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.index = self.run(type(self).make())
        self.engines = {source: Engine(UNIT, seed=source.instance) for source in SOURCES}
        self.next = dict.fromkeys(SOURCES, 0)
        self.last: dict[SourceId, tuple[Event, ...]] = {}

    def run(self, awaitable: Awaitable[T]) -> T:
        async def whole() -> T:
            return await awaitable

        return self.runner.run(whole())

    def teardown(self) -> None:
        self.runner.close()

    @initialize(
        groups=st.sampled_from([(0,), (0, 1), (0, 2), (0, 1, 2)]),
        orderly=st.sampled_from([True, True, False]),
    )
    def attach(self, groups: tuple[int, ...], *, orderly: bool) -> None:
        self.groups = groups
        self.orderly = orderly
        declared = tuple(
            KvGroup(KINDS[group], window=WINDOW if group == 2 else None) for group in groups
        )
        self.layout = CacheLayout("model", UNIT, groups=declared)
        self.truth = {source: Truth(groups) for source in SOURCES}
        for source in SOURCES:
            self.run(self.index.register(source, self.layout))
            self.run(self.index.begin_epoch(source, SourceState.SYNCED))

    def send(self, source: SourceId, *events: Event) -> None:
        assert self.run(self.index.apply(source, self.next[source], batch(*events)))
        self.next[source] += 1
        self.last[source] = events

    @rule(
        source=st.sampled_from(SOURCES),
        tokens=PROMPTS,
        start=st.integers(0, 3),
        salt=st.sampled_from(SALTS),
        medium=st.sampled_from(MEDIA),
        together=st.booleans(),
    )
    def store(
        self,
        source: SourceId,
        tokens: list[int],
        start: int,
        salt: str | None,
        medium: str,
        together: bool,
    ) -> None:
        """A dense event, maybe with the same step's sparse events before or after it."""
        start = min(start, len(tokens) // UNIT - 1)
        while self.orderly and start and not self.placed(source, salt, tokens[: start * UNIT]):
            start -= 1
        dense = self.engines[source].stored(tokens, start=start, salt=salt, medium=medium)
        events: list[Event] = [dense]
        truth = self.truth[source]
        truth.announced.add(0)
        for block in range(start, len(tokens) // UNIT):
            truth.copies[medium, 0, salt, tuple(tokens[: (block + 1) * UNIT])] += 1
        if together:
            for group in self.groups[1:]:
                events.insert(group % 2, self.sparse(source, tokens, salt, group, medium))
        self.send(source, *events)

    @rule(
        source=st.sampled_from(SOURCES),
        tokens=PROMPTS,
        salt=st.sampled_from(SALTS),
        group=st.integers(1, 2),
        medium=st.sampled_from(MEDIA),
    )
    def store_sparse(
        self, source: SourceId, tokens: list[int], salt: str | None, group: int, medium: str
    ) -> None:
        """One group's last block alone: its label may never have been placed."""
        if group in self.groups and (not self.orderly or self.placed(source, salt, tokens)):
            self.send(source, self.sparse(source, tokens, salt, group, medium))

    def placed(self, source: SourceId, salt: str | None, tokens: list[int]) -> bool:
        """Whether the index has heard where the block at the end of `tokens` belongs."""
        copies = self.truth[source].copies
        return any(
            copies[medium, group, salt, tuple(tokens)] > 0
            for medium in MEDIA
            for group in self.groups
        )

    def sparse(
        self, source: SourceId, tokens: list[int], salt: str | None, group: int, medium: str
    ) -> BlockStored:
        truth = self.truth[source]
        truth.announced.add(group)
        truth.copies[medium, group, salt, tuple(tokens)] += 1
        return BlockStored(
            labels=self.engines[source].labels(tokens, salt=salt)[-1:],
            medium=medium,
            group=group,
            kind=KINDS[group],
            window=WINDOW if group == 2 else None,
        )

    @rule(source=st.sampled_from(SOURCES), data=st.data())
    def evict(self, source: SourceId, data: st.DataObject) -> None:
        """One copy of something held, whatever hangs on it."""
        truth = self.truth[source]
        held = sorted((copy for copy in truth.copies if truth.copies[copy] > 0), key=repr)
        if not held:
            return
        copy = data.draw(st.sampled_from(held))
        medium, group, salt, prefix = copy
        truth.copies[copy] -= 1
        label = self.engines[source].labels(prefix, salt=salt)[-1:]
        self.send(source, removed(label, medium=medium, group=group))

    @rule(
        source=st.sampled_from(SOURCES),
        what=st.sampled_from(["stray", "stray", "repeat", "repeat", "repeat", "clear", "restart"]),
    )
    def disturb(self, source: SourceId, what: str) -> None:
        """What happens now and then; rarely what forgets everything."""
        match what:
            case "stray":
                self.send(source, removed([EngineLabel(b"stranger")]))
            case "repeat" if source in self.last:
                again = batch(*self.last[source])
                assert not self.run(self.index.apply(source, self.next[source] - 1, again))
            case "clear":
                self.truth[source].copies.clear()  # the engine has its groups still
                self.send(source, AllBlocksCleared())
            case "restart":
                self.truth[source] = Truth(self.groups)
                self.next[source] = 0
                self.last.pop(source, None)
                self.run(self.index.begin_epoch(source, SourceState.SYNCED))

    @rule(tokens=PROMPTS, salt=st.sampled_from(SALTS))
    def look_up(self, tokens: list[int], salt: str | None) -> None:
        """The answer equals the truth, or is below it while something waits."""
        asked = [*tokens, 9]
        beliefs = self.run(
            self.index.look_up(prompt_blocks(self.layout, asked, salt=salt), SOURCES)
        )
        waiting = {report.source: report.waiting for report in self.run(self.index.describe())}
        for source in SOURCES:
            truth = self.truth[source].reusable(salt, asked)
            tokens_believed = beliefs[source].tokens
            assert tokens_believed is not None
            assert tokens_believed <= truth
            if not waiting[source]:
                assert tokens_believed == truth

    @invariant()
    def counts_are_true(self) -> None:
        """As many blocks as there are, or fewer by what waits; never more."""
        for report in self.run(self.index.describe()):
            copies = self.truth[report.source].copies
            held = sum(1 for copy in copies if copies[copy] > 0)
            assert report.blocks <= held
            assert not (self.orderly and report.waiting)
            if not report.waiting:
                assert report.blocks == held
