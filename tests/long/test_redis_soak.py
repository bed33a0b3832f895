"""The store at size and out of reach for long: R57 with two million blocks, R58 for a minute."""

from __future__ import annotations

import asyncio
import logging
import os
from array import array
from collections import Counter
from pathlib import Path

import pytest

from kvmeta.backends.redis import RedisIndex, open_redis_index
from kvmeta.events import BlockStored, EventBatch
from kvmeta.hashing import pack_tokens, prompt_blocks
from kvmeta.types import CacheBelief, CacheLayout, EngineLabel, SourceId, SourceState
from tests.fakes.redis_servers import redis_server

pytestmark = pytest.mark.long

LAYOUT = CacheLayout("model@1", 64)
SOURCES = [SourceId(f"engine-{name}") for name in "abcd"]
BLOCKS = 2_000_000
CAP = 1_600_000
EACH = 2_000
BYTES_PER_BLOCK = 160


def prompt(source: int, part: int) -> array[int]:
    """Tokens that no other part of any source has."""
    first = (source * 1_000 + part) * 131
    return array("I", ((first + at) * 7919 % 150_001 for at in range(EACH * 64)))


def stored(source: int, part: int) -> EventBatch:
    event = BlockStored(
        labels=tuple(EngineLabel((part * EACH + at).to_bytes(8, "big")) for at in range(EACH)),
        tokens=pack_tokens(prompt(source, part)),
        block_size=64,
        group=0,
        extras=(b"",) * EACH,
    )
    return EventBatch(0.0, (event,))


def resident_bytes() -> int:
    """What this process holds now; tests before this one have left it large."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


async def beliefs(index: RedisIndex, part: int) -> list[CacheBelief]:
    """What each source is believed to hold of its own prompt of that part."""
    return [
        (await index.look_up(prompt_blocks(LAYOUT, prompt(number, part)), [source]))[source]
        for number, source in enumerate(SOURCES)
    ]


async def test_r57_two_million_blocks_stay_under_the_cap_and_come_back_after_a_flush() -> None:
    """Memory and blocks stay bounded; a flush makes unknown; the image is made anew."""
    whole = CacheBelief((EACH - 1) * 64, SourceState.SYNCED)
    before = resident_bytes()
    with redis_server() as server:
        index = open_redis_index(server.url, budget_seconds=10.0, max_blocks_total=CAP)
        for source in SOURCES:
            await index.register(source, LAYOUT)
            await index.begin_epoch(source, SourceState.SYNCED)
        for part in range(BLOCKS // EACH // len(SOURCES)):
            for number, source in enumerate(SOURCES):
                assert await index.apply(source, part, stored(number, part))
        held = sum(report.blocks for report in await index.describe())
        used = server.client().info("memory")["used_memory"]
        grown = resident_bytes() - before
        assert held == CAP
        assert used < CAP * BYTES_PER_BLOCK
        assert grown < CAP * 1_000
        assert {one.tokens for one in await beliefs(index, 0)} == {whole.tokens}
        server.call("FLUSHALL")
        assert await beliefs(index, 0) == [CacheBelief.unknown()] * len(SOURCES)
        await index.keep_up()
        assert {one.tokens for one in await beliefs(index, 0)} == {whole.tokens}
        print(f"\n{held} blocks: {used / held:.0f} bytes a block")  # noqa: T201 - `make long` shows it
        await index.close()


async def test_r58_a_minute_without_redis_at_twenty_requests_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every look-up is answered; one line when it goes, one when it is back, within ten seconds."""
    caplog.set_level(logging.INFO, logger="kvmeta.backends.redis")
    with redis_server() as server:
        writer = open_redis_index(server.url, budget_seconds=5.0)
        reader = open_redis_index(server.url)
        upkeep = [asyncio.create_task(index.run()) for index in (reader, writer)]
        await writer.register(SOURCES[0], LAYOUT)
        await writer.begin_epoch(SOURCES[0], SourceState.SYNCED)
        await writer.apply(SOURCES[0], 0, stored(0, 0))
        asked = prompt_blocks(LAYOUT, prompt(0, 0))
        now = asyncio.get_running_loop().time
        answers: Counter[int | None] = Counter()
        slow = 0

        async def ask() -> int | None:
            tokens = (await reader.look_up(asked, SOURCES[:1]))[SOURCES[0]].tokens
            answers[tokens] += 1
            return tokens

        for _ in range(20):  # connections are open before it freezes
            await ask()
        answers.clear()
        server.freeze()
        began = now()
        while now() - began < 60:
            asked_at = now()
            assert await ask() is None
            slow += now() - asked_at > 0.05
            await asyncio.sleep(0.05)
        server.thaw()
        back = now()
        while await ask() is None:
            assert now() - back < 10
            await asyncio.sleep(0.05)
        assert answers[None] > 600
        assert slow < 60, "five failures, then a trial every two seconds"
        for task in upkeep:
            task.cancel()
        changes = [one for one in caplog.records if one.levelno >= logging.INFO]
        assert len(changes) == 2
        await writer.close()
        await reader.close()
