"""A prompt on its way to an engine, believed to be there before the events say so.

Between a decision and the engine's events lie a queue and a scheduler step. A burst of requests
with one prefix falls into that gap: each would look as if nothing of it were cached. So the prompt
of every prefill leg that runs counts as present at its source:

    from the leg's start         whoever is decided next sees it
    until the leg ends           however it ends: a failed one has left nothing, and after a good
                                 one the events are out
    or its events confirm it     from then on they alone tell
    or its time is up            `ttl_seconds` after its start, whatever became of it
    or its source forgets        a new epoch, a cleared cache, a removed instance

It only raises what a source is believed to hold, and calls that `approximate`. A source that is
unknown stays so. Prompts of different tenants have different hashes and never meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count

from msgspec import Struct

from kvmeta.backends.forwarding import ForwardingIndex
from kvmeta.events import AllBlocksCleared, EventBatch
from kvmeta.index import MetadataIndex
from kvmeta.retention import Kept, keep_prompt
from kvmeta.types import (
    BlockHash,
    CacheBelief,
    CacheLayout,
    PromptBlocks,
    SourceId,
    SourceState,
)

MAX_PROMPTS_PER_SOURCE = 256
"""vLLM's default `max_num_seqs`: what is beyond it waits longer than any sensible time to live."""


class _Expected(Struct, frozen=True, gc=False):
    kept: Kept
    longest: int
    until: float


class _Prompts:
    """What one source computes now, by number, the oldest first."""

    __slots__ = ("by_beginning", "by_number")

    def __init__(self) -> None:
        self.by_number: dict[int, _Expected] = {}
        # Prompts that begin with different blocks have nothing in common: nobody looks at them.
        self.by_beginning: dict[BlockHash, dict[int, _Expected]] = {}

    def add(self, number: int, expected: _Expected) -> None:
        self.by_number[number] = expected
        self.by_beginning.setdefault(expected.kept.hashes[0], {})[number] = expected

    def drop(self, number: int) -> None:
        """Forget one prompt, if it is there."""
        expected = self.by_number.pop(number, None)
        if expected is None:
            return
        beginning = expected.kept.hashes[0]
        alike = self.by_beginning[beginning]
        del alike[number]
        if not alike:
            del self.by_beginning[beginning]


class Speculation:
    """The prompts being computed now, by source; `clock` is monotonic, in seconds.

    `ttl_seconds` 0 switches it off. Bounded: the oldest of a source leave first.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        ttl_seconds: float,
        max_prompts: int = MAX_PROMPTS_PER_SOURCE,
    ) -> None:
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._max_prompts = max_prompts
        self._expected: dict[SourceId, _Prompts] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return sum(len(prompts.by_number) for prompts in self._expected.values())

    def computing(
        self, source: SourceId, layout: CacheLayout, prompt: PromptBlocks
    ) -> AbstractContextManager[None]:
        """Let `prompt` count as present at `source` while the block runs, at most its time."""
        kept = keep_prompt(layout, prompt) if self._ttl_seconds > 0 else None
        return nullcontext() if kept is None else _Computing(self, source, kept)

    def expect(self, source: SourceId, kept: Kept) -> int:
        """Let what a prompt leaves behind count from now on; return its number."""
        number = next(self._numbers)
        prompts = self._expected.get(source)
        if prompts is None:
            prompts = self._expected[source] = _Prompts()
        prompts.add(number, _Expected(kept, kept.longest, self._clock() + self._ttl_seconds))
        if len(prompts.by_number) > self._max_prompts:
            prompts.drop(next(iter(prompts.by_number)))
        return number

    def sources_alike(self, prompt: PromptBlocks) -> list[SourceId]:
        """Return the sources at which something that begins like `prompt` is being computed."""
        if not prompt.hashes:
            return []
        beginning = prompt.hashes[0]
        return [
            source
            for source, prompts in self._expected.items()
            if beginning in prompts.by_beginning
        ]

    def raise_belief(
        self, source: SourceId, prompt: PromptBlocks, belief: CacheBelief
    ) -> CacheBelief:
        """Return `belief` about `prompt` at `source` with what is being computed there."""
        told = belief.tokens
        prompts = self._expected.get(source)
        if told is None or prompts is None or not prompt.hashes:
            return belief
        alike = prompts.by_beginning.get(prompt.hashes[0])
        if alike is None:
            return belief
        now, longest = self._clock(), told
        for number, expected in list(alike.items()):
            reusable = expected.kept.reusable(prompt)
            confirmed = told >= reusable == expected.longest
            if confirmed or now >= expected.until:
                self.drop(source, number)
            else:
                longest = max(longest, reusable)
        return belief if longest == told else CacheBelief(longest, SourceState.APPROXIMATE)

    def forget(self, source: SourceId) -> None:
        """Expect nothing more of `source`: what ran there is lost."""
        self._expected.pop(source, None)

    def forget_instance(self, instance: str) -> None:
        """Expect nothing more of any source of `instance`."""
        for source in [source for source in self._expected if source.instance == instance]:
            del self._expected[source]

    def drop(self, source: SourceId, number: int) -> None:
        """Expect one prompt no more; nothing where it is not expected any more."""
        prompts = self._expected.get(source)
        if prompts is None:
            return
        prompts.drop(number)
        if not prompts.by_number:
            del self._expected[source]


class _Computing:
    """One prompt that counts for the time of a block."""

    __slots__ = ("_kept", "_number", "_source", "_speculation")

    def __init__(self, speculation: Speculation, source: SourceId, kept: Kept) -> None:
        self._speculation = speculation
        self._source = source
        self._kept = kept

    def __enter__(self) -> None:
        self._number = self._speculation.expect(self._source, self._kept)

    def __exit__(self, *_: object) -> None:
        self._speculation.drop(self._source, self._number)


class SpeculativeIndex(ForwardingIndex):
    """`kvmeta.index.MetadataIndex` whose look-ups see the prompts that are being computed."""

    def __init__(self, index: MetadataIndex, speculation: Speculation) -> None:
        super().__init__(index)
        self._speculation = speculation

    async def look_up(
        self, prompt: PromptBlocks, sources: Sequence[SourceId]
    ) -> Mapping[SourceId, CacheBelief]:
        """Return what the index believes, raised by what is on its way."""
        beliefs = await self._index.look_up(prompt, sources)
        alike = self._speculation.sources_alike(prompt)
        if not alike:
            return beliefs
        raised = dict(beliefs)
        for source in alike:
            if (belief := beliefs.get(source)) is not None:
                raised[source] = self._speculation.raise_belief(source, prompt, belief)
        return raised

    async def begin_epoch(self, source: SourceId, state: SourceState) -> None:
        """Pass on; the process that was computing may be gone."""
        self._speculation.forget(source)
        await self._index.begin_epoch(source, state)

    async def apply(self, source: SourceId, sequence: int, batch: EventBatch) -> bool:
        """Pass on; a cleared cache has dropped what was computed before."""
        if any(isinstance(event, AllBlocksCleared) for event in batch.events):
            self._speculation.forget(source)
        return await self._index.apply(source, sequence, batch)

    async def remove_instance(self, instance: str) -> None:
        """Pass on."""
        self._speculation.forget_instance(instance)
        await self._index.remove_instance(instance)
