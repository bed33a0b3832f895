"""The index's one interface: back ends implement it, one behavioural suite holds them to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from kvmeta.events import EventBatch
from kvmeta.types import (
    CacheBelief,
    CacheLayout,
    PromptBlocks,
    SourceId,
    SourceReport,
    SourceState,
)


class MetadataIndex(Protocol):
    """Which source holds which prefix.

    Writers are one ingest task per source, in order; readers are many. A reader sees a batch
    wholly or not at all. Nothing here raises for what an engine sent: oddities are counted in the
    source's report. A back end that cannot answer in time returns `CacheBelief.unknown()`.
    """

    async def register(
        self, source: SourceId, layout: CacheLayout, *, max_age_seconds: float | None = None
    ) -> None:
        """Make `source` known, state `unknown`, holding nothing. Idempotent for an equal layout.

        Where `max_age_seconds` is set, the source proves its liveness in idle times too (`touch`);
        once its last proof is older than that, readers get `unknown`. None for a source that
        cannot prove it: silence then means nothing.
        """
        ...

    async def begin_epoch(self, source: SourceId, state: SourceState) -> None:
        """Forget all that `source` holds, at once for every reader, and set its state."""
        ...

    async def apply(self, source: SourceId, sequence: int, batch: EventBatch) -> bool:
        """Apply one batch exactly once; False when `sequence` was applied in this epoch before.

        Sequence numbers only rise within an epoch: one at or below the last applied changes
        nothing. An `AllBlocksCleared` empties the source and, since an empty cache is known to be
        empty, makes a partial one synced. A store that had to be refused (caps, a block size that
        does not fit the layout) or an event that could not be read makes a synced one partial.
        `batch.digest` is kept with the number, so that `describe` tells where to go on.
        Cost: proportional to the blocks in the batch.
        """
        ...

    async def set_state(self, source: SourceId, state: SourceState) -> None:
        """Change the trust in `source` and leave its blocks alone."""
        ...

    async def touch(self, source: SourceId) -> None:
        """Note that `source` just proved that nothing was missed. Unregistered: ignored."""
        ...

    async def count_error(self, source: SourceId, cause: str) -> None:
        """Count a fault met on the way to `apply` (undecodable payload, lost events, …)."""
        ...

    async def look_up(
        self, prompt: PromptBlocks, sources: Sequence[SourceId]
    ) -> Mapping[SourceId, CacheBelief]:
        """Return the longest reusable prefix of `prompt` at each of `sources`.

        Every source asked for is in the answer; an unregistered one is unknown.
        """
        ...

    async def remove_instance(self, instance: str) -> None:
        """Forget every source of `instance`: a removed instance owns nothing."""
        ...

    async def describe(self) -> Iterable[SourceReport]:
        """Return one report a source, for `state` and metrics."""
        ...
