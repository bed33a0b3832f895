"""KV events as an engine with its own block names would send them.

An `Engine` names blocks by a seeded digest of its own, unrelated to the index's hashes, as real
engines do: two engines with different seeds give the same tokens different labels.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import msgspec

from kvmeta.events import BlockRemoved, BlockStored, Event, EventBatch
from kvmeta.hashing import encode_extra, pack_tokens
from kvmeta.types import GPU, EngineLabel, GroupKind


class Engine:
    """Builds events for one engine whose hash unit is `block` tokens."""

    def __init__(self, block: int = 4, seed: str = "a") -> None:
        self.block = block
        self._seed = seed.encode()

    def labels(
        self,
        tokens: Sequence[int],
        *,
        salt: str | None = None,
        lora: str | None = None,
        block: int | None = None,
    ) -> tuple[EngineLabel, ...]:
        """The engine's labels of every full block of a prompt that starts with `tokens`."""
        width = block or self.block
        namespace = repr((self._seed, salt, lora)).encode()
        return tuple(
            EngineLabel(hashlib.sha256(namespace + repr([*tokens[:end]]).encode()).digest()[:8])
            for end in range(width, len(tokens) + 1, width)
        )

    def stored(
        self,
        tokens: Sequence[int],
        *,
        start: int = 0,
        group: int | None = 0,
        kind: GroupKind | None = GroupKind.FULL_ATTENTION,
        medium: str = GPU,
        salt: str | None = None,
        lora: str | None = None,
        block: int | None = None,
        told: bool = True,
    ) -> BlockStored:
        """A dense event: blocks `start`.. of the prompt; `told` False hides salt and extras."""
        width = block or self.block
        labels = self.labels(tokens, salt=salt, lora=lora, block=width)
        own = labels[start:]
        return BlockStored(
            labels=own,
            parent=labels[start - 1] if start else None,
            tokens=pack_tokens(list(tokens[start * width : len(labels) * width])),
            block_size=width,
            medium=medium,
            group=group,
            kind=kind,
            lora=lora,
            salt=salt if told and not start else None,
            extras=(b"",) * len(own) if told else None,
        )

    def sparse(
        self,
        tokens: Sequence[int],
        ends: Sequence[int],
        *,
        group: int,
        kind: GroupKind,
        window: int | None = None,
        block: int | None = None,
        medium: str = GPU,
    ) -> BlockStored:
        """A sparse event over the whole prompt that names only the blocks ending at `ends`."""
        width = block or self.block
        labels = self.labels(tokens)
        return BlockStored(
            labels=tuple(labels[end // self.block - 1] for end in ends),
            tokens=pack_tokens(list(tokens)),
            block_size=width,
            group=group,
            kind=kind,
            window=window,
            medium=medium,
        )

    def placeholder(
        self, labels: Sequence[EngineLabel], *, medium: str, group: int | None = 0
    ) -> BlockStored:
        """What an offload tier sends: labels without tokens."""
        return BlockStored(labels=tuple(labels), medium=medium, group=group)


def removed(
    labels: Sequence[EngineLabel], *, medium: str = GPU, group: int | None = 0
) -> BlockRemoved:
    return BlockRemoved(labels=tuple(labels), medium=medium, group=group)


def batch(*events: Event) -> EventBatch:
    return EventBatch(0.0, events)


def with_extra(event: BlockStored, position: int, *items: object) -> BlockStored:
    """`event` with multimodal items in one of its blocks."""
    assert event.extras is not None
    extras = list(event.extras)
    extras[position] = encode_extra(items)
    return dataclasses.replace(event, extras=tuple(extras))


def payload(
    tokens: Sequence[int], *, timestamp: float = 1.0, engine: Engine | None = None, start: int = 0
) -> bytes:
    """A wire payload (map events, as vLLM 0.24 and later) that stores one prompt."""
    engine = engine or Engine()
    event = engine.stored(tokens, start=start)
    stored = {
        "type": "BlockStored",
        "block_hashes": [int.from_bytes(label, "big") for label in event.labels],
        "parent_block_hash": event.parent and int.from_bytes(event.parent, "big"),
        "token_ids": list(tokens[start * engine.block :]),
        "block_size": engine.block,
        "lora_id": None,
        "medium": GPU,
        "lora_name": None,
        "extra_keys": [None] * len(event.labels),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return msgspec.msgpack.encode([timestamp, [stored], 0])
