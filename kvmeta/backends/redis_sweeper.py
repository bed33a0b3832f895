"""Removes what nobody reads any more from Redis, a bounded number of blocks at a time.

Two ways. A writer that retires slots knows what they held and has it cleared at once (`sweep`).
What a writer left that died in between is found by walking through all keys (`scrub`): a slot that
is not in the source table is dead, since slots enter the table before they enter a page and their
numbers are never used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kvmeta.backends.keys import Keys, parse_field
from kvmeta.backends.pages import (
    ENTRY_BYTES,
    PAGE_ENTRIES,
    SLOT_BYTES,
    entry_of,
    pack_change,
    pack_slot,
    read_page,
)
from kvmeta.backends.records import decode_entry
from kvmeta.backends.redis_store import PAGES_WHEN_FULL, Command, RedisStore, Script
from kvmeta.errors import StoreError
from kvmeta.ledger_records import Forgotten
from kvmeta.types import BlockHash
from kvmeta.waiting import Place

SWEEP_BLOCKS = 4_096
"""Blocks cleared in one step: about ten milliseconds, of which Redis is busy for one or two."""


@dataclass(slots=True)
class Retired:
    """What a ledger knew when its slots were retired; taken apart by sweeping."""

    forgotten: Forgotten
    slots: Mapping[Place, int]


class RedisSweeper:
    """Sweeps for one process's writers. `blocks` counts what is still to be cleared."""

    def __init__(self, store: RedisStore, keys: Keys) -> None:
        self._store = store
        self._keys = keys
        self._retired: deque[Retired] = deque()
        self.blocks = 0
        self.must_scrub = False
        """Whether dead slots may be left that no ledger here knows of."""

    def retire(self, forgotten: Forgotten, slots: Mapping[Place, int]) -> None:
        """Take over what a source forgot; it is swept later."""
        self.blocks += sum(map(len, forgotten.held.values()))
        self._retired.append(Retired(forgotten, slots))

    async def sweep(self, limit: int = SWEEP_BLOCKS) -> int:
        """Clear at most `limit` blocks and return how many; 0 once none are left.

        Raises:
            StoreError: the store failed; what was to be cleared is left to `scrub`.
        """
        left = limit
        changes: dict[bytes, dict[int, list[bytes]]] = {}
        while left > 0 and self._retired:
            retired = self._retired[0]
            held, names = retired.forgotten.held, retired.forgotten.names
            if held:
                left = self._take_blocks(retired, *next(iter(held.items())), left, changes)
            elif names:
                # A large dict freed at once stops the event loop for a tenth of a second.
                for _ in range(min(left, len(names))):
                    names.popitem()
                    left -= 1
            else:
                self._retired.popleft()
        if changes:
            ops = {
                anchor: b"".join(pack_change(slot, (), gone) for slot, gone in slots.items())
                for anchor, slots in changes.items()
            }
            # True while it is under way: it may fail, or be cancelled by a time-out.
            before, self.must_scrub = self.must_scrub, True
            await self._store.free(
                page_commands(self._store, self._keys, ops, script=PAGES_WHEN_FULL)
            )
            self.must_scrub = before
        return limit - left

    def _take_blocks(
        self,
        retired: Retired,
        place: Place,
        blocks: dict[BlockHash, int],
        left: int,
        changes: dict[bytes, dict[int, list[bytes]]],
    ) -> int:
        slot = retired.slots.get(place)
        spots = retired.forgotten.spots
        while blocks and left > 0:
            block, _ = blocks.popitem()
            spot = spots.pop(block, b"") if len(retired.forgotten.held) == 1 else spots.get(block)
            if slot is not None and spot:
                changes.setdefault(spot[:-1], {}).setdefault(slot, []).append(entry_of(block))
            self.blocks -= 1
            left -= 1
        if not blocks:
            del retired.forgotten.held[place]
        return left

    async def scrub(self) -> int:
        """Walk through every key once; clear dead slots and sources' leavings; return how many.

        Raises:
            StoreError: the store failed; the next walk starts anew.
        """
        cleared = 0
        async for keys in self._store.scan(self._keys.everything):
            cleared += await self._scrub_pages([key for key in keys if key.endswith(b"}p")])
            cleared += await self._scrub_overflows([key for key in keys if key.endswith(b"}o")])
            cleared += await self._scrub_sources(keys)
        self.must_scrub = False
        return cleared

    async def _scrub_pages(self, keys: Sequence[bytes]) -> int:
        if not keys:
            return 0
        pages = await self._store.read([("GET", key) for key in keys])
        live = await self._live_slots()
        ops: dict[bytes, bytes] = {}
        cleared = 0
        for key, page in zip(keys, pages, strict=True):
            anchor = self._keys.anchor_of(key)
            if page is None or anchor is None:
                continue
            _, entries, groups = read_page(page)
            for bits, slots in groups:
                dead = _split_slots(slots) - live
                held = [
                    entries[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES]
                    for at in range(len(entries) // ENTRY_BYTES if dead else 0)
                    if bits >> at & 1
                ]
                for slot in dead:
                    number = int.from_bytes(slot, "little")
                    ops[anchor] = ops.get(anchor, b"") + pack_change(number, (), held)
                    cleared += len(held)
        if ops:
            await self._store.free(
                page_commands(self._store, self._keys, ops, script=PAGES_WHEN_FULL)
            )
        return cleared

    async def _scrub_overflows(self, keys: Sequence[bytes]) -> int:
        cleared = 0
        for key in keys:
            anchor = self._keys.anchor_of(key)
            cursor = 0
            while anchor is not None:
                ((cursor, found),) = await self._store.read(
                    [("HSCAN", key, cursor, "COUNT", PAGE_ENTRIES)]
                )
                live = await self._live_slots()
                ops = [
                    pack_change(int.from_bytes(slot, "little"), (), [entry])
                    for entry, slots in found.items()
                    for slot in _split_slots(slots) - live
                ]
                if ops:
                    cleared += len(ops)
                    await self._store.free(
                        page_commands(
                            self._store,
                            self._keys,
                            {anchor: b"".join(ops)},
                            script=PAGES_WHEN_FULL,
                        )
                    )
                if not int(cursor):
                    break
        return cleared

    async def _scrub_sources(self, keys: Sequence[bytes]) -> int:
        """Remove the records of sources that are not in the table."""
        owned = [key for key in keys if self._keys.source_of(key) is not None]
        if not owned:
            return 0
        (fields,) = await self._store.read([("HKEYS", self._keys.table)])
        known = {parse_field(field) for field in fields}
        lost = [key for key in owned if self._keys.source_of(key) not in known]
        if lost:
            await self._store.free([("UNLINK", key) for key in lost])
        return len(lost)

    async def _live_slots(self) -> set[bytes]:
        (table,) = await self._store.read([("HGETALL", self._keys.table)])
        live: set[bytes] = set()
        for packed in table.values():
            try:
                entry = decode_entry(packed)
            except msgspec.DecodeError as error:
                raise StoreError("a source of a newer version: its slots are not known") from error
            live.update(pack_slot(slot) for slot in entry.slots if slot is not None)
        return live


def _split_slots(slots: bytes) -> set[bytes]:
    return {slots[at : at + SLOT_BYTES] for at in range(0, len(slots), SLOT_BYTES)}


def page_commands(
    store: RedisStore, keys: Keys, ops: Mapping[bytes, bytes], *, script: Script
) -> list[Command]:
    """Return the script calls that carry out `ops` (anchor -> packed changes)."""
    commands: list[Command] = []
    anchors = list(ops)
    for first in range(0, len(anchors), store.pages_per_command):
        some = anchors[first : first + store.pages_per_command]
        commands.append(
            (
                "EVALSHA",
                script.sha,
                2 * len(some),
                *(key for anchor in some for key in (keys.page(anchor), keys.overflow(anchor))),
                PAGE_ENTRIES,
                *(ops[anchor] for anchor in some),
            )
        )
    return commands
