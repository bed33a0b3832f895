"""Look-ups on Redis: pages of the prompt in growing strides, matched like everywhere else.

The first round trip fetches the first pages and the mark of the source table; only if the table
changed since the last look-up it is read again. Readers write nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kvmeta.backends.keys import Keys, parse_field
from kvmeta.backends.pages import (
    ENTRY_BYTES,
    PAGE_UNITS,
    SlotMasks,
    anchors_of,
    entries_of,
    pack_slot,
    page_masks,
)
from kvmeta.backends.records import Seen, TableEntry, decode_entry, decode_seen
from kvmeta.backends.redis_store import RedisStore
from kvmeta.groups import announced_groups
from kvmeta.match import MaskRuns, MatchPlan, longest_prefix, plan_match
from kvmeta.types import (
    CacheBelief,
    GroupKind,
    PromptBlocks,
    SourceId,
    SourceState,
)

FIRST_STRIDE_PAGES = 32
"""A prompt of 2,048 blocks comes in one round trip; a cold one of any length costs no more."""

STRIDE_GROWTH = 4

_NEVER = b""


@dataclass(frozen=True, slots=True)
class _Reading:
    """One source of the table, ready to match. `full` has the bits of its attention groups."""

    entry: TableEntry
    plan: MatchPlan | None
    full: int
    tells_salts: bool


@dataclass(frozen=True, slots=True)
class _Table:
    """The source table as of `revision`; None means that nobody marked it, so it is not kept."""

    revision: bytes | None
    sources: Mapping[SourceId, _Reading]
    masks: SlotMasks


class RedisReader:
    """Answers look-ups; `clock` is the wall clock that the writers use too, in seconds.

    A source whose writer gave no sign for `writer_max_age_seconds` is unknown.
    """

    def __init__(
        self,
        store: RedisStore,
        keys: Keys,
        *,
        clock: Callable[[], float],
        writer_max_age_seconds: float,
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._writer_max_age_seconds = writer_max_age_seconds
        self._table = _Table(_NEVER, {}, SlotMasks({}))
        self._seen: Mapping[SourceId, Seen] = {}

    async def look_up(
        self, prompt: PromptBlocks, sources: Sequence[SourceId]
    ) -> Mapping[SourceId, CacheBelief]:
        """Return the longest reusable prefix of `prompt` at each of `sources`.

        Raises:
            StoreError: the store failed; nothing is known then.
        """
        beliefs = dict.fromkeys(sources, CacheBelief.unknown())
        anchors = anchors_of(prompt.hashes)
        stop = min(FIRST_STRIDE_PAGES, len(anchors))
        revision, pages = await self._store.fetch(
            self._keys.revision, self._keys.pages(anchors[:stop])
        )
        # One table for the whole look-up: another one may replace `self._table` meanwhile.
        table = self._table
        if revision is None or revision != table.revision:
            table = await self._read_table(revision)
        known = await self._known(table, beliefs, prompt)
        if not known:
            return beliefs
        masks = await self._masks(prompt, anchors, pages, known, table.masks)
        runs = MaskRuns(masks)
        for source, reading in known:
            unit = reading.entry.layout.block_size
            plan = reading.plan
            units = longest_prefix(plan, runs, prompt.limit // unit) if plan is not None else 0
            beliefs[source] = CacheBelief(units * unit, reading.entry.state)
        return beliefs

    # -- blocks ------------------------------------------------------------------------------

    async def _masks(
        self,
        prompt: PromptBlocks,
        anchors: Sequence[str],
        pages: Sequence[bytes | None],
        known: Sequence[tuple[SourceId, _Reading]],
        live: SlotMasks,
    ) -> list[int]:
        """Return one mask a block, up to where no source asked for can go on.

        That is a page's last block that no attention group has: every model needs all blocks of
        one. Should a model have none, its prompts are read to their end.
        """
        entries = entries_of(prompt.hashes)
        full = 0
        for _, reading in known:
            if reading.plan is not None:
                full |= reading.full
        endless = any(reading.plan is not None and not reading.full for _, reading in known)
        masks: list[int] = []
        stride = len(pages)
        while pages:
            first = len(masks)
            masks += await self._expand(pages, entries, anchors, first // PAGE_UNITS, live)
            at = len(masks) // PAGE_UNITS
            if at * PAGE_UNITS != len(masks) or at == len(anchors):
                break
            ends = masks[first + PAGE_UNITS - 1 :: PAGE_UNITS]
            if not endless and not all(mask & full for mask in ends):
                break
            stride *= STRIDE_GROWTH
            _, pages = await self._store.fetch(
                self._keys.revision, self._keys.pages(list(anchors[at : at + stride]))
            )
        return masks

    async def _expand(
        self,
        pages: Sequence[bytes | None],
        entries: bytes,
        anchors: Sequence[str],
        first: int,
        live: SlotMasks,
    ) -> list[int]:
        """Return the masks of consecutive pages, asking overflows where entries are missing."""
        masks: list[int] = []
        missing: list[tuple[str, list[int]]] = []
        width = PAGE_UNITS * ENTRY_BYTES
        for number, page in enumerate(pages, start=first):
            wanted = entries[number * width : (number + 1) * width]
            if page is None:
                masks += [0] * (len(wanted) // ENTRY_BYTES)
                continue
            found, absent = page_masks(page, wanted, live)
            if absent:
                base = (number - first) * PAGE_UNITS
                missing.append((anchors[number], [base + at for at in absent]))
            masks += found
        if missing:
            await self._ask_overflows(missing, entries[first * width :], masks, live)
        return masks

    async def _ask_overflows(
        self,
        missing: Sequence[tuple[str, list[int]]],
        entries: bytes,
        masks: list[int],
        live: SlotMasks,
    ) -> None:
        """Fill in the masks of entries that did not fit their page; one round trip."""
        replies = await self._store.read(
            [
                (
                    "HMGET",
                    self._keys.overflow(bytes.fromhex(anchor)),
                    *(entries[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES] for at in positions),
                )
                for anchor, positions in missing
            ]
        )
        for (_, positions), found in zip(missing, replies, strict=True):
            for at, slots in zip(positions, found, strict=True):
                if slots:
                    masks[at] = live[slots]

    # -- sources -----------------------------------------------------------------------------

    async def _read_table(self, revision: bytes | None) -> _Table:
        """Read the source table, and keep it for as long as its mark stays.

        The mark was read before the table, so what is kept may be newer than its mark, never
        older.
        """
        table, seen = await self._store.read(
            [("HGETALL", self._keys.table), ("HGETALL", self._keys.seen)]
        )
        self._seen = read_seen(seen)
        self._table = _read_entries(revision, table)
        return self._table

    async def _known(
        self, table: _Table, wanted: Mapping[SourceId, CacheBelief], prompt: PromptBlocks
    ) -> Sequence[tuple[SourceId, _Reading]]:
        """Return those that may speak for this prompt."""
        sources = table.sources
        candidates = [
            (source, reading)
            for source in wanted
            if (reading := sources.get(source)) is not None
            and reading.entry.state is not SourceState.UNKNOWN
            and (reading.tells_salts or not prompt.salted)
        ]
        fresh = [one for one in candidates if not self._is_stale(*one)]
        if len(fresh) == len(candidates):
            return fresh
        # What was read a while ago is older than the truth: ask before giving a source up.
        (seen,) = await self._store.read([("HGETALL", self._keys.seen)])
        self._seen = read_seen(seen)
        return [one for one in candidates if not self._is_stale(*one)]

    def _is_stale(self, source: SourceId, reading: _Reading) -> bool:
        seen = self._seen.get(source)
        return seen is None or is_stale(
            seen, reading.entry.max_age_seconds, self._clock(), self._writer_max_age_seconds
        )


def is_stale(
    seen: Seen, max_age_seconds: float | None, now: float, writer_max_age_seconds: float
) -> bool:
    """Whether a source must count as unknown: its proof, or its writer's last sign, is too old."""
    if now - seen.written_at > writer_max_age_seconds:
        return True
    if max_age_seconds is None:
        return False
    return seen.proved_at is None or now - seen.proved_at > max_age_seconds


def _read_entries(revision: bytes | None, table: Mapping[bytes, bytes]) -> _Table:
    """Decode the table and give every live slot a bit; an unreadable entry is left out."""
    entries: dict[SourceId, TableEntry] = {}
    for field, packed in table.items():
        source = parse_field(field)
        if source is not None:
            try:
                entries[source] = decode_entry(packed)
            except msgspec.DecodeError:
                continue  # a newer version's: its sources are unknown to this one
    bits: dict[bytes, int] = {}
    for entry in entries.values():
        for slot in entry.slots:
            if slot is not None:
                bits[pack_slot(slot)] = 1 << len(bits)
    return _Table(
        revision,
        {source: _reading_of(entry, bits) for source, entry in entries.items()},
        SlotMasks(bits),
    )


def _reading_of(entry: TableEntry, bits: Mapping[bytes, int]) -> _Reading:
    shape = entry.shape.shape
    places = {
        place: bits[pack_slot(slot)] if slot is not None else 0
        for place, slot in zip(shape.places, entry.slots, strict=True)
    }
    announced = announced_groups(entry.layout, shape.groups, places)
    full = 0
    for group in announced:
        if group.kind is GroupKind.FULL_ATTENTION:
            full |= group.present
    return _Reading(entry, plan_match(entry.layout, announced), full, shape.tells_salts)


def read_seen(seen: Mapping[bytes, bytes]) -> Mapping[SourceId, Seen]:
    """Decode who was seen when; what cannot be read was not seen."""
    read: dict[SourceId, Seen] = {}
    for field, packed in seen.items():
        source = parse_field(field)
        if source is not None:
            try:
                read[source] = decode_seen(packed)
            except msgspec.DecodeError:
                continue
    return read
