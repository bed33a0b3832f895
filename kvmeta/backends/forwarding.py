"""An index that passes every call on: what decorators of one or two calls start from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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


class ForwardingIndex:
    """`kvmeta.index.MetadataIndex` that is another index; a subclass changes what it cares for."""

    def __init__(self, index: MetadataIndex) -> None:
        self._index = index

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

    async def look_up(
        self, prompt: PromptBlocks, sources: Sequence[SourceId]
    ) -> Mapping[SourceId, CacheBelief]:
        """Pass on."""
        return await self._index.look_up(prompt, sources)

    async def remove_instance(self, instance: str) -> None:
        """Pass on."""
        await self._index.remove_instance(instance)

    async def describe(self) -> Iterable[SourceReport]:
        """Pass on."""
        return await self._index.describe()
