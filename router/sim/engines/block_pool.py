"""The physical blocks of one engine: reference counts, the free queue, who holds which label.

Rules as vLLM's (v1/core/block_pool.py): a freed block that carries a label goes to the tail of the
free queue and stays a hit until it is taken again, which evicts it; a freed block without a label
goes to the head. Equal blocks are not merged: a label may have several holders, and each eviction
is told on its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from router.sim.engines.errors import StandInError
from router.sim.engines.kv_events import BlockRemoved

NULL_BLOCK = 0
"""Stands in a block table for a position that needs no block; never free, never counted."""


class BlockPool:
    """`capacity` blocks shared by all groups; every operation is O(1) per block."""

    def __init__(self, capacity: int, groups: int) -> None:
        self.capacity = capacity
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, capacity + 1))
        self._references = [0] * (capacity + 1)
        self._names: list[tuple[int, int] | None] = [None] * (capacity + 1)
        self._holders: list[dict[int, dict[int, None]]] = [{} for _ in range(groups)]

    def __repr__(self) -> str:
        return f"<BlockPool {self.used}/{self.capacity} used, {self.named} named>"

    @property
    def free(self) -> int:
        """Blocks that could be taken now, labelled ones included."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that requests hold."""
        return self.capacity - len(self._free)

    @property
    def named(self) -> int:
        """Blocks that carry a label, in use or not."""
        return sum(len(blocks) for group in self._holders for blocks in group.values())

    def take(self, count: int, removed: list[BlockRemoved]) -> list[int]:
        """Take `count` blocks from the head of the free queue; evictions are appended to `removed`.

        Raises StandInError, and takes nothing, if there are fewer.
        """
        if count > len(self._free):
            raise StandInError(f"{count} blocks wanted, {len(self._free)} free")
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            name = self._names[block]
            if name is not None:
                self._forget(block, name)
                removed.append(BlockRemoved(*name))
            self._references[block] = 1
        return taken

    def touch(self, blocks: Iterable[int]) -> None:
        """Hold `blocks` once more; those that were free leave the queue."""
        for block in blocks:
            if block != NULL_BLOCK:
                if self._references[block] == 0:
                    del self._free[block]
                self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Let `blocks` go once each, the first to be evicted first."""
        unnamed: list[int] = []
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            self._references[block] -= 1
            if self._references[block] == 0:
                if self._names[block] is None:
                    unnamed.append(block)
                else:
                    self._free[block] = None
        for block in reversed(unnamed):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def name(self, block: int, group: int, label: int) -> None:
        """Make `block` findable under `label`; earlier holders of the label stay."""
        self._names[block] = (group, label)
        self._holders[group].setdefault(label, {})[block] = None

    def find(self, group: int, label: int) -> int | None:
        """Return the oldest block of `group` under `label`, None for a miss."""
        blocks = self._holders[group].get(label)
        return None if blocks is None else next(iter(blocks))

    def clear(self) -> bool:
        """Forget every label; refused (False) while any request holds a block, as in vLLM."""
        if self.used:
            return False
        for group in self._holders:
            group.clear()
        self._names = [None] * (self.capacity + 1)
        return True

    def evictable_among(self, blocks: Iterable[int]) -> int:
        """Count the blocks that a touch would take out of the free queue."""
        return sum(block != NULL_BLOCK and self._references[block] == 0 for block in blocks)

    def _forget(self, block: int, name: tuple[int, int]) -> None:
        group, label = name
        self._names[block] = None
        holders = self._holders[group][label]
        del holders[block]
        if not holders:
            del self._holders[group][label]
