"""vLLM's and SGLang's KV-event payloads -> `EventBatch`, for every shape since vLLM 0.10.

The wire (vllm/distributed/kv_events.py): MessagePack of `[timestamp, events, rank]`, or a map of
those names. Each event is a map tagged by `type` (0.24 and later) or an array led by its tag, whose
length grew with the versions; both kinds may stand in one batch. Fields that we do not use, and
those that later versions add, are passed over.

    BlockStored   tag, block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium,
                  lora_name, extra_keys, group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window
    BlockRemoved  tag, block_hashes, medium, group_idx
    AllBlocksCleared  tag

SGLang (srt/disaggregation/kv_events.py) took over transport and names, and went its own way after
the medium: arrays of 5 fields, later the medium, since 0.5.18 an eighth element
`{"cache_salt": …, "session_id": …}` on events that have either, where vLLM has the adapter's name;
last, maps with both as fields. Salted chains have other hashes there, so a label still names one
block. What is not salted says nothing of salts: a source counts as telling them from its first
salted event on, and is unknown to salted prompts before.

An event that cannot be read costs itself alone and is counted by cause.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeGuard

import msgspec

from kvmeta.errors import PayloadError, TokenRangeError
from kvmeta.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    UnknownEvent,
    canonical_medium,
)
from kvmeta.hashing import encode_extra, pack_tokens
from kvmeta.types import GPU, EngineLabel, GroupKind

_BATCH_FIELDS: Final = ("ts", "events", "data_parallel_rank")
_STORED_FIELDS: Final = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
_REMOVED_FIELDS: Final = ("block_hashes", "medium", "group_idx")
_ARRAY_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "BlockStored": _STORED_FIELDS,
    "BlockRemoved": _REMOVED_FIELDS,
    "AllBlocksCleared": (),
}

# vllm/v1/kv_cache_interface.py. Whatever is not named here needs every block, as far as we know.
_KINDS: Final[Mapping[str, GroupKind]] = {
    "sliding_window": GroupKind.SLIDING_WINDOW,
    "sliding_window_mla": GroupKind.SLIDING_WINDOW,
    "chunked_local_attention": GroupKind.SLIDING_WINDOW,
    "mamba": GroupKind.RECURRENT,
}

_LABEL_MASK: Final = (1 << 64) - 1
_MAX_LABEL_BYTES: Final = 64
_MAX_GROUP: Final = 1023
_MAX_NAME: Final = 64
"""Longest tag and tier name kept: they end up in counters, which an engine must not blow up."""


class _Fault(Exception):
    """Why one event cannot be read; `cause` is one of a closed set of counter labels."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


def decode_batch(payload: bytes) -> EventBatch:
    """Return the batch that `payload` encodes.

    Raises:
        PayloadError: it is no batch at all. Never anything else, whatever the bytes.
    """
    fields = _read_outer(payload)
    events = fields.get("events")
    if not isinstance(events, list):
        raise PayloadError("a batch without a list of events")
    faults: Counter[str] = Counter()
    decoded: list[Event] = []
    for raw in events:
        try:
            decoded.append(_decode_event(raw))
        except _Fault as fault:
            faults[fault.cause] += 1
    timestamp = fields.get("ts")
    rank = fields.get("data_parallel_rank")
    return EventBatch(
        timestamp=float(timestamp) if isinstance(timestamp, int | float) else 0.0,
        events=tuple(decoded),
        rank=rank if _is_int(rank) else None,
        faults=faults,
    )


def _read_outer(payload: bytes) -> Mapping[object, object]:
    try:
        outer = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        # Besides malformed bytes: unhashable map keys, dates out of range, endless nesting.
        raise PayloadError("a payload that is no MessagePack") from error
    match outer:
        case list():
            return dict(zip(_BATCH_FIELDS, outer, strict=False))
        case dict():
            return outer
        case _:
            raise PayloadError("a batch that is neither an array nor a map")


def _decode_event(raw: object) -> Event:
    fields: Mapping[object, object]
    match raw:
        case [str(tag), *values]:
            fields = dict(zip(_ARRAY_FIELDS.get(tag, ()), values, strict=False))
        case {"type": str(tag), **rest}:
            fields = rest
        case _:
            raise _Fault("malformed_event")
    match tag:
        case "BlockStored":
            return _decode_stored(fields, told_by_position=isinstance(raw, list))
        case "BlockRemoved":
            return BlockRemoved(
                labels=_labels(fields.get("block_hashes")),
                medium=_medium(fields),
                group=_group(fields.get("group_idx")),
            )
        case "AllBlocksCleared":
            return AllBlocksCleared()
        case _:
            return UnknownEvent(tag[:_MAX_NAME])


def _decode_stored(fields: Mapping[object, object], *, told_by_position: bool) -> BlockStored:
    labels = _labels(fields.get("block_hashes"))
    parent = fields.get("parent_block_hash")
    medium = _medium(fields)
    lora = _lora(fields)
    extra_keys = fields.get("extra_keys")
    if extra_keys is None and told_by_position and "extra_keys" in fields and medium == GPU:
        # An array that reaches past this field says "none"; a map that omits it says nothing, and
        # offload tiers never know.
        extra_keys = [None] * len(labels)
    stored = BlockStored(
        labels=labels,
        parent=None if parent is None else _label(parent),
        tokens=_tokens(fields.get("token_ids")),
        block_size=_block_size(fields.get("block_size")),
        medium=medium,
        group=_group(fields.get("group_idx")),
        kind=_kind(fields.get("kv_cache_spec_kind")),
        window=_window(fields.get("kv_cache_spec_sliding_window")),
        lora=lora,
        salt=_named_salt(fields),
    )
    if not stored.is_dense or extra_keys is None:
        return stored
    salt, extras = _split_extras(extra_keys, labels, lora, at_start=parent is None)
    return dataclasses.replace(stored, salt=salt, extras=extras)


def _split_extras(
    extra_keys: object, labels: Sequence[EngineLabel], lora: str | None, *, at_start: bool
) -> tuple[str | None, tuple[bytes, ...]]:
    """Sort the untagged keys of each block into (cache salt, canonical bytes of the rest).

    vLLM writes, in order, the adapter's name, `[identifier, offset]` pairs of multimodal items, the
    salt (first block of a prompt only) and digests (v1/core/kv_cache_utils.py). The adapter is
    told apart by `lora_name`; the next bare string of the first block is the salt. A digest
    mistaken for a salt, or anything unheard of, yields a block that no prompt matches.
    """
    if not isinstance(extra_keys, list) or len(extra_keys) != len(labels):
        raise _Fault("extra_keys")
    salt: str | None = None
    extras: list[bytes] = []
    for position, keys in enumerate(extra_keys):
        if keys is None:
            extras.append(b"")
            continue
        if not isinstance(keys, list):
            raise _Fault("extra_keys")
        rest = list(keys)
        if lora is not None and lora in rest:
            rest.remove(lora)
        if at_start and position == 0:
            salt = next((key for key in rest if isinstance(key, str)), None)
            if salt is not None:
                rest.remove(salt)
        extras.append(encode_extra(rest))
    return salt, tuple(extras)


def _is_int(value: object) -> TypeGuard[int]:
    """Whether `value` is a number and not one of the two booleans that Python calls numbers."""
    return isinstance(value, int) and not isinstance(value, bool)


def _label(value: object) -> EngineLabel:
    """One label from any spelling: the same 64 bits, signed or unsigned, are the same label."""
    if _is_int(value):
        return EngineLabel((value & _LABEL_MASK).to_bytes(8, "big"))
    if isinstance(value, bytes) and 0 < len(value) <= _MAX_LABEL_BYTES:
        return EngineLabel(value)
    raise _Fault("block_hash")


def _labels(value: object) -> tuple[EngineLabel, ...]:
    if not isinstance(value, list):
        raise _Fault("block_hash")
    return tuple(_label(item) for item in value)


def _tokens(value: object) -> bytes:
    if not isinstance(value, list):
        raise _Fault("token_ids")
    try:
        return pack_tokens(value)
    except TokenRangeError as error:
        raise _Fault("token_ids") from error


def _block_size(value: object) -> int:
    # The upper bound keeps sizes computable: no engine has a block of four billion tokens.
    if _is_int(value) and 0 <= value < 1 << 32:
        return value
    raise _Fault("block_size")


def _group(value: object) -> int | None:
    if value is None:
        return None
    if _is_int(value) and 0 <= value <= _MAX_GROUP:
        return value
    raise _Fault("group_idx")


def _kind(value: object) -> GroupKind | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _KINDS.get(value, GroupKind.FULL_ATTENTION)
    raise _Fault("kv_cache_spec_kind")


def _window(value: object) -> int | None:
    if value is None:
        return None
    if _is_int(value) and value > 0:
        return value
    raise _Fault("kv_cache_spec_sliding_window")


def _medium(fields: Mapping[object, object]) -> str:
    """The tier, in one spelling; what another machine owns is a tier of its own."""
    value = fields.get("medium")
    if value is not None and not isinstance(value, str):
        raise _Fault("medium")
    name = canonical_medium(value)[:_MAX_NAME]
    return f"REMOTE:{name}" if fields.get("locality") == "REMOTE" else name


def _named_salt(fields: Mapping[object, object]) -> str | None:
    """The cache salt where SGLang names it: in its own field, or in the map in the eighth place."""
    metadata = fields.get("lora_name")
    salt = fields.get("cache_salt")
    if isinstance(metadata, dict):
        salt = metadata.get("cache_salt")
    if salt is None or isinstance(salt, str):
        return salt
    raise _Fault("cache_salt")


def _lora(fields: Mapping[object, object]) -> str | None:
    """The adapter's name; one known by number only gets a name that no request can carry."""
    name = fields.get("lora_name")
    if isinstance(name, str):
        return name
    if name is not None and not isinstance(name, dict):  # a map is SGLang's metadata
        raise _Fault("lora_name")
    number = fields.get("lora_id")
    return None if number is None else f"\x00unnamed {number!r}"[:_MAX_NAME]
