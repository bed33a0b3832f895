"""What Redis shows of this process's sources: written step by step, lost, and made anew.

A step is one round trip: the table entry if it changed, the pages that the step's blocks are in,
and the record, which is written only while its version is the one that this process left.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvmeta.backends.keys import Keys, field_text
from kvmeta.backends.pages import entry_of, pack_change
from kvmeta.backends.records import (
    Seen,
    SourceRecord,
    StoredShape,
    TableEntry,
    encode,
    pack_items,
    pack_label,
)
from kvmeta.backends.redis_store import COMMIT, PAGES, SLOTS, Command, RedisStore, Reply
from kvmeta.backends.redis_sweeper import page_commands
from kvmeta.errors import StoreError
from kvmeta.ledger import SourceLedger
from kvmeta.ledger_records import Change
from kvmeta.types import CacheLayout, EngineLabel, SourceId, SourceState
from kvmeta.waiting import Place

WRITE_TIMEOUT_SECONDS = 5.0
"""A thousand times what a healthy Redis needs for the largest batch."""

REPAIR_BLOCKS = 4_096
"""Blocks of an image made in one step: some tens of milliseconds."""

_SLOTS_AT_ONCE = 32


class TakenOver(StoreError):
    """Another process wrote the source's record since: it is no longer ours."""


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
class Step:
    """What a batch did to a ledger and is not in Redis yet."""

    changes: list[Change] = field(default_factory=list)
    touched: set[EngineLabel] = field(default_factory=set)
    forget_labels: bool = False


class RedisImages:
    """Writes images. `clock` is the wall clock; `token` tells this process from others.

    Every coroutine raises StoreError, TakenOver among them, or TimeoutError where the store did not
    do it; the image is then to be made anew.
    """

    def __init__(
        self,
        store: RedisStore,
        keys: Keys,
        *,
        clock: Callable[[], float],
        token: str,
        new_mark: Callable[[], bytes],
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._token = token
        self._new_mark = new_mark
        self._spare_slots: list[int] = []

    async def write_step(self, owned: Owned, step: Step) -> None:
        """Bring the image up to date; a source without an image is left as it is."""
        if owned.is_imaged:
            async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                await self._write_step(owned, step)

    async def _write_step(self, owned: Owned, step: Step) -> None:
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

    async def make(self, owned: Owned) -> None:
        """Make the image anew, from the ledger, under new slots.

        Until it is whole a synced source is partial to readers: what is there is true already.
        """
        if owned.is_claimed:
            async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                await self._check_owner(owned)
        owned.slots = {}
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

    async def withdraw(self, some: Sequence[Owned]) -> None:
        """Take sources from readers; by commands that a Redis out of memory still takes."""
        for owned in some:
            owned.is_imaged = False
        async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
            await self._store.free(
                [
                    ("HDEL", self._keys.table, *(field_text(owned.source) for owned in some)),
                    ("DEL", self._keys.revision),
                ]
            )

    async def tell_seen(self, some: Iterable[Owned]) -> None:
        """Tell readers that these sources' writer lives."""
        told = [part for owned in some if owned.is_imaged for part in self._seen_of(owned)]
        if told:
            async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                await self._store.write([("HSET", self._keys.seen, *told)])

    async def find_taken(self, some: Sequence[Owned]) -> list[Owned]:
        """Return those whose records another process wrote since."""
        if not some:
            return []
        async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
            versions = await self._store.read(
                [("HGET", self._keys.record(owned.source), "version") for owned in some]
            )
        pairs = zip(some, versions, strict=True)
        return [owned for owned, version in pairs if not self._is_ours(version)]

    async def _check_commit(self, owned: Owned, reply: Reply) -> None:
        if reply != 1:
            await self._check_owner(owned)
            raise StoreError("the record is not as it was left")

    async def _check_owner(self, owned: Owned) -> None:
        (version,) = await self._store.read([("HGET", self._keys.record(owned.source), "version")])
        if not self._is_ours(version):
            raise TakenOver(f"{owned.source} is another process's")

    def _is_ours(self, version: bytes | None) -> bool:
        return version is None or version.startswith(self._token.encode() + b":")

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
        for label, record in ledger.records(labels):
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
