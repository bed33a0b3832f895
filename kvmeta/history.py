"""What engines without KV events may hold, guessed from the prompts that they computed.

The router knows which prompts it had computed where. An engine keeps them for a while and evicts
them unseen, so each block counts for `ttl_seconds` after its last use, and a source has at most
`max_blocks`, least recently used first to go. All that is believed so is `approximate`. A source
of which no prompt is known is unknown, not empty.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvmeta.backends.forwarding import ForwardingIndex
from kvmeta.index import MetadataIndex
from kvmeta.retention import Kept, keep_prompt
from kvmeta.types import (
    BlockHash,
    CacheBelief,
    CacheLayout,
    PromptBlocks,
    SourceId,
    SourceReport,
    SourceState,
)


@dataclass(slots=True)
class _Past:
    """One source's blocks with the time until which each counts, the least recent first."""

    shape: Kept
    noted_at: float
    until: OrderedDict[BlockHash, float] = field(default_factory=OrderedDict)


class PromptHistory:
    """Prompts computed by engines without events, by source; `clock` is monotonic, in seconds."""

    def __init__(self, *, clock: Callable[[], float], ttl_seconds: float, max_blocks: int) -> None:
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._max_blocks = max_blocks
        self._pasts: dict[SourceId, _Past] = {}

    def note(self, source: SourceId, layout: CacheLayout, prompt: PromptBlocks) -> None:
        """Take in that `source` has just computed `prompt`. Cost: its blocks."""
        kept = keep_prompt(layout, prompt)
        if kept is None or self._ttl_seconds <= 0:
            return
        past = self._pasts.setdefault(source, _Past(kept, 0.0))
        past.shape = kept
        past.noted_at = self._clock()
        until = past.noted_at + self._ttl_seconds
        # With sparse groups the boundary is all that can be reused. Otherwise the deepest block
        # first, so that the prompt's first blocks, without which no other counts, leave last.
        blocks = reversed(kept.hashes) if kept.boundary is None else kept.hashes[-1:]
        for block in blocks:
            past.until[block] = until
            past.until.move_to_end(block)
        while len(past.until) > self._max_blocks:
            past.until.popitem(last=False)

    def __len__(self) -> int:
        return len(self._pasts)

    def knows(self, source: SourceId) -> bool:
        """Whether any prompt was noted of `source`."""
        return source in self._pasts

    def believe(self, source: SourceId, prompt: PromptBlocks) -> CacheBelief:
        """Return how much of `prompt` may still be at `source`."""
        past = self._pasts.get(source)
        if past is None:
            return CacheBelief.unknown()
        now, until = self._clock(), past.until
        if past.shape.boundary is not None:
            found = _last_boundary(past.shape, prompt, lambda block: until.get(block, 0.0) > now)
            return CacheBelief(found, SourceState.APPROXIMATE)
        depth = 0
        for block in prompt.hashes:
            if until.get(block, 0.0) <= now:
                break
            depth += 1
        found = past.shape.align(min(depth * past.shape.unit, prompt.limit))
        return CacheBelief(found, SourceState.APPROXIMATE)

    def forget_instance(self, instance: str) -> None:
        """Forget every source of `instance`: it is gone, or holds less than was thought."""
        for source in [source for source in self._pasts if source.instance == instance]:
            del self._pasts[source]

    def describe(self) -> Iterable[SourceReport]:
        """Return one report a source; nothing has an epoch or a sequence here."""
        now = self._clock()
        return [
            SourceReport(
                source=source,
                state=SourceState.APPROXIMATE,
                epoch=0,
                blocks=sum(1 for until in past.until.values() if until > now),
                next_sequence=None,
                age_seconds=now - past.noted_at,
            )
            for source, past in self._pasts.items()
        ]


def _last_boundary(shape: Kept, prompt: PromptBlocks, counts: Callable[[BlockHash], bool]) -> int:
    """The longest aligned length of `prompt` that was some earlier prompt's boundary."""
    longest = min(prompt.limit, len(prompt.hashes) * shape.unit)
    for length in range(longest - longest % shape.alignment, 0, -shape.alignment):
        if counts(prompt.hashes[length // shape.unit - 1]):
            return length
    return 0


class ApproximateIndex(ForwardingIndex):
    """`kvmeta.index.MetadataIndex` that answers from a history for sources without events.

    A source is asked for in the history only while the index knows nothing of it.
    """

    def __init__(self, index: MetadataIndex, history: PromptHistory) -> None:
        super().__init__(index)
        self._history = history

    async def look_up(
        self, prompt: PromptBlocks, sources: Sequence[SourceId]
    ) -> Mapping[SourceId, CacheBelief]:
        """Return what the index believes, and guesses where there are only guesses."""
        if not self._history:
            return await self._index.look_up(prompt, sources)
        guesses: dict[SourceId, CacheBelief] = {}
        asked: list[SourceId] = []
        for source in sources:
            if self._history.knows(source):
                guesses[source] = self._history.believe(source, prompt)
            else:
                asked.append(source)
        return {**await self._index.look_up(prompt, asked), **guesses}

    async def remove_instance(self, instance: str) -> None:
        """Pass on; a removed instance owns nothing."""
        self._history.forget_instance(instance)
        await self._index.remove_instance(instance)

    async def describe(self) -> Iterable[SourceReport]:
        """Return the reports of the index and of the history."""
        return [*await self._index.describe(), *self._history.describe()]
