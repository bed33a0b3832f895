"""Ingest into Redis dies without a word, and its successor goes on where it was."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence

from kvmeta.backends.redis import RedisIndex, open_redis_index
from kvmeta.hashing import prompt_blocks
from kvmeta.types import CacheBelief, SourceReport, SourceState
from tests.fakes.ingest_process import LAYOUT, SOURCE
from tests.fakes.kv_events import payload
from tests.fakes.kv_publisher import KvPublisher
from tests.fakes.redis_servers import Server, redis_server

DEADLINE_SECONDS = 30.0


def prompt(number: int) -> list[int]:
    """Four blocks of tokens, its own for each number."""
    return [number, *range(1, 16)]


@contextlib.asynccontextmanager
async def ingesting(
    server: Server, engine: KvPublisher
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process runs inside; killed at the end if it still lives."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.fakes.ingest_process",
        server.url,
        engine.endpoint,
        engine.replay_endpoint,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def report_when(reader: RedisIndex, sequence: int) -> SourceReport:
    """The source's report once this number is expected next and nothing is missing."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            for report in await reader.describe():
                if report.next_sequence == sequence and report.state is SourceState.SYNCED:
                    return report
            await asyncio.sleep(0.02)


async def hits(reader: RedisIndex, numbers: Sequence[int]) -> list[CacheBelief]:
    return [
        (await reader.look_up(prompt_blocks(LAYOUT, [*prompt(number), 9]), [SOURCE]))[SOURCE]
        for number in numbers
    ]


async def test_r44_ingest_killed_in_mid_stream_loses_and_doubles_nothing() -> None:
    """What came before, during and after its death is there once; the epoch is the same."""
    with redis_server() as server:
        reader = open_redis_index(server.url, budget_seconds=5.0)
        async with KvPublisher() as engine:
            async with ingesting(server, engine) as first:
                await engine.subscribed()
                for number in range(50):
                    await engine.publish(payload(prompt(number)))
                epoch = (await report_when(reader, 50)).epoch
                for number in range(50, 150):
                    await engine.publish(payload(prompt(number)))
                    if number == 100:
                        first.kill()
                await first.wait()
            async with ingesting(server, engine):
                await engine.subscribed()
                await engine.publish(payload(prompt(150)))
                report = await report_when(reader, 151)
                assert report.epoch == epoch
                assert report.blocks == 4 * 151
                assert engine.asked[-1] > 0, "replayed from where it was, not from the start"
                whole = CacheBelief(16, SourceState.SYNCED)
                assert await hits(reader, range(151)) == [whole] * 151
        await reader.close()
