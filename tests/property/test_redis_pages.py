"""Pages in Redis against a plain dictionary: the script writes what the reader reads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvmeta.backends.pages import (
    PAGE_UNITS,
    SlotMasks,
    anchors_of,
    entries_of,
    entry_of,
    pack_change,
    pack_slot,
    page_masks,
    read_page,
    survey,
)
from kvmeta.backends.redis_store import PAGES
from kvmeta.hashing import hash_blocks
from kvmeta.types import BlockHash
from tests.fakes.redis_servers import redis_server

LIMIT = 6
ENTRIES = [bytes([number]) * 8 for number in range(12)]
SLOTS = [1, 2, 300, 1_800_000_000_000_000]
BITS = {pack_slot(slot): 1 << at for at, slot in enumerate(SLOTS[:-1])}  # the last one is dead

entries = st.lists(st.sampled_from(ENTRIES), max_size=8, unique=True)
changes = st.tuples(st.sampled_from(SLOTS), entries, entries).map(
    lambda change: (change[0], change[1], [one for one in change[2] if one not in change[1]])
)


@pytest.fixture(scope="module")
def client() -> Iterator[redis.Redis]:
    with redis_server() as server, server.client() as running:
        yield running


def masks_in(client: redis.Redis, wanted: list[bytes]) -> list[int]:
    """What a reader makes of the page and its overflow."""
    page = client.get("p")
    if page is None:
        return [0] * len(wanted)
    assert isinstance(page, bytes)
    live = SlotMasks(BITS)
    found, absent = page_masks(page, b"".join(wanted), live)
    for at in absent:
        slots = client.hget("o", wanted[at])
        found[at] = live[slots] if isinstance(slots, bytes) else 0
    return found


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(st.lists(changes, min_size=1, max_size=3), max_size=12),
    asked=st.lists(entries, min_size=1, max_size=4),
    again=st.booleans(),
)
def test_a_page_holds_what_it_was_told(
    client: redis.Redis,
    steps: list[list[tuple[int, list[bytes], list[bytes]]]],
    asked: list[list[bytes]],
    *,
    again: bool,
) -> None:
    """Any sets and clears, also repeated: every entry has its slots and nobody else has."""
    client.flushall()
    truth: dict[bytes, set[int]] = {entry: set() for entry in ENTRIES}
    for step in steps:
        ops = b""
        for slot, sets, clears in step:
            ops += pack_change(slot, sets, clears)
            for entry in sets:
                truth[entry].add(slot)
            for entry in clears:
                truth[entry].discard(slot)
        for _ in range(2 if again else 1):
            client.eval(PAGES.text, 2, "p", "o", LIMIT, ops)
    for wanted in [*asked, ENTRIES]:
        expected = [
            sum(1 << SLOTS.index(slot) for slot in truth[one] if slot in SLOTS[:-1])
            for one in wanted
        ]
        assert masks_in(client, wanted) == expected
    held = {entry for entry, slots in truth.items() if slots}
    page = client.get("p")
    if not held:
        assert client.dbsize() == 0
        return
    assert isinstance(page, bytes)
    over, stored, groups = read_page(page)
    over_keys = {one for one in client.hkeys("o") if isinstance(one, bytes)}
    inside = {stored[at : at + 8] for at in range(0, len(stored), 8)}
    assert inside | over_keys == held
    assert not inside & over_keys
    assert over == bool(over_keys)
    assert len(inside) <= LIMIT
    assert len({bits for bits, _ in groups}) == len(groups), "equal holdings share a group"


@given(
    tokens=st.lists(st.integers(0, 9), max_size=300),
    cuts=st.lists(st.integers(0, 300), max_size=4),
    units=st.sampled_from([1, 2, 3]),
)
def test_a_blocks_spot_does_not_depend_on_how_its_chain_was_told(
    tokens: list[int], cuts: list[int], units: int
) -> None:
    """Told whole or in pieces, a block stands where a reader of its prompt looks for it."""
    names = hash_blocks(BlockHash(bytes(16)), tokens, 1)
    names = names[: len(names) // units * units]
    whole = survey(None, names, units)
    pieces: list[bytes] = []
    at = 0
    for cut in [*sorted(cut // units * units for cut in cuts), len(names)]:
        if cut > at:
            pieces += survey(pieces[-1] if pieces else None, names[at:cut], units)
            at = cut
    assert pieces == whole
    anchors = anchors_of(names)
    for number, spot in enumerate(whole, start=1):
        position = number * units - 1
        assert spot[:-1].hex() == anchors[position // PAGE_UNITS]
        assert spot[-1] == position % PAGE_UNITS


def test_entries_are_the_halves_that_keys_do_not_have() -> None:
    """Packed at once or one by one."""
    names = hash_blocks(BlockHash(bytes(16)), list(range(100)), 1)
    assert entries_of(names) == b"".join(entry_of(name) for name in names)
    assert entries_of([]) == b""


@pytest.mark.parametrize("bits", range(16))
def test_every_pattern_of_a_short_page_is_read_right(bits: int) -> None:
    """Whole, held to a depth, ragged or not at all, beside a slot that holds all of it."""
    wanted = ENTRIES[:4]
    page = b"\x00\x04\x00" + b"".join(wanted)
    page += b"\x01\x00" + pack_slot(1) + bytes([bits])
    page += b"\x01\x00" + pack_slot(2) + b"\x0f"
    for total in range(5):
        asked = b"".join(ENTRIES[:total])
        found, absent = page_masks(page, asked, SlotMasks(BITS))
        assert found == [(bits >> at & 1) | 2 for at in range(total)]
        assert absent == []
