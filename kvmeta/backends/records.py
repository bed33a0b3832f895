"""What the Redis back end writes about a source, as values and as bytes.

A source has a *table entry*, all that readers need; a *record*, what its writer needs to go on
after a restart; and one *label record* for each of the engine's labels. Encoding is MessagePack,
save for label records, which are many and hence packed by hand.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from kvmeta.backends.pages import SPOT_BYTES
from kvmeta.groups import GroupShape
from kvmeta.ledger_records import MAX_PLACES, LabelRecord, LedgerShape
from kvmeta.naming import SaltEvidence
from kvmeta.types import BlockHash, CacheLayout, GroupKind, SourceState

_NAME_BYTES = 16
_COPIES = struct.Struct("<BH")
_MOST_COPIES = 0xFFFF
_ONE_COPY = tuple(_COPIES.pack(number, 1) for number in range(MAX_PLACES))


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
    names_salts: bool = False
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
            tells_extras=shape.evidence.tells_extras,
            names_salts=shape.evidence.names_salts,
            kept_silent=shape.evidence.kept_silent,
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
            evidence=SaltEvidence(self.tells_extras, self.names_salts, self.kept_silent),
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
    last_digest: bytes | None
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


def pack_items(items: Iterable[bytes]) -> bytes:
    """Return many byte strings as one, each after its length: cheaper than arguments."""
    return b"".join([len(item).to_bytes(4, "little") + item for item in items])


def pack_label(record: LabelRecord) -> bytes:
    """Return a label record: name (16), spot (9), then (place u8, copies u16) for each place."""
    packed: bytes = record.name + record.spot
    for number, count in record.copies:
        packed += (
            _ONE_COPY[number] if count == 1 else _COPIES.pack(number, min(count, _MOST_COPIES))
        )
    return packed


def unpack_label(packed: bytes, places: int) -> LabelRecord:
    """Undo `pack_label`; `places` is how many places there are.

    Raises:
        ValueError: not made by it, or with more places.
    """
    at = _NAME_BYTES + SPOT_BYTES
    if len(packed) < at or (len(packed) - at) % _COPIES.size:
        raise ValueError("no label record")
    copies = tuple(_COPIES.iter_unpack(packed[at:]))
    if any(number >= places for number, _ in copies):
        raise ValueError("a label record of other places")
    return LabelRecord(BlockHash(packed[:_NAME_BYTES]), packed[_NAME_BYTES:at], copies)
