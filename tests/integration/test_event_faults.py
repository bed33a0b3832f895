"""Faults of event streams as operators see them: in metrics and in `state`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tests.fakes.kv_events import Engine, payload
from tests.fakes.kv_publisher import KvPublisher
from tests.fakes.systems import BLOCK, System, fresh_ids, scripted_system


@asynccontextmanager
async def hearing(directory: Path, publisher: KvPublisher) -> AsyncIterator[System]:
    """A gateway that follows `publisher` as its `p0`."""
    entry = {"kv_events": publisher.endpoint, "kv_replay": publisher.replay_endpoint}
    async with scripted_system(directory, threshold=100, entries={"p0": entry}) as system:
        await system.until(
            lambda state: [each["state"] for each in state["index"]["sources"]] == ["synced"]
        )
        yield system


async def test_r39_what_cannot_be_decoded_is_visible(tmp_path: Path) -> None:
    """A bad event is counted by cause; a payload that is none makes the source partial."""
    async with KvPublisher() as publisher, hearing(tmp_path, publisher) as system:
        good = msgspec.msgpack.decode(payload(fresh_ids(2 * BLOCK), engine=Engine(BLOCK)))
        good[1].insert(0, {"type": "BlockStored", "block_hashes": "nonsense"})
        await publisher.publish(msgspec.msgpack.encode(good))
        metrics = await system.counted("index_event_errors_total", cause="block_hash")
        assert metrics.total("index_blocks", instance="p0") == 2
        await publisher.publish(b"\xc1")
        await system.counted("index_event_errors_total", cause="undecodable_payload")
        state = await system.until(
            lambda state: [each["state"] for each in state["index"]["sources"]] == ["partial"]
        )
        (source,) = state["index"]["sources"]
        assert source["blocks"] == 0
        assert source["errors"]["undecodable_payload"] == 1


async def test_r42_what_is_lost_for_good_is_visible(tmp_path: Path) -> None:
    """A gap that replay cannot fill shows in state, metrics and every decision until it heals."""
    prompt = fresh_ids(4 * BLOCK)
    async with (
        KvPublisher(buffer_size=1) as publisher,
        hearing(tmp_path, publisher) as system,
    ):
        await publisher.publish(payload(fresh_ids(BLOCK), engine=Engine(BLOCK)))
        await publisher.publish(payload(fresh_ids(BLOCK), engine=Engine(BLOCK)), lost=True)
        await publisher.publish(payload(prompt, engine=Engine(BLOCK)))
        await system.until(
            lambda state: [each["state"] for each in state["index"]["sources"]] == ["partial"]
        )
        await system.until(lambda state: state["index"]["sources"][0]["blocks"] == 4)
        document = await system.order("POST", "decisions:explain", {"prompt": [*prompt, 1]})
        metrics = await system.metrics()
    assert document["cached_tokens"]["east"] == 4 * BLOCK
    assert document["cache_state"]["east"] == "partial"
    assert metrics.total("index_source_state", instance="p0", state="partial") == 1
    assert metrics.total("index_event_errors_total") >= 1
