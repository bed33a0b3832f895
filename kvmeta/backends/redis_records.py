"""Reading back what writers recorded: one source's ledger after a restart, every source's state."""

from __future__ import annotations

import asyncio

import msgspec

from kvmeta.backends.keys import Keys, parse_field
from kvmeta.backends.records import SourceRecord, decode_record, unpack_label
from kvmeta.backends.redis_store import RedisStore
from kvmeta.errors import StoreError
from kvmeta.ledger_records import LabelRecord
from kvmeta.types import EngineLabel, SourceId

_LABELS_AT_ONCE = 1_000
_READ_TIMEOUT_SECONDS = 5.0


async def read_record(store: RedisStore, keys: Keys, source: SourceId) -> SourceRecord | None:
    """Return the record of `source`; None where there is none that can be read."""
    try:
        async with asyncio.timeout(_READ_TIMEOUT_SECONDS):
            (packed,) = await store.read([("HGET", keys.record(source), "record")])
        return None if packed is None else decode_record(packed)
    except (StoreError, TimeoutError, msgspec.DecodeError):
        return None


async def read_labels(
    store: RedisStore, keys: Keys, source: SourceId, record: SourceRecord
) -> dict[EngineLabel, LabelRecord] | None:
    """Return every label record of `source`; None unless there are as many as there should be."""
    found: dict[EngineLabel, LabelRecord] = {}
    places = len(record.shape.places)
    cursor = b"0"
    try:
        while True:
            async with asyncio.timeout(_READ_TIMEOUT_SECONDS):
                ((cursor, labels),) = await store.read(
                    [("HSCAN", keys.labels(source), cursor, "COUNT", _LABELS_AT_ONCE)]
                )
            for label, packed in labels.items():
                found[EngineLabel(label)] = unpack_label(packed, places)
            if not int(cursor):
                return found if len(found) == record.labels else None
    except (StoreError, TimeoutError, ValueError):
        return None


async def read_records(store: RedisStore, keys: Keys) -> list[tuple[SourceId, SourceRecord]]:
    """Return every source's record that this version can read.

    Raises:
        StoreError: the store failed.
    """
    (fields,) = await store.read([("HKEYS", keys.table)])
    sources = [source for name in fields if (source := parse_field(name)) is not None]
    if not sources:
        return []
    packed = await store.read([("HGET", keys.record(source), "record") for source in sources])
    records: list[tuple[SourceId, SourceRecord]] = []
    for source, one in zip(sources, packed, strict=True):
        try:
            if one is not None:
                records.append((source, decode_record(one)))
        except msgspec.DecodeError:
            continue
    return records
