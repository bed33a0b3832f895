"""A decorator round any index that times its look-ups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kvmeta.backends.forwarding import ForwardingIndex
from kvmeta.index import MetadataIndex
from kvmeta.types import CacheBelief, PromptBlocks, SourceId


class LookUpHook(Protocol):
    """Told of every look-up; be quick, never raise."""

    def looked_up(self, seconds: float, sources: int, unknown: int) -> None:
        """A look-up over `sources` took `seconds`; `unknown` of them could not be told."""
        ...


class InstrumentedIndex(ForwardingIndex):
    """`kvmeta.index.MetadataIndex` that passes everything on and times `look_up`.

    A look-up that raises is told with every source unknown, and raises.
    """

    def __init__(
        self, index: MetadataIndex, hook: LookUpHook, *, clock: Callable[[], float]
    ) -> None:
        super().__init__(index)
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
