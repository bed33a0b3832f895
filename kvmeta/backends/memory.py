"""The index in this process's memory: the embedded default, and the reference for other back ends.

Schema: one integer a block hash, whose bit s says that slot s holds the block. A slot is one
(source, epoch, medium, group). Forgetting a source is therefore O(1): its slots are retired, so no
reader looks at their bits any more, and the bits themselves are swept later, a bounded number with
every write. A slot's number is used again only once its last bit is gone.

All methods run to their end without awaiting anything, so on one event loop a reader sees a batch
wholly or not at all. Memory: about 0.3 KB a held (block, medium, group); the caps bound how many.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat

from kvmeta.events import BlockStored, EventBatch
from kvmeta.ledger import SourceLedger
from kvmeta.ledger_records import Change, Forgotten, LedgerEvent, split_at_clears
from kvmeta.match import MaskRuns, MatchPlan, longest_prefix, plan_match
from kvmeta.types import (
    BlockHash,
    CacheBelief,
    CacheLayout,
    PromptBlocks,
    SourceId,
    SourceReport,
    SourceState,
)
from kvmeta.waiting import Place

MAX_BLOCKS_PER_SOURCE = 500_000
"""32 million tokens in blocks of 64: ten times what one engine's GPU pool of some million tokens
holds, so there is room for its offload tiers."""

MAX_BLOCKS_TOTAL = 2_000_000
"""About 0.6 GB of this process."""

MAX_WAITING = 16_384
"""Labels a source may have waiting; one step's sparse events wait for the same step's dense one."""

_SWEEP_PER_WRITE = 256
"""Retired bits and names cleared with every write, about 0.2 ms, beside four for every block that
the write brings: a bit and a name each, twice as fast as they are made."""


@dataclass(slots=True)
class _Source:
    """One registered source. `plan` is stale when None and `plan_known` is False."""

    layout: CacheLayout
    max_age_seconds: float | None
    ledger: SourceLedger
    errors: Counter[str]
    state: SourceState = SourceState.UNKNOWN
    epoch: int = 0
    next_sequence: int | None = None
    last_digest: bytes | None = None
    proved_at: float | None = None
    slots: dict[Place, int] = field(default_factory=dict)
    plan: MatchPlan | None = None
    plan_known: bool = False


@dataclass(slots=True)
class _Retired:
    """What no reader looks at any more, still to be taken apart: bits in slots, and names."""

    forgotten: Forgotten
    slots: dict[Place, int]


class MemoryIndex:
    """`kvmeta.index.MetadataIndex` in local memory; `clock` is monotonic, in seconds."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        max_blocks_per_source: int = MAX_BLOCKS_PER_SOURCE,
        max_blocks_total: int = MAX_BLOCKS_TOTAL,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._clock = clock
        self._max_blocks_per_source = max_blocks_per_source
        self._max_blocks_total = max_blocks_total
        self._max_waiting = max_waiting
        self._sources: dict[SourceId, _Source] = {}
        self._masks: dict[BlockHash, int] = {}
        self._retired: deque[_Retired] = deque()
        self._blocks = 0  # held by sources and, until swept, by retired slots
        self._free_slots: list[int] = []
        self._slots_made = 0

    # -- writers -----------------------------------------------------------------------------

    async def register(
        self, source: SourceId, layout: CacheLayout, *, max_age_seconds: float | None = None
    ) -> None:
        """Make `source` known; a different layout than before forgets what was held under it."""
        entry = self._sources.get(source)
        if entry is not None and entry.layout == layout:
            entry.max_age_seconds = max_age_seconds
            return
        if entry is not None:
            self._retire(entry)
        errors = entry.errors if entry is not None else Counter[str]()
        self._sources[source] = _Source(
            layout=layout,
            max_age_seconds=max_age_seconds,
            ledger=self._open_ledger(layout, errors),
            errors=errors,
            epoch=entry.epoch + 1 if entry is not None else 0,
        )

    async def begin_epoch(self, source: SourceId, state: SourceState) -> None:
        """Forget all that `source` holds, in O(1), and expect a new sequence."""
        entry = self._sources.get(source)
        if entry is None:
            return
        self._retire(entry)
        entry.ledger = self._open_ledger(entry.layout, entry.errors)
        entry.epoch += 1
        entry.state = state
        entry.next_sequence = None
        entry.last_digest = None
        entry.proved_at = None

    async def apply(self, source: SourceId, sequence: int, batch: EventBatch) -> bool:
        """Apply one batch exactly once; False when it was applied before or nobody knows `source`.

        Costs about 4 microseconds a stored block.
        """
        entry = self._sources.get(source)
        if entry is None or (entry.next_sequence is not None and sequence < entry.next_sequence):
            return False
        entry.next_sequence = sequence + 1
        entry.last_digest = batch.digest or None
        entry.proved_at = self._clock()
        refused = 0
        for cleared, events in split_at_clears(batch.events):
            if cleared:
                self._empty(entry)
                refused = 0
            self._make_room(entry, events)
            before = entry.ledger.blocks
            outcome = entry.ledger.apply(events, self._max_blocks_total - self._blocks)
            self._blocks += entry.ledger.blocks - before
            self._publish(entry, outcome.changes)
            refused += outcome.refused
            if outcome.regrouped:
                entry.plan_known = False
        entry.errors.update(batch.faults)
        if (refused or batch.faults) and entry.state is SourceState.SYNCED:
            entry.state = SourceState.PARTIAL
        return True

    async def set_state(self, source: SourceId, state: SourceState) -> None:
        """Change the trust in `source` and leave its blocks alone."""
        if (entry := self._sources.get(source)) is not None:
            entry.state = state

    async def touch(self, source: SourceId) -> None:
        """Note that `source` just proved that nothing was missed; sweep a little."""
        if (entry := self._sources.get(source)) is not None:
            entry.proved_at = self._clock()
        self.sweep(_SWEEP_PER_WRITE)

    async def count_error(self, source: SourceId, cause: str) -> None:
        """Count a fault met on the way to `apply`."""
        if (entry := self._sources.get(source)) is not None:
            entry.errors[cause] += 1

    async def remove_instance(self, instance: str) -> None:
        """Forget every source of `instance`."""
        for source in [source for source in self._sources if source.instance == instance]:
            self._retire(self._sources.pop(source))

    def sweep(self, limit: int) -> int:
        """Clear at most `limit` retired bits or names and return how many; 0 once none are left.

        Writers do this on the way. Whoever has idle time may do more of it.
        """
        left = limit
        while left > 0 and self._retired:
            retired = self._retired[0]
            held, names = retired.forgotten.held, retired.forgotten.names
            if held:
                left = self._sweep_place(retired, *next(iter(held.items())), left)
            elif names:
                names.popitem()
                left -= 1
            else:
                self._retired.popleft()
        return limit - left

    def _sweep_place(
        self, retired: _Retired, place: Place, blocks: dict[BlockHash, int], left: int
    ) -> int:
        """Clear at most `left` bits of one slot, free it after its last; return what is left."""
        bit = 1 << retired.slots[place]
        while blocks and left > 0:
            block, _ = blocks.popitem()
            self._clear_bit(block, bit)
            self._blocks -= 1
            left -= 1
        if not blocks:
            del retired.forgotten.held[place]
            heapq.heappush(self._free_slots, retired.slots[place])
        return left

    # -- readers -----------------------------------------------------------------------------

    async def look_up(
        self, prompt: PromptBlocks, sources: Sequence[SourceId]
    ) -> Mapping[SourceId, CacheBelief]:
        """Return the longest reusable prefix of `prompt` at each of `sources`.

        One dict access a block of the prompt, whatever the number of sources.
        """
        beliefs = dict.fromkeys(sources, CacheBelief.unknown())
        now, runs = self._clock(), None
        for source in sources:
            entry = self._sources.get(source)
            if entry is None or not _may_speak(entry, prompt, now):
                continue
            if runs is None:
                runs = MaskRuns(list(map(self._masks.get, prompt.hashes, repeat(0))))
            unit, units = entry.layout.block_size, 0
            plan = entry.plan if entry.plan_known else self._plan_of(entry)
            if plan is not None and runs.may_match(plan):
                units = longest_prefix(plan, runs, prompt.limit // unit)
            beliefs[source] = CacheBelief(units * unit, entry.state)
        return beliefs

    async def describe(self) -> Iterable[SourceReport]:
        """Return one report a source."""
        now = self._clock()
        return [
            SourceReport(
                source=source,
                state=SourceState.UNKNOWN if _is_stale(entry, now) else entry.state,
                epoch=entry.epoch,
                blocks=entry.ledger.blocks,
                next_sequence=entry.next_sequence,
                age_seconds=None if entry.proved_at is None else now - entry.proved_at,
                errors=dict(entry.errors),
                waiting=entry.ledger.waiting,
                last_digest=entry.last_digest,
            )
            for source, entry in self._sources.items()
        ]

    def _plan_of(self, entry: _Source) -> MatchPlan | None:
        if not entry.plan_known:
            bits = {place: 1 << self._slot_of(entry, place) for place in entry.ledger.places}
            entry.plan = plan_match(entry.layout, entry.ledger.groups(bits))
            entry.plan_known = True
        return entry.plan

    # -- slots and masks ---------------------------------------------------------------------

    def _open_ledger(self, layout: CacheLayout, errors: Counter[str]) -> SourceLedger:
        return SourceLedger(
            layout, errors, max_blocks=self._max_blocks_per_source, max_waiting=self._max_waiting
        )

    def _empty(self, entry: _Source) -> None:
        """The engine dropped everything: known to be empty, unless it was never attached."""
        self._retire(entry)
        entry.epoch += 1
        if entry.state is SourceState.PARTIAL:
            entry.state = SourceState.SYNCED

    def _retire(self, entry: _Source) -> None:
        forgotten = entry.ledger.clear()
        for place in [place for place, blocks in forgotten.held.items() if not blocks]:
            del forgotten.held[place]
        for place, slot in entry.slots.items():
            if place not in forgotten.held:  # no bit of it is set anywhere
                heapq.heappush(self._free_slots, slot)
        if forgotten.held or forgotten.names:
            self._retired.append(_Retired(forgotten, entry.slots))
        entry.slots = {}
        entry.plan_known = False

    def _make_room(self, entry: _Source, events: Iterable[LedgerEvent]) -> None:
        """Sweep faster than `events` store, so that what is dead never costs the living a place."""
        coming = sum(len(event.labels) for event in events if isinstance(event, BlockStored))
        self.sweep(_SWEEP_PER_WRITE + 4 * coming)
        needed = coming + entry.ledger.waiting
        while self._blocks + needed > self._max_blocks_total and self.sweep(_SWEEP_PER_WRITE):
            pass

    def _slot_of(self, entry: _Source, place: Place) -> int:
        """The slot of `place`, the lowest free number if it has none: masks stay short."""
        slot = entry.slots.get(place)
        if slot is None:
            if self._free_slots:
                slot = heapq.heappop(self._free_slots)
            else:
                slot = self._slots_made
                self._slots_made += 1
            entry.slots[place] = slot
        return slot

    def _publish(self, entry: _Source, changes: Iterable[Change]) -> None:
        masks = self._masks
        for change in changes:
            bit = 1 << self._slot_of(entry, change.place)
            if change.present:
                masks[change.block] = masks.get(change.block, 0) | bit
            else:
                self._clear_bit(change.block, bit)

    def _clear_bit(self, block: BlockHash, bit: int) -> None:
        mask = self._masks.get(block, 0) & ~bit
        if mask:
            self._masks[block] = mask
        else:
            self._masks.pop(block, None)


def _may_speak(entry: _Source, prompt: PromptBlocks, now: float) -> bool:
    """Whether a source counts at all for a prompt."""
    if entry.state is SourceState.UNKNOWN:
        return False
    if entry.max_age_seconds is not None and _is_stale(entry, now):
        return False
    return not prompt.salted or entry.ledger.tells_salts


def _is_stale(entry: _Source, now: float) -> bool:
    if entry.max_age_seconds is None:
        return False
    return entry.proved_at is None or now - entry.proved_at > entry.max_age_seconds
