"""The nouns of the index: layouts, sources, prompts and what is believed of them.

Everything here is a frozen value. Lengths are in tokens unless a name says blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import lcm
from typing import NewType

from msgspec import Struct

BlockHash = NewType("BlockHash", bytes)
"""Our own chain hash of a prefix that ends at a block boundary: 16 bytes, see `kvmeta.hashing`."""

EngineLabel = NewType("EngineLabel", bytes)
"""An engine's own name for a block, opaque: compared only within one source, never between two."""

GPU = "GPU"
CPU = "CPU"


class GroupKind(StrEnum):
    """How a KV group must be satisfied for a prefix of L tokens to be reusable."""

    FULL_ATTENTION = "full_attention"
    """Every block of [0, L). MLA counts as this too."""
    SLIDING_WINDOW = "sliding_window"
    """The blocks that cover the last `window - 1` tokens before L."""
    RECURRENT = "recurrent"
    """One state stored at exactly L (events call the kind `mamba`)."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """One declared kind of KV group; covers every `group_idx` of that kind that a source announces.

    `count` is how many groups of the kind the model has, where the operator knows it: fewer
    announced than that means nothing is reusable. `block_size` is the group's own block in tokens,
    None to learn it from the events (the layout's hash unit until then).
    """

    kind: GroupKind
    window: int | None = None
    count: int | None = None
    block_size: int | None = None


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """What must agree for two engines' blocks to be the same blocks, and the rule to reuse them.

    `fingerprint` stands for (model and revision, tokenizer revision, attention layout, KV dtype,
    world size and rank grouping); together with `block_size` it roots every chain of the model.
    `alignment` is the granularity of an engine's hits, None for the least common multiple of the
    groups' block sizes (vLLM's scheduler block size). `counted_media` are the tiers that count.
    """

    fingerprint: str
    block_size: int
    groups: tuple[KvGroup, ...] = (KvGroup(GroupKind.FULL_ATTENTION),)
    alignment: int | None = None
    eagle: bool = False
    counted_media: frozenset[str] = frozenset({GPU, CPU})

    declared_alignment: int = field(init=False, repr=False, compare=False)
    """The alignment that follows from the declaration alone, in tokens."""

    attends_fully: bool = field(init=False, repr=False, compare=False)
    """Whether every group is of full attention."""

    def __post_init__(self) -> None:
        """Derive what every look-up would."""
        sizes = [group.block_size or self.block_size for group in self.groups]
        declared = self.alignment or lcm(self.block_size, *sizes)
        object.__setattr__(self, "declared_alignment", declared)
        full = all(group.kind is GroupKind.FULL_ATTENTION for group in self.groups)
        object.__setattr__(self, "attends_fully", full)


class SourceId(Struct, frozen=True, order=True, gc=False):
    """One publisher of KV events: an instance and its data-parallel rank."""

    instance: str
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.instance}/{self.rank}"


class SourceState(StrEnum):
    """How far what is known of a source may be trusted."""

    SYNCED = "synced"
    """Every event of this epoch was applied, exactly once."""
    PARTIAL = "partial"
    """Attached late or lost events: what it announced since is a lower bound."""
    UNKNOWN = "unknown"
    """Nothing heard in this epoch, or nobody could be asked. Not the same as zero."""
    APPROXIMATE = "approximate"
    """Guessed from routed prompts, for engines that publish no events."""


class PromptBlocks(Struct, frozen=True, gc=False):
    """A prompt as the index sees it: the chain hash at every full hash unit.

    `hashes[i]` names the prefix of `(i + 1) * block_size` tokens. `limit` is the longest prefix
    that an engine could reuse at all, in tokens: at most `total_tokens - 1`, since engines
    recompute the last token, and less where a connector truncates the prefill leg. `salted` says
    that the chain has a cache salt: sources whose events cannot tell salts are unknown for it.
    """

    hashes: Sequence[BlockHash]
    total_tokens: int
    limit: int
    salted: bool = False


class CacheBelief(Struct, frozen=True, gc=False):
    """The longest reusable prefix believed to be at one source; `tokens` None when unknown."""

    tokens: int | None
    state: SourceState

    @classmethod
    def unknown(cls) -> CacheBelief:
        """Nothing is known: neither zero nor a hit."""
        return _UNKNOWN


_UNKNOWN = CacheBelief(None, SourceState.UNKNOWN)


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What operators see of one source.

    `blocks` counts what it holds, each block once per medium and KV group; `waiting` the blocks
    announced before what they hang on. `epoch` rises whenever everything it held is forgotten.
    `age_seconds` is the time since the source last proved that nothing was missed (an applied
    event or an answered replay probe), None if it never did. `next_sequence` is the sequence
    number expected next, `last_digest` stands for the batch before it, None where nobody told.
    `errors` counts by cause and survives epochs.
    """

    source: SourceId
    state: SourceState
    epoch: int
    blocks: int
    next_sequence: int | None
    age_seconds: float | None
    errors: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    last_digest: bytes | None = field(default=None, repr=False)
