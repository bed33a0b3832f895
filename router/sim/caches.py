"""A fast model of an instance's prefix cache: hits and evictions, no blocks' contents.

A prompt is a chain of block ids; equal ids are equal prefixes, as in a trace. Full attention needs
every block from the first on. A model with recurrent layers needs a state besides, and an engine
keeps one where a prompt ended and where prompts parted (vLLM's block-aligned hybrid cache), so
reuse ends at the last such place within the blocks that are there. The least recently used blocks
go first, a prompt's tail before its head, as in vLLM.

The stand-in engines' `block_cache` models the same in full; it is too slow for millions of prompts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from router.domain.units import Tokens


class PrefixCache:
    """The cache of one instance.

    `capacity` counts blocks of `block_tokens`; 0 caches nothing. With `recurrent` a prefix is
    reusable only where a state was kept.
    """

    __slots__ = ("_blocks", "block_tokens", "capacity", "recurrent")

    def __init__(self, capacity: int, block_tokens: Tokens, *, recurrent: bool) -> None:
        self.capacity = capacity
        self.block_tokens = block_tokens
        self.recurrent = recurrent
        # Least recently used first; the value tells whether a state was kept at the block's end.
        self._blocks: OrderedDict[int, bool] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    def match(self, blocks: Sequence[int], total: Tokens) -> Tokens:
        """Return the longest reusable prefix of a prompt of `total` tokens.

        At most total - 1: engines recompute the last token.
        """
        return self._reusable(blocks, self._present(blocks), total) * self.block_tokens

    def store(self, blocks: Sequence[int], total: Tokens) -> None:
        """Take a computed prompt's full blocks in, and evict what is over the capacity."""
        if not self.capacity:
            return
        cache = self._blocks
        parted = self._present(blocks)
        full = min(len(blocks), total // self.block_tokens)
        ends = {full - 1, (total - 1) // self.block_tokens - 1, parted - 1}
        # The tail becomes the least recent of the prompt, so it is evicted first.
        for position in range(full - 1, -1, -1):
            block = blocks[position]
            cache[block] = cache.get(block, False) or position in ends
            cache.move_to_end(block)
        while len(cache) > self.capacity:
            cache.popitem(last=False)

    def _present(self, blocks: Sequence[int]) -> int:
        """Return how many blocks from the first on are here."""
        cache, count = self._blocks, 0
        for block in blocks:
            if block not in cache:
                break
            count += 1
        return count

    def _reusable(self, blocks: Sequence[int], present: int, total: Tokens) -> int:
        length = min(present, (total - 1) // self.block_tokens)
        if not self.recurrent:
            return length
        while length and not self._blocks[blocks[length - 1]]:
            length -= 1
        return length
