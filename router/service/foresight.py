"""What running legs tell of engines' caches before, or without, the engines' own events."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from kvmeta.history import PromptHistory
from kvmeta.speculation import Speculation
from kvmeta.types import CacheLayout, PromptBlocks, SourceId
from router.domain.decision import Placement
from router.domain.errors import NotFound
from router.service.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Foresight:
    """Tells the index's neighbours where prompts are being computed and where they were.

    `speculation` sees every leg that computes a prompt, `history` those of instances that publish
    no events. Instances that only decode have no part in what a cluster is believed to hold.
    """

    fleet: Fleet
    speculation: Speculation
    history: PromptHistory

    def computing(
        self, placement: Placement, layout: CacheLayout, prompt: PromptBlocks
    ) -> AbstractContextManager[None]:
        """Let `prompt` count as present where it is being computed while the block runs."""
        source = self._source(placement)
        if source is None:
            return nullcontext()
        return self.speculation.computing(source, layout, prompt)

    def computed(self, placement: Placement, layout: CacheLayout, prompt: PromptBlocks) -> None:
        """Note that `prompt` was computed."""
        source = self._source(placement)
        if source is not None and not self._publishes(placement.instance):
            self.history.note(source, layout, prompt)

    def lost(self, instance: str) -> None:
        """Forget the guesses about an instance that does not take connections: it restarts."""
        self.history.forget_instance(instance)

    def _source(self, placement: Placement) -> SourceId | None:
        """The cache that computes; None if nobody can say which rank, or none counts."""
        try:
            instance = self.fleet.member(placement.instance).instance
        except NotFound:
            return None
        if not instance.can_prefill:
            return None
        if placement.rank is None and instance.ranks > 1:
            return None
        return SourceId(instance.name, placement.rank or 0)

    def _publishes(self, instance: str) -> bool:
        return self.fleet.member(instance).instance.kv_events is not None
