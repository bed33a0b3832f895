"""KV events as values, and their two msgpack layouts (ENGINE-FACTS 1.2, 1.8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from kvmeta.types import GPU, GroupKind
from router.sim.engines.specs import EventEncoding

WIRE_KINDS = {
    GroupKind.FULL_ATTENTION: "full_attention",
    GroupKind.SLIDING_WINDOW: "sliding_window",
    GroupKind.RECURRENT: "mamba",
}
"""How events call the kinds of group."""


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks of one group became reusable.

    `tokens` covers the whole range that was computed, `labels` only the blocks kept of it: sparse
    groups keep few or none, so positions cannot be derived from the lists.
    """

    group: int
    kind: GroupKind
    window: int | None
    block_size: int
    labels: Sequence[int]
    parent: int | None
    tokens: Sequence[int]
    extra_keys: Sequence[list[str] | None]
    lora: str | None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One copy of a block was evicted; another copy under the same label may remain."""

    group: int
    label: int


@dataclass(frozen=True, slots=True)
class AllCleared:
    """The whole prefix cache was reset."""


KvEvent: TypeAlias = BlocksStored | BlockRemoved | AllCleared

_encoder = msgspec.msgpack.Encoder()


def encode_batch(
    events: Sequence[KvEvent], *, timestamp: float, rank: int, encoding: EventEncoding
) -> bytes:
    """Return the payload frame of one published batch: `[timestamp, events, rank]`."""
    match encoding:
        case EventEncoding.MAP:
            return _encoder.encode([timestamp, [_as_map(event) for event in events], rank])
        case EventEncoding.ARRAY:
            return _encoder.encode([timestamp, [_as_array(event) for event in events], rank])


def _as_map(event: KvEvent) -> dict[str, object]:
    match event:
        case BlocksStored():
            wire: dict[str, object] = {
                "type": "BlockStored",
                "block_hashes": event.labels,
                "parent_block_hash": event.parent,
                "token_ids": event.tokens,
                "block_size": event.block_size,
                "lora_id": None if event.lora is None else 1,
                "medium": GPU,
                "lora_name": event.lora,
            }
            if event.extra_keys:
                wire["extra_keys"] = event.extra_keys
            wire["group_idx"] = event.group
            wire["kv_cache_spec_kind"] = WIRE_KINDS[event.kind]
            if event.window is not None:
                wire["kv_cache_spec_sliding_window"] = event.window
            return wire
        case BlockRemoved(group, label):
            return {
                "type": "BlockRemoved",
                "block_hashes": [label],
                "medium": GPU,
                "group_idx": group,
            }
        case AllCleared():
            return {"type": "AllBlocksCleared"}


def _as_array(event: KvEvent) -> list[object]:
    match event:
        case BlocksStored():
            return [
                "BlockStored",
                event.labels,
                event.parent,
                event.tokens,
                event.block_size,
                None if event.lora is None else 1,
                GPU,
                event.lora,
                event.extra_keys or None,
                event.group,
                WIRE_KINDS[event.kind],
                event.window,
            ]
        case BlockRemoved(group, label):
            return ["BlockRemoved", [label], GPU, group]
        case AllCleared():
            return ["AllBlocksCleared"]
