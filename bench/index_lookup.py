"""Time look-ups of one long prompt that many sources hold to different depths.

Usage: python -m bench.index_lookup [--tokens N] [--sources N] [--rounds N]

Prints a Markdown row per block size: milliseconds for hashing the prompt from its token ids (an
`array("I")`) and matching it against every source, p50 and p99.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from array import array
from collections.abc import Sequence

from kvmeta.backends.memory import MemoryIndex
from kvmeta.events import BlockStored, EventBatch
from kvmeta.hashing import pack_tokens, prompt_blocks
from kvmeta.types import CacheLayout, EngineLabel, GroupKind, SourceId, SourceState


def quantile(sorted_values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of an ascending, non-empty list lies."""
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


async def fill(
    index: MemoryIndex, layout: CacheLayout, tokens: Sequence[int], count: int
) -> list[SourceId]:
    """Let `count` sources hold the prompt, the first least of it and the last all of it."""
    sources = [SourceId(f"engine-{number}") for number in range(count)]
    total = len(tokens) // layout.block_size
    for number, source in enumerate(sources, start=1):
        blocks = total * number // count
        await index.register(source, layout)
        await index.begin_epoch(source, SourceState.SYNCED)
        stored = BlockStored(
            labels=tuple(EngineLabel(at.to_bytes(8, "big")) for at in range(blocks)),
            tokens=pack_tokens(tokens[: blocks * layout.block_size]),
            block_size=layout.block_size,
            group=0,
            kind=GroupKind.FULL_ATTENTION,
            extras=(b"",) * blocks,
        )
        await index.apply(source, 0, EventBatch(0.0, (stored,)))
    return sources


async def measure(block_size: int, tokens: Sequence[int], count: int, rounds: int) -> str:
    """Return one Markdown row."""
    layout = CacheLayout("bench", block_size)
    index = MemoryIndex(clock=time.monotonic)
    sources = await fill(index, layout, tokens, count)
    hashing: list[float] = []
    whole: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        prompt = prompt_blocks(layout, tokens)
        hashed = time.perf_counter()
        beliefs = await index.look_up(prompt, sources)
        end = time.perf_counter()
        hashing.append((hashed - start) * 1e3)
        whole.append((end - start) * 1e3)
    longest = beliefs[sources[-1]].tokens
    hashing.sort()
    whole.sort()
    return (
        f"| {len(tokens)} | {block_size} | {count} | {longest} | {quantile(hashing, 0.5):.2f} "
        f"| {quantile(whole, 0.5):.2f} | {quantile(whole, 0.99):.2f} |"
    )


def main() -> int:
    """Parse the arguments, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--sources", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    tokens = array("I", (at * 7919 % 150_000 for at in range(arguments.tokens)))
    write = sys.stdout.write
    write("| tokens | block | sources | longest hit | hashing p50 ms | total p50 ms | p99 ms |\n")
    write("|---|---|---|---|---|---|---|\n")
    for block_size in (64, 16):
        row = asyncio.run(measure(block_size, tokens, arguments.sources, arguments.rounds))
        write(row + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
