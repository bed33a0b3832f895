"""From prompts that share blocks to uncached lengths: what a trace asks to be computed.

A prompt is a chain of blocks. What a cache holds of its beginning need not be computed; the last
token always is, since engines recompute it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from router.domain.units import Tokens


def uncached_lengths(
    prompts: Iterable[tuple[Tokens, Sequence[int]]],
    *,
    block_tokens: Tokens,
    capacity_blocks: int | None = None,
) -> Iterator[Tokens]:
    """Yield the uncached tokens of each prompt, in order, given as its length and its block ids.

    One cache of `capacity_blocks` blocks (None: all that ever came) forgets the block that was used
    longest ago. Only whole blocks are reused; a prompt's own blocks are stored when it ends.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    for total, blocks in prompts:
        whole = total // block_tokens
        held = 0
        for block in blocks[:whole]:
            if block not in cache:
                break
            held += 1
        yield total - min(held * block_tokens, total - 1)
        # From the end, so that a chain loses its tail before its head.
        for block in reversed(blocks[:whole]):
            cache[block] = None
            cache.move_to_end(block)
        if capacity_blocks is not None:
            while len(cache) > capacity_blocks:
                cache.popitem(last=False)
