"""What a source's events tell of its KV groups, and the groups as `kvmeta.match` wants them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvmeta.events import BlockStored
from kvmeta.match import AnnouncedGroup
from kvmeta.types import CacheLayout, GroupKind
from kvmeta.waiting import Place


@dataclass(slots=True)
class GroupShape:
    """What the events told of one group; None is what they did not tell."""

    kind: GroupKind | None = None
    window: int | None = None
    block_size: int | None = None

    def learn(self, event: BlockStored) -> bool:
        """Learn what `event` tells; False where it contradicts the kind that was told before."""
        # The full-attention group's events are the ones without an index, whatever else they say.
        kind = GroupKind.FULL_ATTENTION if event.group is None else event.kind
        agrees = self.kind is None or kind in (None, self.kind)
        if self.kind is None:
            self.kind = kind
        # A window or a block learned too large costs hits; too small would invent them.
        self.window = max(self.window or 0, event.window or 0) or None
        self.block_size = max(self.block_size or 0, event.block_size) or None
        return agrees


def fits_layout(event: BlockStored, layout: CacheLayout) -> bool:
    """Whether the block size is a multiple of the hash unit, and not over the declared one."""
    if event.block_size % layout.block_size:
        return False
    kind = event.kind or GroupKind.FULL_ATTENTION
    declared = {group.block_size for group in layout.groups if group.kind is kind}
    largest = declared.pop() if len(declared) == 1 else None
    return largest is None or event.block_size <= largest


def announced_groups(
    layout: CacheLayout, shapes: Mapping[int | None, GroupShape], bits: Mapping[Place, int]
) -> list[AnnouncedGroup]:
    """Describe a source's groups for `kvmeta.match`, given the bit of every place.

    Events without an index belong to the full-attention group: with exactly one indexed group of
    that kind they are its own. With several nobody can say whose they are, so they count for none.
    """
    counted = layout.counted_media
    present: dict[int | None, int] = dict.fromkeys(shapes, 0)
    for (medium, index), bit in bits.items():
        if medium in counted and index in present:
            present[index] |= bit
    kinds = {index: shape.kind or GroupKind.FULL_ATTENTION for index, shape in shapes.items()}
    full = [
        index
        for index, kind in kinds.items()
        if index is not None and kind is GroupKind.FULL_ATTENTION
    ]
    if full and None in present:
        unindexed = present.pop(None)
        if len(full) == 1:
            present[full[0]] |= unindexed
    return [
        AnnouncedGroup(
            kind=kinds[index],
            present=bits_of,
            window=shapes[index].window,
            block_size=shapes[index].block_size,
        )
        for index, bits_of in present.items()
    ]
