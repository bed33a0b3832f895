"""What an engine tells about its cache, whatever the wire format was.

Labels are the engine's own block names; nothing here is hashed yet. Values that reveal prompts or
tenants (tokens, salts, extras) are left out of every `repr`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvmeta.hashing import TOKEN_BYTES
from kvmeta.types import CPU, GPU, EngineLabel, GroupKind


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks entered one medium of one KV group.

    `tokens` are packed little-endian uint32 and start where `parent` ends (at token 0 without
    one). They cover every label of a dense event, more than the labels of a sparse one, and are
    empty in a placeholder, whose `block_size` is 0 as well.

    `extras[i]` is what else determines block i (`kvmeta.hashing.encode_extra`, empty for nothing);
    None where the engine does not tell, which says nothing about salts either unless one is named.
    `salt` and `lora` name the namespace of a chain that starts here. `group` None is the
    full-attention group.
    """

    labels: tuple[EngineLabel, ...]
    parent: EngineLabel | None = None
    tokens: bytes = field(default=b"", repr=False)
    block_size: int = 0
    medium: str = GPU
    group: int | None = None
    kind: GroupKind | None = None
    window: int | None = None
    lora: str | None = None
    salt: str | None = field(default=None, repr=False)
    extras: tuple[bytes, ...] | None = field(default=None, repr=False)

    @property
    def is_dense(self) -> bool:
        """Whether label i names the i-th block of `tokens`.

        Sparse events skip blocks, so a shorter label list tells nothing of positions; a list that
        covers all tokens skipped none.
        """
        covered = len(self.labels) * self.block_size * TOKEN_BYTES
        return covered > 0 and covered == len(self.tokens)


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One copy of each label left one medium of one KV group; other copies may remain."""

    labels: tuple[EngineLabel, ...]
    medium: str = GPU
    group: int | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The whole cache of the publisher is empty, every medium and group."""


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event type that this version does not know; tolerated, counted, without effect."""

    tag: str


Event = BlockStored | BlockRemoved | AllBlocksCleared | UnknownEvent


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What one engine step changed, in order.

    `timestamp` is the engine's wall clock in seconds since 1970. `rank` is the publisher's
    data-parallel rank where it tells. `faults` counts, by cause, the events that could not be read
    and are missing from `events`. `digest` stands for the payload (`kvmeta.ingest.sequences`): an
    index keeps the last one, so that ingest knows its publisher again after a restart of its own.
    """

    timestamp: float
    events: tuple[Event, ...]
    rank: int | None = None
    faults: Mapping[str, int] = field(default_factory=dict)
    digest: bytes = field(default=b"", repr=False)


def canonical_medium(name: str | None) -> str:
    """Return one spelling a tier: upper case, pinned host memory is `CPU`, absent is `GPU`."""
    if not name:
        return GPU
    upper = name.upper()
    return CPU if upper == "CPU_PINNED" else upper
