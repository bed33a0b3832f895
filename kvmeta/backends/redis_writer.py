"""The sources that this process owns: their ledgers here, what readers and restarts need in Redis.

The ledger in memory is the truth; Redis holds its image. A batch changes the ledger, then the image
in one round trip: the pages that its blocks are in, the label records, and the source's record,
which is written only while its version says that nobody else wrote since. So a batch enters the
records wholly, with its sequence number, or not at all, and what it does to pages can be done
again.

Whatever goes wrong with the image (the store is away, full, flushed, failed over with the last
writes lost) has one answer. The source is withdrawn from the table if that is still possible, so
that it is unknown to readers, and later its image is made anew under new slots, which no reader and
no page has ever seen. A restart is the same: the ledger is read from the records, and its image
made anew. A version that somebody else wrote means that another process took the source over; this
one then lets go of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvmeta.backends.keys import Keys, field_text, parse_field
from kvmeta.backends.pages import survey
from kvmeta.backends.records import SourceRecord
from kvmeta.backends.redis_images import (
    WRITE_TIMEOUT_SECONDS,
    Owned,
    RedisImages,
    Step,
    TakenOver,
)
from kvmeta.backends.redis_records import read_labels, read_record, read_records
from kvmeta.backends.redis_store import RedisStore
from kvmeta.backends.redis_sweeper import RedisSweeper
from kvmeta.errors import StoreError
from kvmeta.events import BlockStored, EventBatch
from kvmeta.ledger import SourceLedger
from kvmeta.ledger_records import LedgerEvent, split_at_clears
from kvmeta.types import CacheLayout, SourceId, SourceState

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caps:
    """Bounds: (block, place) pairs of one source and of all, labels a source may have waiting."""

    blocks_per_source: int
    blocks_total: int
    waiting: int


class RedisWriter:
    """Owns sources. `clock` is the wall clock, in seconds; `token` tells this process from others.

    No method raises for what the store does.
    """

    def __init__(
        self,
        store: RedisStore,
        keys: Keys,
        sweeper: RedisSweeper,
        *,
        clock: Callable[[], float],
        token: str,
        new_mark: Callable[[], bytes],
        caps: Caps,
    ) -> None:
        self._store = store
        self._keys = keys
        self._sweeper = sweeper
        self._clock = clock
        self._images = RedisImages(store, keys, clock=clock, token=token, new_mark=new_mark)
        self._caps = caps
        self._owned: dict[SourceId, Owned] = {}
        self._blocks_of_others = 0
        self.has_written = False
        """Whether this process ever wrote, so that it takes part in keeping the store clean."""

    @property
    def owned(self) -> Iterable[Owned]:
        """Every source of this process."""
        return self._owned.values()

    # -- sources that come and go ------------------------------------------------------------

    async def register(
        self, source: SourceId, layout: CacheLayout, max_age_seconds: float | None
    ) -> None:
        """Own `source`: with what the records say, where they are whole and of this layout."""
        self.has_written = True
        owned = self._owned.get(source)
        if owned is not None and owned.layout == layout:
            owned.max_age_seconds = max_age_seconds
            async with owned.lock:
                await self._publish(owned, Step())
            return
        if owned is not None:
            async with owned.lock:
                self._retire(owned)
            fresh = self._new(source, layout, max_age_seconds, owned.errors, owned.epoch + 1)
            fresh.version, fresh.is_claimed = owned.version, owned.is_claimed
        else:
            fresh = await self._recall(source, layout, max_age_seconds)
        self._owned[source] = fresh
        await self.repair(fresh)

    async def begin_epoch(self, source: SourceId, state: SourceState) -> None:
        """Forget all that `source` holds and expect a new sequence."""
        owned = self._owned.get(source)
        if owned is None:
            return
        async with owned.lock:
            self._retire(owned)
            owned.ledger = self._open_ledger(owned.layout, owned.errors)
            owned.epoch += 1
            owned.state = state
            owned.next_sequence = None
            owned.last_digest = None
            owned.proved_at = None
            await self._publish(owned, Step(forget_labels=True))

    async def remove_instance(self, instance: str) -> None:
        """Remove every source of `instance`, also one that another process owned."""
        self.has_written = True
        for source in [source for source in self._owned if source.instance == instance]:
            owned = self._owned.pop(source)
            async with owned.lock:
                self._retire(owned)
                await self.remove(source)
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                (fields,) = await self._store.read([("HKEYS", self._keys.table)])
        except (StoreError, TimeoutError):
            return
        for name in fields:
            source_found = parse_field(name)
            if source_found is not None and source_found.instance == instance:
                await self.remove(source_found)

    async def remove(self, source: SourceId) -> None:
        """Remove one source's keys; a scrub finds what is left of it in pages."""
        self._sweeper.must_scrub = True  # should anything of it be unknown here
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                await self._store.free(
                    [
                        ("HDEL", self._keys.table, field_text(source)),
                        ("DEL", self._keys.revision),
                        ("HDEL", self._keys.seen, field_text(source)),
                        ("UNLINK", self._keys.record(source), self._keys.labels(source)),
                    ]
                )
        except (StoreError, TimeoutError):
            _LOG.warning("the store could not be told that %s is gone; it ages out", source)

    # -- events ------------------------------------------------------------------------------

    async def apply(self, source: SourceId, sequence: int, batch: EventBatch) -> bool:
        """Apply one batch exactly once; False when it was applied before or is nobody's."""
        owned = self._owned.get(source)
        if owned is None:
            return False
        async with owned.lock:
            if owned.next_sequence is not None and sequence < owned.next_sequence:
                return False
            owned.next_sequence = sequence + 1
            owned.last_digest = batch.digest or None
            owned.proved_at = self._clock()
            step = Step()
            refused = 0
            for cleared, events in split_at_clears(batch.events):
                if cleared:
                    self._empty(owned)
                    step = Step(forget_labels=True)
                    refused = 0
                refused += await self._take(owned, events, step)
            owned.errors.update(batch.faults)
            if (refused or batch.faults) and owned.state is SourceState.SYNCED:
                owned.state = SourceState.PARTIAL
            await self._publish(owned, step)
            return True

    async def _take(self, owned: Owned, events: Sequence[LedgerEvent], step: Step) -> int:
        """Let the ledger apply `events`; return how many blocks were refused."""
        await self._make_room(owned, events)
        room = self._caps.blocks_total - self.blocks
        outcome = owned.ledger.apply(events, room)
        step.changes += outcome.changes
        step.touched |= outcome.touched
        return outcome.refused

    @property
    def blocks(self) -> int:
        """All blocks that take room in Redis: the living, and those still to be swept."""
        own = sum(owned.ledger.blocks for owned in self._owned.values())
        return own + self._sweeper.blocks + self._blocks_of_others

    async def _make_room(self, owned: Owned, events: Iterable[LedgerEvent]) -> None:
        """Sweep what is dead before it costs the living a place."""
        coming = sum(len(event.labels) for event in events if isinstance(event, BlockStored))
        needed = coming + owned.ledger.waiting
        while self.blocks + needed > self._caps.blocks_total and self._sweeper.blocks:
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                    await self._sweeper.sweep()
            except (StoreError, TimeoutError):
                return

    async def set_state(self, source: SourceId, state: SourceState) -> None:
        """Change the trust in `source`."""
        owned = self._owned.get(source)
        if owned is not None:
            async with owned.lock:
                owned.state = state
                await self._publish(owned, Step())

    async def touch(self, source: SourceId) -> None:
        """Note that `source` just proved that nothing was missed."""
        owned = self._owned.get(source)
        if owned is not None:
            owned.proved_at = self._clock()
            await self.tell_seen([owned])

    def count_error(self, source: SourceId, cause: str) -> None:
        """Count a fault; the store is told with the next batch."""
        if (owned := self._owned.get(source)) is not None:
            owned.errors[cause] += 1

    async def tell_seen(self, some: Iterable[Owned]) -> None:
        """Tell readers that these sources' writer lives; in vain if the store is away."""
        try:
            await self._images.tell_seen(some)
        except (StoreError, TimeoutError):
            _LOG.debug("the store could not be told who lives", exc_info=True)

    async def beat(self) -> None:
        """Tell that this process lives and what it owns; let go of what another took over.

        Else a process that lost a source without noticing would overwrite its successor's signs.
        """
        try:
            for owned in await self._images.find_taken(
                [one for one in self.owned if one.is_claimed]
            ):
                await self._lose_image(owned, TakenOver(str(owned.source)))
        except (StoreError, TimeoutError):
            return
        await self.tell_seen(self.owned)

    # -- images ------------------------------------------------------------------------------

    async def _publish(self, owned: Owned, step: Step) -> None:
        """Bring the image up to date; on any failure leave it to `repair`."""
        try:
            await self._images.write_step(owned, step)
        except (StoreError, TimeoutError) as error:
            await self._lose_image(owned, error)

    async def repair(self, owned: Owned) -> bool:
        """Make the image anew where it was lost; whether there is one, or no need of one."""
        async with owned.lock:
            if owned.is_imaged or self._owned.get(owned.source) is not owned:
                return True
            self._sweeper.must_scrub = True
            try:
                await self._images.make(owned)
            except (StoreError, TimeoutError) as error:
                return await self._lose_image(owned, error)
            return True

    async def _lose_image(self, owned: Owned, error: Exception) -> bool:
        """Withdraw the source from readers, as far as the store lets us, to be repaired later.

        True where that is not ours to do: a source that another process took over is let go of,
        since what readers see of it is that one's.
        """
        if self._owned.get(owned.source) is not owned:
            return True
        if isinstance(error, TakenOver):
            _LOG.warning("%s was taken over by another process", owned.source)
            self._owned.pop(owned.source, None)
            return True
        if owned.is_imaged:
            _LOG.warning("the image of %s in the store is lost and will be repaired", owned.source)
            _LOG.debug("the image of %s", owned.source, exc_info=error)
        await self.lose_images([owned])
        return False

    async def lose_images(self, lost: Sequence[Owned]) -> None:
        """Withdraw sources whose images the store does not have as they were written."""
        if lost:
            try:
                await self._images.withdraw(lost)
            except (StoreError, TimeoutError):
                _LOG.debug("%d sources not withdrawn; they age out", len(lost), exc_info=True)

    # -- after a restart ---------------------------------------------------------------------

    async def _recall(
        self, source: SourceId, layout: CacheLayout, max_age_seconds: float | None
    ) -> Owned:
        """Return `source` as its records say; empty, in a new epoch, where they are not whole.

        What waited to be named was in memory only: a source with anything waiting is partial.
        """
        record = await read_record(self._store, self._keys, source)
        if record is None:
            return self._new(source, layout, max_age_seconds, Counter(), 0)
        errors = Counter(record.errors)
        if record.layout == layout:
            labels = await read_labels(self._store, self._keys, source, record)
            owned = self._new(source, layout, max_age_seconds, errors, record.epoch)
            if labels is not None and owned.ledger.restore(record.shape.shape, labels.items()):
                partial = record.waiting and record.state is SourceState.SYNCED
                owned.state = SourceState.PARTIAL if partial else record.state
                owned.next_sequence = record.next_sequence
                owned.last_digest = record.last_digest
                owned.proved_at = record.proved_at
                return owned
        return self._new(source, layout, max_age_seconds, errors, record.epoch + 1)

    async def others(self) -> list[tuple[SourceId, SourceRecord]]:
        """Return the records of other processes' sources, and remember how much they hold.

        Raises:
            StoreError: the store failed.
        """
        found = [
            (source, one)
            for source, one in await read_records(self._store, self._keys)
            if source not in self._owned
        ]
        self._blocks_of_others = sum(record.blocks for _, record in found)
        return found

    # -- ledgers -----------------------------------------------------------------------------

    def _new(
        self,
        source: SourceId,
        layout: CacheLayout,
        max_age_seconds: float | None,
        errors: Counter[str],
        epoch: int,
    ) -> Owned:
        ledger = self._open_ledger(layout, errors)
        return Owned(source, layout, max_age_seconds, ledger, errors, epoch=epoch)

    def _open_ledger(self, layout: CacheLayout, errors: Counter[str]) -> SourceLedger:
        return SourceLedger(
            layout,
            errors,
            max_blocks=self._caps.blocks_per_source,
            max_waiting=self._caps.waiting,
            survey=survey,
        )

    def _empty(self, owned: Owned) -> None:
        """The engine dropped everything: known to be empty, unless it was never attached."""
        self._retire(owned)
        owned.epoch += 1
        if owned.state is SourceState.PARTIAL:
            owned.state = SourceState.SYNCED

    def _retire(self, owned: Owned) -> None:
        self._sweeper.retire(owned.ledger.clear(), owned.slots)
        owned.slots = {}
