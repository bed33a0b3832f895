"""A decorator round any index that times its look-ups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from kvmeta.events import EventBatch
from kvmeta.index import MetadataIndex
from kvmeta.types import (
    CacheBelief,
    CacheLayout,
    PromptBlocks,
    SourceId,
    SourceReport,
    SourceState,
)


class LookUpHook(Protocol):
    """Told of every look-up; be quick, never raise."""

    def looked_up(self, seconds: float, sources: int, unknown: int) -> None:
        """A look-up over `sources` took `seconds`; `unknown` of them could not be told."""
        ...


class InstrumentedIndex:
    """`kvmeta.index.MetadataIndex` that passes everything on and times `look_up`.

    A look-up that raises is told with every source unknown, and raises.
    """

    def __init__(
        self, index: MetadataIndex, hook: LookUpHook, *, clock: Callable[[], float]
    ) -> None:
        self._index = index
        self._hook = hook
        self._clock = clock

    async def look_up(
        self, prompt: PromptBlocks, sources: Sequence[SourceId]
    ) -> Mapping[SourceId, CacheBelief]:
        """Time the look-up."""
        start = self._clock()
        beliefs: Mapping[SourceId, CacheBelief] = dict.fromkeys(sources, CacheBelief.unknown())
        try:
            beliefs = await self._index.look_up(prompt, sources)
        finally:
            unknown = sum(1 for belief in beliefs.values() if belief.tokens is None)
            self._hook.looked_up(self._clock() - start, len(beliefs), unknown)
        return beliefs

    async def register(
        self, source: SourceId, layout: CacheLayout, *, max_age_seconds: float | None = None
    ) -> None:
        """Pass on."""
        await self._index.register(source, layout, max_age_seconds=max_age_seconds)

    async def begin_epoch(self, source: SourceId, state: SourceState) -> None:
        """Pass on."""
        await self._index.begin_epoch(source, state)

    async def apply(self, source: SourceId, sequence: int, batch: EventBatch) -> bool:
        """Pass on."""
        return await self._index.apply(source, sequence, batch)

    async def set_state(self, source: SourceId, state: SourceState) -> None:
        """Pass on."""
        await self._index.set_state(source, state)

    async def touch(self, source: SourceId) -> None:
        """Pass on."""
        await self._index.touch(source)

    async def count_error(self, source: SourceId, cause: str) -> None:
        """Pass on."""
        await self._index.count_error(source, cause)

    async def remove_instance(self, instance: str) -> None:
        """Pass on."""
        await self._index.remove_instance(instance)

    async def describe(self) -> Iterable[SourceReport]:
        """Pass on."""
        return await self._index.describe()
