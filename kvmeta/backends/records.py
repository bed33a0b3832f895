"""What the Redis back end writes about a source, as values and as bytes.

A source has a *table entry*, all that readers need; a *record*, what its writer needs to go on
after a restart; and one *label record* for each of the engine's labels. Encoding is MessagePack,
save for label records, which are many and hence packed by hand.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import msgspec

from kvmeta.backends.pages import SPOT_BYTES
from kvmeta.ledger import GroupShape, LabelRecord, LedgerShape
from kvmeta.types import BlockHash, CacheLayout, GroupKind, SourceState
from kvmeta.waiting import Place

_NAME_BYTES = 16
_COPIES = struct.Struct("<BH")
_MOST_COPIES = 0xFFFF


class StoredGroup(msgspec.Struct, array_like=True, frozen=True):
    """`GroupShape` with its index."""

    index: int | None
    kind: GroupKind | None
    window: int | None
    block_size: int | None


class StoredShape(msgspec.Struct, array_like=True, frozen=True):
    """`LedgerShape`."""

    groups: tuple[StoredGroup, ...] = ()
    places: tuple[tuple[str, int | None], ...] = ()
    tells_extras: bool = False
    kept_silent: bool = False

    @classmethod
    def of(cls, shape: LedgerShape) -> StoredShape:
        """Return what `shape` says, as it is stored."""
        return cls(
            groups=tuple(
                StoredGroup(index, group.kind, group.window, group.block_size)
                for index, group in shape.groups.items()
            ),
            places=shape.places,
            tells_extras=shape.tells_extras,
            kept_silent=shape.kept_silent,
        )

    @property
    def shape(self) -> LedgerShape:
        """The shape that was stored."""
        return LedgerShape(
            groups={
                group.index: GroupShape(group.kind, group.window, group.block_size)
                for group in self.groups
            },
            places=self.places,
            tells_extras=self.tells_extras,
            kept_silent=self.kept_silent,
        )


class TableEntry(msgspec.Struct, array_like=True, frozen=True):
    """What readers need of one source. `slots` has a number, or None, for each place."""

    layout: CacheLayout
    state: SourceState
    shape: StoredShape
    slots: tuple[int | None, ...]
    max_age_seconds: float | None


class SourceRecord(msgspec.Struct, array_like=True, frozen=True):
    """What a writer needs to go on, and what reports say.

    `labels` is how many label records there are: fewer were lost, and all are then worthless,
    since a block whose label is lost could never be removed again.
    """

    layout: CacheLayout
    max_age_seconds: float | None
    state: SourceState
    epoch: int
    next_sequence: int | None
    proved_at: float | None
    shape: StoredShape
    labels: int
    blocks: int
    waiting: int
    errors: dict[str, int]


class Seen(msgspec.Struct, array_like=True, frozen=True):
    """When a source last gave proof, and when its writer last wrote; seconds of the wall clock."""

    proved_at: float | None
    written_at: float


encode = msgspec.msgpack.Encoder().encode
decode_entry = msgspec.msgpack.Decoder(TableEntry).decode
decode_record = msgspec.msgpack.Decoder(SourceRecord).decode
decode_seen = msgspec.msgpack.Decoder(Seen).decode


def pack_label(record: LabelRecord, numbers: Mapping[Place, int]) -> bytes:
    """Return a label record: name (16), spot (9), then (place u8, copies u16) for each place."""
    copies = [
        _COPIES.pack(numbers[place], min(count, _MOST_COPIES))
        for place, count in record.copies.items()
    ]
    return b"".join((record.name, record.spot, *copies))


def unpack_label(packed: bytes, places: Sequence[Place]) -> LabelRecord:
    """Undo `pack_label`.

    Raises:
        ValueError: not made by it, or with other places.
    """
    at = _NAME_BYTES + SPOT_BYTES
    try:
        copies = {places[number]: count for number, count in _COPIES.iter_unpack(packed[at:])}
    except (struct.error, IndexError) as error:
        raise ValueError("no label record of these places") from error
    if len(packed) < at:
        raise ValueError("a label record that is too short")
    return LabelRecord(BlockHash(packed[:_NAME_BYTES]), packed[_NAME_BYTES:at], copies)
