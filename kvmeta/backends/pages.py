"""Pages: who holds which blocks of up to 64 hash units of a chain, in one small string.

A page starts at every `PAGE_UNITS`-th block of a chain, its *anchor*, and holds what all sources
hold of the blocks from there up to the next page, on every continuation that shares the anchor. A
prompt of n blocks needs n / 64 strings. In a page a block is an *entry*: the second half of its
hash, while the key carries the first half of the anchor's. Two prompts can thus only meet in an
entry if 128 bits agree, as with whole hashes.

    page  =  over (1: some entries are in the overflow hash) | u16 n | n entries of 8 bytes
             | groups: u16 k | k slots of 7 bytes | n bits, of the entries that these slots hold

Slots that hold the same entries share a group, so a page that fifty sources hold alike costs seven
bytes a source. `scripts/pages.lua` writes pages, since several writers may share one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kvmeta.types import BlockHash

if TYPE_CHECKING:
    _Masks = dict[bytes, int]
else:
    _Masks = dict

PAGE_UNITS = 64
"""Hash units of a chain in one page. Half of it costs a look-up twice the keys, twice of it makes
single-block writes twice as long and short prompts no cheaper."""

PAGE_ENTRIES = 256
"""Entries in a page before more go to its overflow hash: four whole continuations of the anchor.
Rewriting a page costs Redis about 50 microseconds at that size."""

ENTRY_BYTES = 8
SLOT_BYTES = 7
SPOT_BYTES = 9
_ANCHOR_BYTES = 8


def survey(before: bytes | None, names: Sequence[BlockHash], units: int) -> list[bytes]:
    """Return the spots of every `units`-th of `names` (`kvmeta.naming.Surveyor`).

    A spot is the anchor and the position within its page, 8 bytes and one.
    """
    anchor = b"" if before is None else before[:_ANCHOR_BYTES]
    at = PAGE_UNITS - 1 if before is None else before[_ANCHOR_BYTES]
    spots: list[bytes] = []
    for number, name in enumerate(names, start=1):
        at += 1
        if at == PAGE_UNITS:
            at = 0
            anchor = name[:_ANCHOR_BYTES]
        if number % units == 0:
            spots.append(anchor + _POSITIONS[at])
    return spots


_POSITIONS = tuple(bytes([at]) for at in range(PAGE_UNITS))


def anchors_of(hashes: Sequence[BlockHash]) -> list[str]:
    """Return the anchors of a prompt's pages, hexadecimal."""
    return [name[:_ANCHOR_BYTES].hex() for name in hashes[::PAGE_UNITS]]


def entries_of(hashes: Iterable[BlockHash]) -> bytes:
    """Return the entries of a prompt's blocks, one after the other."""
    halves = array("Q", b"".join(hashes))
    return halves[1::2].tobytes()


def entry_of(name: BlockHash) -> bytes:
    """Return the entry of one block."""
    return name[_ANCHOR_BYTES:]


def pack_slot(slot: int) -> bytes:
    """Return a slot's number as it stands in pages."""
    return slot.to_bytes(SLOT_BYTES, "little")


def pack_change(slot: int, sets: Sequence[bytes], clears: Sequence[bytes]) -> bytes:
    """Return one operation for `scripts/pages.lua`; at most 65,535 entries each."""
    counts = len(sets).to_bytes(2, "little") + len(clears).to_bytes(2, "little")
    return pack_slot(slot) + counts + b"".join(sets) + b"".join(clears)


class SlotMasks(_Masks):
    """Maps the packed slots of a group to a mask over the live ones; others count for nothing.

    Remembers every answer: pages of one prompt repeat few groups.
    """

    def __init__(self, bits: dict[bytes, int]) -> None:
        super().__init__()
        self._bits = bits

    def __missing__(self, slots: bytes) -> int:
        mask = 0
        for at in range(0, len(slots), SLOT_BYTES):
            mask |= self._bits.get(slots[at : at + SLOT_BYTES], 0)
        self[slots] = mask
        return mask


Group = tuple[int, bytes]
"""(bits: which entries of the page, packed slots that hold them)."""


def read_page(page: bytes) -> tuple[bool, bytes, list[Group]]:
    """Take a page apart: has it an overflow, its entries, its groups."""
    count = page[1] | page[2] << 8
    width = (count + 7) >> 3
    at = 3 + count * ENTRY_BYTES
    entries = page[3:at]
    groups: list[Group] = []
    while at < len(page):
        stop = at + 2 + (page[at] | page[at + 1] << 8) * SLOT_BYTES
        groups.append((int.from_bytes(page[stop : stop + width], "little"), page[at + 2 : stop]))
        at = stop + width
    return page[0] == 1, entries, groups


def page_masks(page: bytes, wanted: bytes, masks: SlotMasks) -> tuple[list[int], list[int]]:
    """Return one mask for each of the wanted entries, and where the overflow must be asked.

    Costs a few microseconds where the page's first entries are the wanted ones in their order, as
    they are unless prompts part within the page.
    """
    over, entries, groups = read_page(page)
    live = [(bits, mask) for bits, slots in groups if (mask := masks[slots])]
    total = len(wanted) // ENTRY_BYTES
    shared = min(len(entries), len(wanted))
    if entries[:shared] == wanted[:shared]:
        known = shared // ENTRY_BYTES
        found = [*_in_order(live, known), *([0] * (total - known))]
        return found, list(range(known, total)) if over else []
    index = {
        entries[at : at + ENTRY_BYTES]: at // ENTRY_BYTES
        for at in range(0, len(entries), ENTRY_BYTES)
    }
    found = []
    absent = []
    for number in range(total):
        at = index.get(wanted[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES], -1)
        mask = 0
        if at >= 0:
            for bits, slots_mask in live:
                if bits >> at & 1:
                    mask |= slots_mask
        else:
            absent.append(number)
        found.append(mask)
    return found, absent if over else []


def _in_order(live: Sequence[tuple[int, int]], known: int) -> list[int]:
    """Return the masks of the page's first `known` entries."""
    whole = (1 << known) - 1
    everywhere = 0
    depths: list[tuple[int, int]] = []
    ragged: list[tuple[int, int]] = []
    for bits, mask in live:
        held = bits & whole
        if held == whole:
            everywhere |= mask
        elif held & (held + 1) == 0:  # ones from the first entry on: held to some depth
            if held:
                depths.append((held.bit_length(), mask))
        else:
            ragged.append((held, mask))
    masks = [everywhere] * known
    if depths:
        depths.sort(reverse=True)
        running = everywhere
        for number, (depth, mask) in enumerate(depths):
            running |= mask
            above = depths[number + 1][0] if number + 1 < len(depths) else 0
            masks[above:depth] = [running] * (depth - above)
    for held, mask in ragged:
        masks = [old | mask if held >> at & 1 else old for at, old in enumerate(masks)]
    return masks
