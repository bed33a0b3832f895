"""Holds sources to their word: engines' reports against beliefs, and demotion (DESIGN 6, Truth)."""

from __future__ import annotations

import asyncio
import logging

from kvmeta.history import PromptHistory
from kvmeta.index import MetadataIndex
from kvmeta.truth import TruthRecord, weigh_answer
from kvmeta.types import SourceId, SourceState
from router.domain.decision import Placement
from router.service.observations import CourseHook
from router.service.relay_ports import Usage

OVER_STATED = "over_stated"
"""The cause under which a source's report counts its demotions."""

_DUE = 256
"""Demotions that may wait for the store; one without room comes again with the next faults."""

_RECORDS = 4_096
"""Records kept; instances that come and go under new names push old ones out."""

_LOG = logging.getLogger(__name__)


class TruthWatch:
    """A `CourseHook` that tells another one everything, and demotes sources that over-state.

    What was believed of a `synced` source is held against it, and a new epoch heals it; others made
    no promise. Where guesses fail as often, the guesses about that instance are dropped: it evicts
    sooner than was thought. `run` carries the demotions out.
    """

    def __init__(self, hook: CourseHook, index: MetadataIndex, history: PromptHistory) -> None:
        self._hook = hook
        self._index = index
        self._history = history
        self._records: dict[tuple[SourceId, SourceState], TruthRecord] = {}
        self._due: asyncio.Queue[SourceId] = asyncio.Queue(_DUE)
        # Passed on as it is.
        self.fell_back = hook.fell_back
        self.upstream_failed = hook.upstream_failed
        self.kv_shipped = hook.kv_shipped
        self.first_byte = hook.first_byte
        self.answered = hook.answered
        self.output_paced = hook.output_paced
        self.drifted = hook.drifted

    async def run(self) -> None:
        """Demote whoever is due, until cancelled."""
        while True:
            source = await self._due.get()
            try:
                await self._index.set_state(source, SourceState.PARTIAL)
                await self._index.count_error(source, OVER_STATED)
            except Exception:  # noqa: BLE001  # the root of a task: a store that is away costs one demotion
                _LOG.warning("cannot demote source %s: the index does not take it", source)
                continue
            _LOG.warning("source %s demoted to partial: its engine had less than it told", source)

    def prefill_answered(self, placement: Placement, usage: Usage) -> None:
        """Weigh what the engine found against what was believed, and pass on."""
        self._hook.prefill_answered(placement, usage)
        believed, found = placement.cached_tokens, usage.cached_tokens
        if believed is None or found is None:
            return
        source = SourceId(placement.instance, placement.rank or 0)
        key = (source, placement.cache_state)
        record = self._records.get(key, TruthRecord())
        self._records[key], failed = weigh_answer(record, believed, found)
        if len(self._records) > _RECORDS:
            del self._records[next(iter(self._records))]
        if failed and placement.cache_state is SourceState.APPROXIMATE:
            self._history.forget_instance(placement.instance)
        elif failed and placement.cache_state is SourceState.SYNCED and not self._due.full():
            self._due.put_nowait(source)
