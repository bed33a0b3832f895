"""Event ingest of one publisher into Redis, as a process that a test may kill.

Usage: python -m tests.fakes.ingest_process URL EVENTS_ENDPOINT REPLAY_ENDPOINT
"""

from __future__ import annotations

import asyncio
import sys

from kvmeta.backends.redis import open_redis_index
from kvmeta.ingest.service import KvIngest
from kvmeta.ingest.subscriber import SourceSpec
from kvmeta.types import CacheLayout, SourceId

SOURCE = SourceId("engine-a")
LAYOUT = CacheLayout("model@1", 4)


async def main(url: str, events: str, replays: str) -> None:
    index = open_redis_index(url)
    ingest = KvIngest(index, probe_interval_seconds=0.2)
    await ingest.add(SourceSpec(SOURCE, LAYOUT, events, replays))
    async with asyncio.TaskGroup() as group:
        group.create_task(index.run())
        group.create_task(ingest.run())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
