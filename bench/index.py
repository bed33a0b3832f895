"""Measure the KV-metadata index, in memory and on a Redis of its own, and write the table.

Usage: python -m bench.index [--output docs/benchmarks/index.md] [--rounds N] [--blocks N]

Needs `redis-server`. Hashing the prompt is part of every look-up's time. Ingest is end to end:
another process publishes over ZeroMQ, this one decodes, names, counts and writes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import subprocess
import sys
import time
from array import array
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.publisher import BLOCKS_PER_BATCH
from kvmeta.backends.memory import MemoryIndex
from kvmeta.backends.redis import RedisIndex, open_redis_index
from kvmeta.events import BlockStored, EventBatch
from kvmeta.hashing import pack_tokens, prompt_blocks
from kvmeta.index import MetadataIndex
from kvmeta.ingest.service import KvIngest
from kvmeta.ingest.subscriber import SourceSpec
from kvmeta.types import CacheLayout, EngineLabel, GroupKind, SourceId, SourceState
from tests.fakes.redis_servers import Server, redis_server

TOKENS = 131_072
SOURCES = 64
PUBLISHERS = 4
GOALS = {("memory", 64): 0.8, ("memory", 16): 2.0, ("Redis", 64): 1.5, ("Redis", 16): 3.0}
BUDGET_SECONDS = 5.0
"""Long enough that nothing measured is cut off."""


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of a non-empty list lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def stored(tokens: Sequence[int], block: int, blocks: int, first_label: int = 0) -> BlockStored:
    """A dense event over the prompt's first `blocks` blocks."""
    return BlockStored(
        labels=tuple(EngineLabel((first_label + at).to_bytes(8, "big")) for at in range(blocks)),
        tokens=pack_tokens(tokens[: blocks * block]),
        block_size=block,
        group=0,
        kind=GroupKind.FULL_ATTENTION,
        extras=(b"",) * blocks,
    )


async def look_ups(index: MetadataIndex, name: str, block: int, rounds: int) -> str:
    """Time look-ups of one prompt that every source holds to another depth, one of them wholly."""
    layout = CacheLayout("bench", block)
    tokens = array("I", (at * 7919 % 150_000 for at in range(TOKENS)))
    total = TOKENS // block
    chance = random.Random(1)  # noqa: S311  # depths of a benchmark
    depths = [*(chance.randrange(total) for _ in range(SOURCES - 1)), total]
    sources = [SourceId(f"engine-{number}") for number in range(SOURCES)]
    for source, depth in zip(sources, depths, strict=True):
        await index.register(source, layout)
        await index.begin_epoch(source, SourceState.SYNCED)
        await index.apply(source, 0, EventBatch(0.0, (stored(tokens, block, depth),)))
    hashing: list[float] = []
    whole: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        prompt = prompt_blocks(layout, tokens)
        hashed = time.perf_counter()
        beliefs = await index.look_up(prompt, sources)
        whole.append((time.perf_counter() - start) * 1e3)
        hashing.append((hashed - start) * 1e3)
    for source, depth in zip(sources, depths, strict=True):
        assert beliefs[source].tokens == min(depth, total - 1) * block  # noqa: S101  # measured right
    return (
        f"| {name} | {block} | {total} | {quantile(hashing, 0.5):.2f} | {quantile(whole, 0.1):.2f}"
        f" | {quantile(whole, 0.5):.2f} | {quantile(whole, 0.99):.2f} | {GOALS[name, block]:.1f} |"
    )


@dataclass(frozen=True)
class Ingested:
    """Blocks a second, this process's and Redis' processor time a block, Redis' memory a block."""

    blocks_per_second: float
    own_microseconds: float
    redis_microseconds: float
    redis_bytes: float


async def ingest(server: Server, blocks: int) -> Ingested:
    """Follow `PUBLISHERS` engines that send all they have at once."""
    server.call("FLUSHALL")
    before = server.client().info("memory")["used_memory"]
    index = open_redis_index(server.url, budget_seconds=BUDGET_SECONDS)
    follower = KvIngest(index)
    running = asyncio.create_task(follower.run())
    batches = blocks // BLOCKS_PER_BATCH // PUBLISHERS
    publishers = [await start_publisher(follower, at, batches) for at in range(PUBLISHERS)]
    for publisher in publishers:
        await publisher.stdout.readline()  # type: ignore[union-attr]  # subscribed
    redis_before = redis_seconds(server)
    own_before = time.process_time()
    start = time.perf_counter()
    for publisher in publishers:
        publisher.stdin.write(b"go\n")  # type: ignore[union-attr]  # a pipe
    await wait_until_applied(index, batches)
    seconds = time.perf_counter() - start
    own = time.process_time() - own_before
    redis = redis_seconds(server) - redis_before
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    for publisher in publishers:
        publisher.stdin.write(b"end\n")  # type: ignore[union-attr]  # a pipe
        await publisher.wait()
    used = server.client().info("memory")["used_memory"] - before
    await index.close()
    count = batches * BLOCKS_PER_BATCH * PUBLISHERS
    return Ingested(count / seconds, own / count * 1e6, redis / count * 1e6, used / count)


async def start_publisher(follower: KvIngest, number: int, batches: int) -> Process:
    """Start one more engine and follow it."""
    publisher = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.publisher", str(batches), str(number)),
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )
    endpoint = (await publisher.stdout.readline()).decode().strip()  # type: ignore[union-attr]  # a pipe
    source = SourceId(f"engine-{number}")
    await follower.add(SourceSpec(source, CacheLayout("bench", 64), endpoint))
    return publisher


def redis_seconds(server: Server) -> float:
    """Return the processor time that Redis has used."""
    used = server.client().info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


async def wait_until_applied(index: RedisIndex, batches: int) -> None:
    """Poll the reports until every source's last batch is in them."""
    applied = 0
    while applied < batches:
        await asyncio.sleep(0.05)
        applied = min(report.next_sequence or 0 for report in await index.describe())


async def clear(server: Server, blocks: int) -> float:
    """Return milliseconds from the end of an epoch to another process's first answer without it."""
    server.call("FLUSHALL")
    writer = open_redis_index(server.url, budget_seconds=BUDGET_SECONDS)
    reader = open_redis_index(server.url, budget_seconds=BUDGET_SECONDS)
    layout = CacheLayout("bench", 64)
    source = SourceId("engine-0")
    await writer.register(source, layout)
    await writer.begin_epoch(source, SourceState.SYNCED)
    each = 2_000
    for part in range(blocks // each):
        tokens = array("I", ((part * 7 + at) * 7919 % 150_000 for at in range(each * 64)))
        batch = EventBatch(0.0, (stored(tokens, 64, each, part * each),))
        await writer.apply(source, part, batch)
    prompt = prompt_blocks(layout, tokens)
    held = (await reader.look_up(prompt, [source]))[source].tokens
    assert held == (each - 1) * 64, held  # noqa: S101  # measured right
    start = time.perf_counter()
    await writer.begin_epoch(source, SourceState.SYNCED)
    left = (await reader.look_up(prompt, [source]))[source].tokens
    seconds = time.perf_counter() - start
    assert left == 0  # noqa: S101  # measured right
    await writer.close()
    await reader.close()
    return seconds * 1e3


async def measure(server: Server, rounds: int, blocks: int) -> list[str]:
    """Run everything and return the page's lines."""
    rows = []
    for block in (64, 16):
        memory = MemoryIndex(clock=time.monotonic)
        rows.append(await look_ups(memory, "memory", block, rounds))
    for block in (64, 16):
        server.call("FLUSHALL")
        index = open_redis_index(server.url, budget_seconds=BUDGET_SECONDS)
        rows.append(await look_ups(index, "Redis", block, rounds))
        await index.close()
    ingested = await ingest(server, blocks)
    cleared = await clear(server, blocks)
    version = server.client().info("server")["redis_version"]
    return [
        "# The index, measured",
        "",
        f"Written by `python -m bench.index` on {platform.machine()}, {os.cpu_count()} processors,"
        f" Python {platform.python_version()}, Redis {version} on the same host over loopback; load"
        f" average {os.getloadavg()[0]:.1f} at the end, of which 1.5 are its own. Where that"
        " is over the number of processors, the tenth percentile is nearest to an idle median.",
        "",
        f"Look-up of {TOKENS:,} tokens held by {SOURCES} sources to random depths, by one of them"
        f" wholly; {rounds} rounds; hashing from token ids included.",
        "",
        "| store | block | blocks | hashing p50 ms | look-up p10 ms | p50 ms | p99 ms | goal p50 |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        "| what | measured | goal |",
        "|---|---|---|",
        f"| ingest, ZeroMQ to Redis, one process, {PUBLISHERS} sources, {BLOCKS_PER_BATCH} blocks a"
        f" batch | {ingested.blocks_per_second:,.0f} blocks/s | 100,000 |",
        f"| the same, processor time | {ingested.own_microseconds:.1f} µs a block here,"
        f" {ingested.redis_microseconds:.1f} in Redis | 10 here |",
        f"| Redis memory a block, one holder, 8-byte labels | {ingested.redis_bytes:.0f} bytes"
        " | 160 |",
        f"| clear of {blocks:,} blocks until another process's look-up is rid of them"
        f" | {cleared:.1f} ms | 5 |",
        "",
    ]


def main() -> int:
    """Parse the arguments, measure, write and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/benchmarks/index.md"))
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with redis_server() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        page = "\n".join(runner.run(measure(server, arguments.rounds, arguments.blocks)))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(page)
    sys.stdout.write(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
