"""Compare ways to keep "who holds this block" in Redis: bytes a block, and one prompt's read.

Usage: python -m bench.index_schemas [--blocks N] [--rounds N]

Presence alone, of one holder, without the label records that every schema needs alike. The reads
end with one integer a block, as the match needs them. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence

import redis

from kvmeta.backends.keys import Keys
from kvmeta.backends.pages import (
    ENTRY_BYTES,
    PAGE_ENTRIES,
    PAGE_UNITS,
    SlotMasks,
    anchors_of,
    entries_of,
    entry_of,
    pack_change,
    pack_slot,
    page_masks,
)
from kvmeta.backends.redis_store import PAGES
from kvmeta.types import BlockHash
from tests.fakes.redis_servers import Server, redis_server

SLOT = 1_800_000_000_000_000
PROMPT_BLOCKS = 8_192
BUCKET_BLOCKS = 64

Read = Callable[[redis.Redis, Sequence[BlockHash]], list[int]]


def key_per_block(client: redis.Redis, chain: Sequence[BlockHash], _: int) -> None:
    """`b:{hash}` -> slots."""
    client.mset({b"prfaas:kv:b:" + name: pack_slot(SLOT) for name in chain})


def read_keys(client: redis.Redis, chain: Sequence[BlockHash]) -> list[int]:
    """One MGET."""
    found = client.mget([b"prfaas:kv:b:" + name for name in chain])
    return [1 if slots else 0 for slots in found]  # type: ignore[union-attr]


def bucket_of(name: BlockHash, blocks: int) -> bytes:
    """The hash that holds `name`: so many that each has about `BUCKET_BLOCKS`."""
    number = int.from_bytes(name[:4], "little") % max(1, blocks // BUCKET_BLOCKS)
    return b"prfaas:kv:h:%d" % number


def buckets(client: redis.Redis, chain: Sequence[BlockHash], blocks: int) -> None:
    """`h:{hash prefix}` -> a hash of the rest of the block hash -> slots."""
    with client.pipeline(transaction=False) as pipeline:
        for name in chain:
            pipeline.hset(bucket_of(name, blocks), name[2:], pack_slot(SLOT))
        pipeline.execute()


def pages(client: redis.Redis, chain: Sequence[BlockHash], _: int) -> None:
    """What the back end does (`kvmeta.backends.pages`)."""
    keys = Keys()
    with client.pipeline(transaction=False) as pipeline:
        for first in range(0, len(chain), PAGE_UNITS):
            some = chain[first : first + PAGE_UNITS]
            ops = pack_change(SLOT, [entry_of(name) for name in some], ())
            anchor = some[0][:8]
            pipeline.evalsha(
                PAGES.sha, 2, keys.page(anchor), keys.overflow(anchor), PAGE_ENTRIES, ops
            )
        pipeline.execute()


def read_pages(client: redis.Redis, chain: Sequence[BlockHash]) -> list[int]:
    """One MGET of pages, then apart."""
    found = client.mget(Keys().pages(anchors_of(chain)))
    entries = entries_of(chain)
    live = SlotMasks({pack_slot(SLOT): 1})
    width = PAGE_UNITS * ENTRY_BYTES
    masks: list[int] = []
    for number, page in enumerate(found):  # type: ignore[arg-type]
        wanted = entries[number * width : (number + 1) * width]
        masks += page_masks(page, wanted, live)[0]
    return masks


def measure(server: Server, blocks: int, rounds: int) -> list[str]:
    """Fill each schema with prompts of `PROMPT_BLOCKS` blocks and read one of them."""
    chance = random.Random(1)  # noqa: S311  # block hashes of a benchmark
    chains = [
        [BlockHash(chance.randbytes(16)) for _ in range(PROMPT_BLOCKS)]
        for _ in range(max(1, blocks // PROMPT_BLOCKS))
    ]
    total = len(chains) * PROMPT_BLOCKS

    def read_buckets(client: redis.Redis, chain: Sequence[BlockHash]) -> list[int]:
        with client.pipeline(transaction=False) as pipeline:
            for name in chain:
                pipeline.hget(bucket_of(name, total), name[2:])
            return [1 if slots else 0 for slots in pipeline.execute()]

    schemas: list[tuple[str, Callable[[redis.Redis, Sequence[BlockHash], int], None], Read]] = [
        ("a key a block, MGET", key_per_block, read_keys),
        ("hashes by prefix, 64 a hash, HGETs", buckets, read_buckets),
        ("pages of 64 along the chain, MGET", pages, read_pages),
    ]
    rows: list[str] = []
    with server.client() as client:
        for name, write, read in schemas:
            client.flushall()
            client.script_load(PAGES.text)
            before = client.info("memory")["used_memory"]
            start = time.perf_counter()
            for chain in chains:
                write(client, chain, total)
            wrote = time.perf_counter() - start
            size = (client.info("memory")["used_memory"] - before) / total
            times = {
                length: median_of(read, client, chains[-1][:length], rounds)
                for length in (2_048, PROMPT_BLOCKS)
            }
            rows.append(
                f"| {name} | {size:.1f} | {total / wrote:,.0f} | {times[2_048]:.2f}"
                f" | {times[PROMPT_BLOCKS]:.2f} |"
            )
    return rows


def median_of(read: Read, client: redis.Redis, chain: Sequence[BlockHash], rounds: int) -> float:
    """Return the median of several reads, in milliseconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        masks = read(client, chain)
        times.append((time.perf_counter() - start) * 1e3)
        assert all(masks)  # noqa: S101  # measured right
    return sorted(times)[len(times) // 2]


def main() -> int:
    """Parse the arguments, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    write = sys.stdout.write
    write("| schema | bytes a block | blocks written/s | read of 2,048 ms | of 8,192 ms |\n")
    write("|---|---|---|---|---|\n")
    with redis_server() as server:
        for row in measure(server, arguments.blocks, arguments.rounds):
            write(row + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
