"""KV events over real ZMQ: sequence, replay, restart, losses; and look-ups that agree with them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import httpx
import msgspec
import pytest
import zmq
import zmq.asyncio

from router.sim.engines.cluster import EngineHost, serve_cluster
from router.sim.engines.publisher import END_OF_REPLAY
from router.sim.engines.specs import CacheSpec, ClusterSpec, EventEncoding
from tests.fakes.standins import HYBRID, asking, engine_spec, shipped_tokenizer, until

Json: TypeAlias = Any  # wire documents, looked into by key


class Ear:
    """A subscriber to one engine, and a client of its replay."""

    def __init__(self, host: EngineHost, context: zmq.asyncio.Context) -> None:
        self._host = host
        self._context = context
        self._sub = context.socket(zmq.SUB)
        self._sub.subscribe(b"")
        self._sub.connect(str(host.events_endpoint))
        self.batches: list[tuple[int, Json]] = []

    async def hear(self, count: int) -> list[tuple[int, Json]]:
        """Return all batches heard once there are `count` of them."""
        async with asyncio.timeout(30):
            while len(self.batches) < count:
                frames = await self._sub.recv_multipart()
                assert len(frames) == 3
                self.batches.append(
                    (int.from_bytes(frames[1], "big"), msgspec.msgpack.decode(frames[2]))
                )
        return self.batches

    async def replay(self, start: int) -> list[list[bytes]]:
        """Return the frames that answer a replay from `start`, the end marker last."""
        dealer = self._context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.connect(str(self._host.replay_endpoint))
        await dealer.send_multipart([b"", start.to_bytes(8, "big")])
        heard: list[list[bytes]] = []
        async with asyncio.timeout(30):
            while not heard or heard[-1][-2] != END_OF_REPLAY:
                heard.append(await dealer.recv_multipart())
        dealer.close()
        return heard

    def close(self) -> None:
        self._sub.close(linger=0)


class Talk:
    """One engine, a client of it and an ear at its events."""

    def __init__(self, host: EngineHost, client: httpx.AsyncClient, ear: Ear) -> None:
        self.host = host
        self.client = client
        self.ear = ear

    async def complete(self, prompt: list[int], **body: object) -> Json:
        url = self.host.url + "/v1/completions"
        answer = await self.client.post(url, json=asking(prompt=prompt, max_tokens=1, **body))
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def order(self, **fault: object) -> None:
        answer = await self.client.post(self.host.url + "/standin/faults", json=fault)
        assert answer.status_code == 202, answer.text

    async def look_ups(self, since: int = 0) -> list[Json]:
        answer = await self.client.get(f"{self.host.url}/standin/lookups?since={since}")
        entries: list[Json] = answer.json()["lookups"]
        return entries


@asynccontextmanager
async def talking(**changes: object) -> AsyncIterator[Talk]:
    spec = ClusterSpec("east", (engine_spec("e", **changes), engine_spec("f")), time_scale=1000.0)
    context = zmq.asyncio.Context()
    async with (
        serve_cluster(spec, tokenizer=shipped_tokenizer()) as cluster,
        httpx.AsyncClient(timeout=10, trust_env=False) as client,
    ):
        ear = Ear(cluster.engines["e"], context)
        talk = Talk(cluster.engines["e"], client, ear)
        try:
            yield talk
        finally:
            ear.close()
            context.destroy(linger=0)


async def heard_some(talk: Talk, prompts: list[list[int]]) -> None:
    """Prompt until the first batch arrives, so that the subscription is known to work."""
    for number in range(1000):
        await talk.complete([number + 100] * 16)
        try:
            await asyncio.wait_for(talk.ear.hear(1), 0.05)
            break
        except TimeoutError:
            continue
    for prompt in prompts:
        await talk.complete(prompt)


def is_restarted(talk: Talk) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return talk.host.restarts > 0

    return holds


def prompt_of(start: int, length: int = 64) -> list[int]:
    return [start + i for i in range(length)]


async def test_r42_live_and_replayed_batches_are_the_same() -> None:
    """Sequences rise by one; a replay gives topic, sequence and payload, then the end marker."""
    async with talking(topic="kv@e") as talk:
        await heard_some(talk, [prompt_of(10), prompt_of(500)])
        sequence = talk.host.engine.publisher.sequence
        first = talk.ear.batches[0][0]
        live = await talk.ear.hear(sequence - first)
        assert [number for number, _ in live] == list(range(first, sequence))
        replayed = await talk.ear.replay(0)
        assert [len(frames) for frames in replayed] == [4] * (sequence + 1)
        assert replayed[0][1] == b"kv@e"
        assert replayed[-1] == [b"", b"", END_OF_REPLAY, b""]
        payloads = [msgspec.msgpack.decode(frames[-1]) for frames in replayed[:-1]]
        assert payloads[first:] == [payload for _, payload in live]
        assert len(await talk.ear.replay(sequence + 5)) == 1
        sources = (await talk.client.get(talk.host.url + "/kv_event_sources")).json()
        assert sources["0"]["endpoint"] == wildcard(talk.host.events_endpoint)
        assert sources["0"]["replay_endpoint"] == wildcard(talk.host.replay_endpoint)


def wildcard(endpoint: str | None) -> str:
    """How an engine that binds names its endpoint."""
    assert endpoint is not None
    return endpoint.replace("127.0.0.1", "*")


async def test_stored_events_have_the_shape_of_a_real_engine() -> None:
    """The fields and values are those that a captured BlockStored has."""
    async with talking() as talk:
        await heard_some(talk, [])
        _, (timestamp, (event,), rank) = talk.ear.batches[0]
        assert abs(timestamp - time.time()) < 60
        assert rank == 0
        assert list(event) == [
            "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id",
            "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
        ]  # fmt: skip
        assert event["medium"] == "GPU"
        assert 0 <= event["block_hashes"][0] < 2**64


async def test_arrays_are_what_older_engines_send() -> None:
    """With the array encoding an event is positional, the tag first."""
    async with talking(event_encoding=EventEncoding.ARRAY) as talk:
        await heard_some(talk, [])
        event = talk.ear.batches[0][1][1][0]
        assert event[0] == "BlockStored"
        assert len(event) == 12
        assert event[4] == 16
        assert event[10:] == ["full_attention", None]


async def test_r42_dropped_batches_leave_a_gap_that_replay_may_fill() -> None:
    """A dropped live message is missing; the replay has it, unless that is dropped as well."""
    async with talking() as talk:
        await heard_some(talk, [])
        start = talk.host.engine.publisher.sequence
        await talk.order(drop_events=1)
        await talk.complete(prompt_of(1000))
        await talk.order(drop_events=1, drop_replay=True)
        await talk.complete(prompt_of(1500))
        await talk.complete(prompt_of(2000))
        while talk.ear.batches[-1][0] != start + 2:
            await talk.ear.hear(len(talk.ear.batches) + 1)
        live = [number for number, _ in talk.ear.batches if number >= start]
        assert live == [start + 2]
        replayed = [int.from_bytes(f[-2], "big") for f in (await talk.ear.replay(start))[:-1]]
        assert replayed == [start, start + 2]


async def test_replay_forgets_beyond_its_bounds() -> None:
    """Of more batches than `replay_steps` only the last are left."""
    async with talking(replay_steps=2) as talk:
        for start in (10, 500, 900):
            await talk.complete(prompt_of(start))
        replayed = await talk.ear.replay(0)
        assert [int.from_bytes(frames[-2], "big") for frames in replayed[:-1]] == [1, 2]


async def test_r46_a_reset_is_told_with_the_next_step_only() -> None:
    """`/reset_prefix_cache` clears at once, and says so in the batch of the next request."""
    async with talking() as talk:
        await heard_some(talk, [prompt_of(10)])
        before = talk.host.engine.publisher.sequence
        answer = await talk.client.post(talk.host.url + "/reset_prefix_cache")
        assert answer.json() == {"success": True}
        assert talk.host.engine.publisher.sequence == before
        again = await talk.complete(prompt_of(10))
        assert again["standin"]["cached_tokens"] == 0
        replayed = await talk.ear.replay(before)
        events = msgspec.msgpack.decode(replayed[0][-1])[1]
        assert events[0] == {"type": "AllBlocksCleared"}
        assert events[1]["type"] == "BlockStored"


async def test_restart_makes_a_new_engine_on_the_same_ports() -> None:
    """New id, sequence from 0, nothing cached; live connections break, the ports stay."""
    async with talking() as talk:
        await heard_some(talk, [prompt_of(10)])
        old = (await talk.client.get(talk.host.url + "/standin/state")).json()
        await talk.order(restart=True, down_seconds=0.05)
        await until(is_restarted(talk))
        new = (await talk.client.get(talk.host.url + "/standin/state")).json()
        assert new["engine_id"] != old["engine_id"]
        assert (new["url"], new["kv_events"]) == (old["url"], old["kv_events"])
        assert (new["kv_event_seq"], new["blocks_named"], new["lookups"]) == (0, 0, 0)
        answer = await talk.complete(prompt_of(10))
        assert answer["standin"] == {"kv_event_seq": 0, "cached_tokens": 0, "instance": "e"}
        assert len(await talk.ear.replay(0)) == 2


def believe(batches: list[Json], labels: list[int], groups: dict[int, str]) -> int:
    """Return the longest prefix, in blocks, that the events told so far imply."""
    held: Counter[tuple[int, int]] = Counter()
    for _, events, _ in batches:
        for event in events:
            named = [(event["group_idx"], label) for label in event["block_hashes"]]
            if event["type"] == "BlockStored":
                held.update(named)
            else:
                held.subtract(named)
    for length in range(len(labels), 0, -1):
        wanted = [
            (group, label)
            for group, kind in groups.items()
            for label in (labels[length - 1 : length] if kind == "mamba" else labels[:length])
        ]
        if all(held[name] > 0 for name in wanted):
            return length
    return 0


@pytest.mark.parametrize("hybrid", [False, True])
async def test_r44_look_ups_are_what_the_events_say_at_that_instant(hybrid: bool) -> None:
    """For every answer: usage, log and the events up to `kv_event_seq` give the same number."""
    layout = HYBRID if hybrid else CacheSpec().groups
    groups = {0: "mamba", 1: "mamba", 2: "mamba", 3: "full"} if hybrid else {0: "full"}
    cache = CacheSpec(hash_unit=16, blocks=300, groups=layout)
    async with talking(cache=cache, max_model_len=1024) as talk:
        expected: list[Json] = []
        for number in range(40):
            stem = prompt_of(10 + 200 * (number % 4), 16 * (2 + number % 3))
            prompt = stem + prompt_of(2000 + 7 * (number % 5), 100 + number)
            answer = await talk.complete(prompt)
            expected.append((prompt, answer))
        batches = [msgspec.msgpack.decode(f[-1]) for f in (await talk.ear.replay(0))[:-1]]
        log = await talk.look_ups()
        assert [entry["number"] for entry in log] == list(range(1, 41))
        assert len(await talk.look_ups(since=30)) == 10
        for (prompt, answer), entry in zip(expected, log, strict=True):
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert answer["standin"]["cached_tokens"] == cached == entry["cached_tokens"]
            assert answer["standin"]["kv_event_seq"] == entry["kv_event_seq"]
            chain = talk.host.engine.cache.chain(prompt)
            labels = chain.labels[: (len(prompt) - 1) // 16]
            told = believe(batches[: entry["kv_event_seq"]], labels, groups)
            assert told * 16 == cached
        assert any(entry["cached_tokens"] for entry in log)


async def test_salted_prompts_share_nothing_and_are_marked() -> None:
    """R51: the salt isolates, is told in the first block's extra keys, and the log only says so."""
    async with talking() as talk:
        await talk.complete(prompt_of(10), cache_salt="tenant-a")
        other = await talk.complete(prompt_of(10), cache_salt="tenant-b")
        same = await talk.complete(prompt_of(10), cache_salt="tenant-a")
        assert (other["standin"]["cached_tokens"], same["standin"]["cached_tokens"]) == (0, 48)
        assert all(entry["salted"] for entry in await talk.look_ups())
        stored = msgspec.msgpack.decode((await talk.ear.replay(0))[0][-1])[1][0]
        assert stored["extra_keys"] == [["tenant-a"], None, None, None]


async def test_ordered_faults_happen() -> None:
    """Statuses for the next n, slowness, streams and bodies that break, and an end of them."""
    async with talking() as talk:
        url = talk.host.url + "/v1/completions"
        await talk.order(status=503, times=2)
        body = asking(prompt=[1], max_tokens=4)
        statuses = [(await talk.client.post(url, json=body)).status_code for _ in range(3)]
        assert statuses == [503, 503, 200]
        await talk.order(broken_stream_after=1)
        for stream in (True, False):
            with pytest.raises(httpx.RemoteProtocolError):
                await talk.client.post(url, json={**body, "stream": stream, "max_tokens": 50})
        await talk.order(clear=True, slow_seconds=0.2)
        began = time.monotonic()
        assert (await talk.client.post(url, json=body)).status_code == 200
        assert time.monotonic() - began >= 0.2
        refused = await talk.client.post(talk.host.url + "/standin/faults", json={"speed": 1})
        assert refused.status_code == 400


async def test_health_alone_is_late_or_bad_when_ordered() -> None:
    """Completions go on as they were, and a cleared fault is gone."""
    async with talking() as talk:
        health, body = talk.host.url + "/health", asking(prompt=[1], max_tokens=1)
        await talk.order(health_seconds=0.2, health_status=503)
        began = time.monotonic()
        assert (await talk.client.get(health)).status_code == 503
        assert time.monotonic() - began >= 0.2
        url = talk.host.url + "/v1/completions"
        assert (await talk.client.post(url, json=body)).status_code == 200
        await talk.order(clear=True)
        assert (await talk.client.get(health)).status_code == 200


async def test_dead_engines_refuse_or_say_nothing_and_come_back() -> None:
    """A refusing engine is raised by its sibling; a black hole takes connections and is silent."""
    async with talking() as talk:
        url = talk.host.url + "/health"
        orders = talk.host.sibling("f").url + "/standin/faults?instance=e"
        await talk.client.post(orders, json={"dead": "black_hole"})

        async def is_dead() -> bool:
            return talk.host.faults.dead is not None

        await until(is_dead)
        with pytest.raises(httpx.ReadTimeout):
            await talk.client.get(url, timeout=0.1)
        await talk.client.post(orders, json={"dead": "refuse"})
        async with asyncio.timeout(30):
            while True:
                try:
                    await talk.client.get(url, timeout=0.1)
                except httpx.ConnectError:
                    break
                except httpx.HTTPError:
                    continue
        await talk.client.post(orders, json={"dead": None})
        await until(is_restarted(talk))
        assert (await talk.client.get(url)).status_code == 200


async def test_a_cluster_starts_and_stops_quickly_and_says_which_port_is_taken() -> None:
    """Six engines are up within seconds; a taken port is an error, and leaves nothing open."""
    tokenizer = shipped_tokenizer()
    engines = tuple(engine_spec(f"e{number}") for number in range(6))
    began = time.monotonic()
    async with serve_cluster(ClusterSpec("east", engines), tokenizer=tokenizer) as cluster:
        assert time.monotonic() - began < 10
        taken = cluster.engines["e0"].spec.port
        clash = ClusterSpec("west", (engine_spec("x"), engine_spec("y", port=taken)))
        with pytest.raises(OSError, match="in use"):
            async with serve_cluster(clash, tokenizer=tokenizer):
                pass
    assert time.monotonic() - began < 15


async def test_an_engine_without_events_says_so() -> None:
    """With events off nothing is bound, the source is listed as off, and look-ups count from 0."""
    async with talking_quietly() as (host, client):
        sources = (await client.get(host.url + "/kv_event_sources")).json()
        assert sources["0"]["enable_kv_cache_events"] is False
        assert (host.events_endpoint, host.replay_endpoint) == (None, None)
        answer = await client.post(host.url + "/v1/completions", json=asking(prompt=prompt_of(10)))
        assert answer.json()["standin"]["kv_event_seq"] == 0


@asynccontextmanager
async def talking_quietly() -> AsyncIterator[tuple[EngineHost, httpx.AsyncClient]]:
    spec = ClusterSpec("east", (engine_spec("e", events_port=None),), time_scale=1000.0)
    async with (
        serve_cluster(spec, tokenizer=shipped_tokenizer()) as cluster,
        httpx.AsyncClient(timeout=10, trust_env=False) as client,
    ):
        yield cluster.engines["e"], client
