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
from dataclasses import dataclass, field

import msgspec

from kvmeta.backends.keys import Keys, field_text, parse_field
from kvmeta.backends.pages import entry_of, pack_change, survey
from kvmeta.backends.records import (
    Seen,
    SourceRecord,
    StoredShape,
    TableEntry,
    decode_record,
    encode,
    pack_items,
    pack_label,
    unpack_label,
)
from kvmeta.backends.redis_store import COMMIT, PAGES, SLOTS, Command, RedisStore, Reply
from kvmeta.backends.redis_sweeper import RedisSweeper, page_commands
from kvmeta.errors import StoreError
from kvmeta.events import BlockStored, EventBatch
from kvmeta.ledger import Change, LabelRecord, LedgerEvent, SourceLedger, split_at_clears
from kvmeta.types import CacheLayout, EngineLabel, SourceId, SourceState
from kvmeta.waiting import Place

WRITE_TIMEOUT_SECONDS = 5.0
"""A thousand times what a healthy Redis needs for the largest batch."""

REPAIR_BLOCKS = 4_096
"""Blocks of an image made in one step: some tens of milliseconds."""

_SLOTS_AT_ONCE = 32
_LABELS_AT_ONCE = 1_000

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caps:
    """Bounds: (block, place) pairs of one source and of all, labels a source may have waiting."""

    blocks_per_source: int
    blocks_total: int
    waiting: int


@dataclass(slots=True)
class Owned:
    """One source of this process.

    `is_imaged` says that Redis shows what the ledger holds; `version` is that of the record there,
    `is_claimed` that this process wrote it once. `shown` is the table entry last written. `lock`
    keeps one source's writes in order.
    """

    source: SourceId
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
    version: int = 0
    is_imaged: bool = False
    is_claimed: bool = False
    shown: bytes = b""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class _Step:
    """What a batch did to a ledger and is not in Redis yet."""

    changes: list[Change] = field(default_factory=list)
    touched: set[EngineLabel] = field(default_factory=set)
    forget_labels: bool = False


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
        self._token = token
        self._new_mark = new_mark
        self._caps = caps
        self._owned: dict[SourceId, Owned] = {}
        self._spare_slots: list[int] = []
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
                await self._publish(owned, _Step())
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
            await self._publish(owned, _Step(forget_labels=True))

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
            step = _Step()
            refused = 0
            for cleared, events in split_at_clears(batch.events):
                if cleared:
                    self._empty(owned)
                    step = _Step(forget_labels=True)
                    refused = 0
                refused += await self._take(owned, events, step)
            owned.errors.update(batch.faults)
            if (refused or batch.faults) and owned.state is SourceState.SYNCED:
                owned.state = SourceState.PARTIAL
            await self._publish(owned, step)
            return True

    async def _take(self, owned: Owned, events: Sequence[LedgerEvent], step: _Step) -> int:
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
                await self._publish(owned, _Step())

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
        """Tell readers that these sources' writer lives; silently in vain if the store is away."""
        told = [part for owned in some if owned.is_imaged for part in self._seen_of(owned)]
        if told:
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                    await self._store.write([("HSET", self._keys.seen, *told)])
            except (StoreError, TimeoutError):
                _LOG.debug("the store could not be told who lives", exc_info=True)

    # -- the image in Redis ------------------------------------------------------------------

    async def _publish(self, owned: Owned, step: _Step) -> None:
        """Bring the image up to date; on any failure leave it to `repair`."""
        if not owned.is_imaged:
            return
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                await self._write_step(owned, step)
        except (StoreError, TimeoutError) as error:
            await self._lose_image(owned, error)

    async def _write_step(self, owned: Owned, step: _Step) -> None:
        is_new = await self._give_slots(owned)
        table = self._table_commands(owned, owned.state)
        pages = self._page_commands(owned, step.changes)
        if table and is_new and not self._store.is_atomic:
            await self._store.write(table)  # slots enter the table before any page
            table = []
        commit = self._commit(owned, step.touched, forget=step.forget_labels, take_over=False)
        seen: Command = ("HSET", self._keys.seen, *self._seen_of(owned))
        replies = await self._store.write([*table, *pages, commit, seen])
        await self._check_commit(owned, replies[len(table) + len(pages)])

    async def repair(self, owned: Owned) -> bool:
        """Make the image anew, from the ledger, under new slots; whether that succeeded.

        Until it is whole the source is partial to readers: what is there is true already.
        """
        async with owned.lock:
            if owned.is_imaged or self._owned.get(owned.source) is not owned:
                return True
            try:
                await self._make_image(owned)
            except (StoreError, TimeoutError) as error:
                await self._lose_image(owned, error)
                return False
            return True

    async def _make_image(self, owned: Owned) -> None:
        if owned.is_claimed and not await self._is_ours(owned):
            return
        owned.slots = {}
        self._sweeper.must_scrub = True
        state = owned.state
        if owned.ledger.blocks and state is SourceState.SYNCED:
            state = SourceState.PARTIAL
        async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
            await self._give_slots(owned)
            owned.shown = b""
            await self._store.write(self._table_commands(owned, state))
            await self._write_records(owned, (), forget=True, take_over=True)
            owned.is_claimed = True
        labels = list(owned.ledger.labels)
        for first in range(0, len(labels), REPAIR_BLOCKS):
            async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                await self._write_records(owned, labels[first : first + REPAIR_BLOCKS])
        some: list[Change] = []
        for change in owned.ledger.holdings():
            some.append(change)
            if len(some) == REPAIR_BLOCKS:
                async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                    await self._store.write(self._page_commands(owned, some))
                some = []
        async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
            commands = [
                *self._page_commands(owned, some),
                *self._table_commands(owned, owned.state),
                ("HSET", self._keys.seen, *self._seen_of(owned)),
            ]
            await self._store.write(commands)
        owned.is_imaged = True

    async def _write_records(
        self,
        owned: Owned,
        labels: Iterable[EngineLabel],
        *,
        forget: bool = False,
        take_over: bool = False,
    ) -> None:
        commit = self._commit(owned, labels, forget=forget, take_over=take_over)
        (reply,) = await self._store.write([commit])
        await self._check_commit(owned, reply)

    async def _lose_image(self, owned: Owned, error: Exception) -> None:
        """Withdraw the source from readers, as far as the store lets us, and remember to repair.

        Only by commands that a Redis out of memory still takes; and not if another process owns
        the source by now, since what readers see is then that one's.
        """
        if self._owned.get(owned.source) is not owned:
            return
        if owned.is_imaged:
            _LOG.warning("the image of %s in the store is lost and will be repaired", owned.source)
            _LOG.debug("the image of %s", owned.source, exc_info=error)
        owned.is_imaged = False
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                await self._store.free(
                    [
                        ("HDEL", self._keys.table, field_text(owned.source)),
                        ("DEL", self._keys.revision),
                    ]
                )
        except (StoreError, TimeoutError):
            _LOG.debug("%s could not be withdrawn; it ages out", owned.source, exc_info=True)

    def lose_images(self, lost: Iterable[Owned]) -> None:
        """Have these images made anew: the store does not have them as they were written."""
        for owned in lost:
            owned.is_imaged = False

    async def _check_commit(self, owned: Owned, reply: Reply) -> None:
        """Go on only if the record was as we left it.

        Raises:
            StoreError: it was not: the store lost writes, or another process took the source over.
        """
        if reply != 1:
            await self._is_ours(owned)
            raise StoreError("the record is not as it was left")

    async def _is_ours(self, owned: Owned) -> bool:
        """Whether nobody else wrote the record since; else let go of the source."""
        async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
            (version,) = await self._store.read(
                [("HGET", self._keys.record(owned.source), "version")]
            )
        if version is None or version.startswith(self._token.encode() + b":"):
            return True
        _LOG.warning("%s was taken over by another process", owned.source)
        self._owned.pop(owned.source, None)
        return False

    async def _give_slots(self, owned: Owned) -> bool:
        """Give every place of the ledger a slot; whether there was one without."""
        wanting = [place for place in owned.ledger.places if place not in owned.slots]
        if len(self._spare_slots) < len(wanting):
            number = max(_SLOTS_AT_ONCE, len(wanting))
            (first,) = await self._store.write(
                [("EVALSHA", SLOTS.sha, 1, self._keys.slots, number)]
            )
            self._spare_slots = list(range(first + number - 1, first - 1, -1))
        for place in wanting:
            owned.slots[place] = self._spare_slots.pop()
        return bool(wanting)

    def _table_commands(self, owned: Owned, state: SourceState) -> list[Command]:
        """What tells readers of the source, if anything changed for them."""
        entry = encode(
            TableEntry(
                layout=owned.layout,
                state=state,
                shape=StoredShape.of(owned.ledger.shape),
                slots=tuple(owned.slots.get(place) for place in owned.ledger.places),
                max_age_seconds=owned.max_age_seconds,
            )
        )
        if entry == owned.shown:
            return []
        owned.shown = entry
        return [
            ("HSET", self._keys.table, field_text(owned.source), entry),
            ("SET", self._keys.revision, self._new_mark()),
        ]

    def _page_commands(self, owned: Owned, changes: Iterable[Change]) -> list[Command]:
        """What sets and clears bits. Of several changes of one block the last one counts."""
        final: dict[bytes, dict[int, dict[bytes, bool]]] = {}
        slots = owned.slots
        for block, place, present, spot in changes:
            if not spot:
                continue  # its place in the chain was forgotten: a miss, never a false hit
            page = final.setdefault(spot[:-1], {})
            page.setdefault(slots[place], {})[entry_of(block)] = present
        ops = {
            anchor: b"".join(
                pack_change(
                    slot,
                    [entry for entry, present in entries.items() if present],
                    [entry for entry, present in entries.items() if not present],
                )
                for slot, entries in by_slot.items()
            )
            for anchor, by_slot in final.items()
        }
        return page_commands(self._store, self._keys, ops, script=PAGES)

    def _commit(
        self, owned: Owned, labels: Iterable[EngineLabel], *, forget: bool, take_over: bool
    ) -> Command:
        """The script call that records the ledger, with these labels' records."""
        ledger = owned.ledger
        shape = ledger.shape
        sets: list[bytes] = []
        drops: list[bytes] = []
        for label in labels:
            record = ledger.record(label)
            if record is None:
                drops.append(label)
            else:
                sets += (label, pack_label(record))
        expected = "" if take_over else f"{self._token}:{owned.version}"
        owned.version += 1
        return (
            "EVALSHA",
            COMMIT.sha,
            2,
            self._keys.record(owned.source),
            self._keys.labels(owned.source),
            expected,
            f"{self._token}:{owned.version}",
            self._record_of(owned, StoredShape.of(shape)),
            "1" if forget else "0",
            pack_items(sets),
            pack_items(drops),
        )

    def _record_of(self, owned: Owned, shape: StoredShape) -> bytes:
        return encode(
            SourceRecord(
                layout=owned.layout,
                max_age_seconds=owned.max_age_seconds,
                state=owned.state,
                epoch=owned.epoch,
                next_sequence=owned.next_sequence,
                last_digest=owned.last_digest,
                proved_at=owned.proved_at,
                shape=shape,
                labels=len(owned.ledger.labels),
                blocks=owned.ledger.blocks,
                waiting=owned.ledger.waiting,
                errors=dict(owned.errors),
            )
        )

    def _seen_of(self, owned: Owned) -> tuple[str, bytes]:
        return field_text(owned.source), encode(Seen(owned.proved_at, self._clock()))

    # -- after a restart ---------------------------------------------------------------------

    async def _recall(
        self, source: SourceId, layout: CacheLayout, max_age_seconds: float | None
    ) -> Owned:
        """Return `source` as its records say; empty, in a new epoch, where they are not whole.

        What waited to be named was in memory only: a source with anything waiting is partial.
        """
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                (packed,) = await self._store.read([("HGET", self._keys.record(source), "record")])
            record = None if packed is None else decode_record(packed)
        except (StoreError, TimeoutError, msgspec.DecodeError):
            record = None
        if record is None:
            return self._new(source, layout, max_age_seconds, Counter(), 0)
        errors = Counter(record.errors)
        owned = self._new(source, layout, max_age_seconds, errors, record.epoch)
        if record.layout == layout and await self._recall_labels(owned, record):
            partial = record.waiting and record.state is SourceState.SYNCED
            owned.state = SourceState.PARTIAL if partial else record.state
            owned.next_sequence = record.next_sequence
            owned.last_digest = record.last_digest
            owned.proved_at = record.proved_at
            return owned
        return self._new(source, layout, max_age_seconds, errors, record.epoch + 1)

    async def _recall_labels(self, owned: Owned, record: SourceRecord) -> bool:
        """Fill the ledger from the label records; False unless every one of them is there."""
        found: dict[EngineLabel, LabelRecord] = {}
        places = len(record.shape.places)
        cursor = 0
        try:
            while True:
                async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                    ((cursor, labels),) = await self._store.read(
                        [
                            (
                                "HSCAN",
                                self._keys.labels(owned.source),
                                cursor,
                                "COUNT",
                                _LABELS_AT_ONCE,
                            )
                        ]
                    )
                for label, packed in labels.items():
                    found[EngineLabel(label)] = unpack_label(packed, places)
                if not int(cursor):
                    break
        except (StoreError, TimeoutError, ValueError):
            return False
        return len(found) == record.labels and owned.ledger.restore(
            record.shape.shape, found.items()
        )

    async def others(self) -> list[tuple[SourceId, SourceRecord]]:
        """Return the records of other processes' sources, and remember how much they hold.

        Raises:
            StoreError: the store failed.
        """
        found = [
            (source, one) for source, one in await self._records() if source not in self._owned
        ]
        self._blocks_of_others = sum(record.blocks for _, record in found)
        return found

    async def _records(self) -> list[tuple[SourceId, SourceRecord]]:
        """Read every source's record that this version can read."""
        (fields,) = await self._store.read([("HKEYS", self._keys.table)])
        sources = [source for name in fields if (source := parse_field(name)) is not None]
        if not sources:
            return []
        packed = await self._store.read(
            [("HGET", self._keys.record(source), "record") for source in sources]
        )
        records: list[tuple[SourceId, SourceRecord]] = []
        for source, one in zip(sources, packed, strict=True):
            try:
                if one is not None:
                    records.append((source, decode_record(one)))
            except msgspec.DecodeError:
                continue
        return records

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
