"""`kv_events: auto`: the engine says where it publishes, and says so again after a restart."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fakes.kv_events import Engine, payload
from tests.fakes.kv_publisher import KvPublisher
from tests.fakes.scripted_engine import json_answer
from tests.fakes.systems import BLOCK, Document, System, fresh_ids, scripted_system, standin_system

AUTO = {"kv_events": "auto"}
QUICK = {"probe_interval_seconds": 0.2}


def told(publisher: KvPublisher, *, connects: bool = False) -> dict[str, Any]:
    """What vLLM would say of a publisher."""
    endpoint = publisher.endpoint
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint if connects else endpoint.replace("127.0.0.1", "*"),
        "replay_endpoint": publisher.replay_endpoint.replace("127.0.0.1", "*"),
        "topic": "kv@",
    }


def synced(state: Document, instance: str, ranks: int = 1) -> bool:
    found = [
        source
        for source in state["index"]["sources"]
        if source["instance"] == instance and source["state"] == "synced"
    ]
    return len(found) == ranks


def blocks(state: Document, instance: str) -> int:
    sources = state["index"]["sources"]
    return sum(each["blocks"] for each in sources if each["instance"] == instance)


@asynccontextmanager
async def following(directory: Path, sources: dict[str, Any]) -> AsyncIterator[System]:
    """A gateway whose `p0` is asked for its sources and says `sources`."""
    async with scripted_system(directory, threshold=1000, kvmeta=QUICK) as system:
        engine = system.engine("p0")
        engine.on("/kv_event_sources", json_answer(sources))
        await system.order("DELETE", "instances/p0")
        await system.order(
            "POST",
            "instances",
            {"name": "p0", "cluster": "east", "url": engine.url, "role": "prefill", **AUTO},
        )
        await system.until(lambda state: all(each["ready"] for each in state["instances"]))
        yield system


async def test_sources_are_found_and_prompts_with_them(tmp_path: Path) -> None:
    """Stand-ins behind `auto` become synced sources, and their caches count."""
    prompt = fresh_ids(10 * BLOCK)
    async with standin_system(tmp_path, auto_events=True) as system:
        await system.order("PUT", "threshold", {"mode": "off"})
        await system.complete(prompt)
        await system.until(lambda state: blocks(state, "p0") == 10)
        document = await system.order("POST", "decisions:explain", {"prompt": prompt})
    assert document["cached_tokens"]["east"] == 9 * BLOCK
    assert document["cache_state"]["east"] == "synced"


async def test_every_rank_is_a_source(tmp_path: Path) -> None:
    """Two ranks make two sources, and the one with the prefix is pinned."""
    prompt = fresh_ids(4 * BLOCK)
    async with (
        KvPublisher() as one,
        KvPublisher() as two,
        following(tmp_path, {"0": told(one), "1": told(two)}) as system,
    ):
        await two.publish(payload(prompt, engine=Engine(BLOCK)))
        await system.until(lambda state: synced(state, "p0", ranks=2))
        await system.until(lambda state: blocks(state, "p0") == 4)
        await system.complete([*prompt, 1])
        call = await system.engine("p0").called()
    assert call.header("x-data-parallel-rank") == "1"


async def test_a_restart_on_other_ports_is_found(tmp_path: Path) -> None:
    """The engine comes back elsewhere: what the old process held is gone, the new one counts."""
    async with (
        KvPublisher() as old,
        KvPublisher() as new,
        following(tmp_path, {"0": told(old)}) as system,
    ):
        await old.publish(payload(fresh_ids(6 * BLOCK), engine=Engine(BLOCK)))
        await system.until(lambda state: blocks(state, "p0") == 6)
        await new.publish(payload(fresh_ids(2 * BLOCK), engine=Engine(BLOCK)))
        system.engine("p0").on("/kv_event_sources", json_answer({"0": told(new)}))
        await system.until(lambda state: blocks(state, "p0") == 2)


async def test_a_publisher_that_connects_is_heard(tmp_path: Path) -> None:
    """Where the engine's endpoint names a host, the gateway binds and the engine comes."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    async with (
        KvPublisher(connect_to=f"tcp://127.0.0.1:{port}") as publisher,
        following(tmp_path, {"0": told(publisher, connects=True)}) as system,
    ):
        await publisher.subscribed()
        await publisher.publish(payload(fresh_ids(3 * BLOCK), engine=Engine(BLOCK)))
        await system.until(lambda state: blocks(state, "p0") == 3)


async def test_an_engine_that_cannot_tell_yet_is_asked_again(tmp_path: Path) -> None:
    """A 404, nonsense, then an answer: the source appears, and nothing failed in between."""
    async with (
        KvPublisher() as publisher,
        following(tmp_path, {"0": "nonsense"}) as system,
    ):
        engine = system.engine("p0")
        assert (await system.complete(40)).status_code == 200
        engine.on("/kv_event_sources", json_answer({"detail": "Not Found"}, 404))
        await asyncio.sleep(0.3)
        engine.on("/kv_event_sources", json_answer({"0": told(publisher)}))
        await system.until(lambda state: synced(state, "p0"))


async def test_a_removed_instance_is_asked_no_more(tmp_path: Path) -> None:
    """After the removal no source of it is left, nor does one come back."""
    async with (
        KvPublisher() as publisher,
        following(tmp_path, {"0": told(publisher)}) as system,
    ):
        await system.until(lambda state: synced(state, "p0"))
        await system.order("DELETE", "instances/p0")
        await asyncio.sleep(0.5)
        state = await system.order("GET", "state")
    assert state["index"]["sources"] == []
