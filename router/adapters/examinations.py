"""Asks engines and the store what `prfaas doctor` wants to know. Nothing is changed by it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import httpx
import msgspec
import zmq.asyncio

from kvmeta.backends.redis_store import RedisStore
from kvmeta.errors import DiscoveryError, StoreError
from kvmeta.ingest.discovery import read_sources
from kvmeta.ingest.sequences import ReplayEnd
from kvmeta.ingest.subscriber import ReplayObservation, SourceSpec, replay
from kvmeta.types import CacheLayout
from router.adapters.event_feed import list_sources
from router.adapters.probes import read_metrics
from router.domain.topology import AUTO_EVENTS, Instance
from router.domain.units import Seconds
from router.ports import Clock
from router.service.diagnoses import EngineFacts, StoreFacts

_CACHE: Final = re.compile(r"^vllm:cache_config_info\{(?P<labels>[^}]*)\}", re.MULTILINE)
_LABEL: Final = re.compile(r'(?P<name>\w+)="(?P<value>[^"]*)"')

_FAR_AHEAD: Final = 2**62
"""A sequence that no publisher has reached: a replay from there is its end alone."""


class Examiner:
    """Asks over HTTP and ZeroMQ. `client` carries the time-out of each call."""

    def __init__(self, client: httpx.AsyncClient, *, timeout: Seconds) -> None:
        self._client = client
        self._timeout = timeout

    async def examine(
        self, instance: Instance, layout: CacheLayout, *, model: str | None
    ) -> EngineFacts:
        """Ask one engine; with `model`, an engine's name of one, whether it counts a prompt."""
        headers = {"authorization": f"Bearer {instance.api_key}"} if instance.api_key else {}
        ask = _Asking(self._client, instance.url.rstrip("/"), headers)
        try:
            health = await ask.get("/health")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return EngineFacts(failure=f"{instance.url} cannot be reached: {_reason(error)}")
        if health.status_code in {401, 403}:
            told = f"{instance.url} answers {health.status_code}: instances[].api_key"
            return EngineFacts(failure=told)
        metrics = await ask.text("/metrics")
        sources = await self._sources(ask, instance, layout)
        endpoints = [spec.replay_endpoint for spec in sources or ()]
        return EngineFacts(
            health=health.status_code,
            models=await ask.model_names(),
            version=await ask.version(),
            tells_queue=metrics is not None and read_metrics(metrics, 0.0) is not None,
            cache=read_cache_config(metrics or ""),
            sources=None if sources is None else tuple(each.events_endpoint for each in sources),
            replays={
                endpoint: await self._replays(endpoint)
                for endpoint in endpoints
                if endpoint is not None
            },
            tokenizes=None if model is None else await ask.tokenizes(model),
        )

    async def _sources(
        self, ask: _Asking, instance: Instance, layout: CacheLayout
    ) -> Sequence[SourceSpec] | None:
        """Return the publishers: as the engine tells, else as configured, rank by rank."""
        if instance.kv_events is None:
            return ()
        if instance.kv_events != AUTO_EVENTS:
            return list_sources(instance, layout)
        told = await ask.json("/kv_event_sources")
        host = urlsplit(instance.url).hostname or ""
        try:
            return read_sources(told, instance=instance.name, host=host, layout=layout)
        except DiscoveryError:
            return None

    async def _replays(self, endpoint: str) -> bool:
        """Tell whether a publisher answers a replay, by asking for what it has not sent yet."""
        last: list[ReplayObservation] = []

        async def note(answer: ReplayObservation) -> None:
            last[:] = [answer]

        context = zmq.asyncio.Context()
        try:
            await replay(context, endpoint, _FAR_AHEAD, silence_seconds=self._timeout, deliver=note)
        finally:
            context.destroy(linger=0)
        return bool(last) and isinstance(last[0], ReplayEnd)


class _Asking:
    """One engine's HTTP surface; what it does not answer is None."""

    def __init__(self, client: httpx.AsyncClient, base: str, headers: dict[str, str]) -> None:
        self._client = client
        self._base = base
        self._headers = headers

    async def get(self, path: str) -> httpx.Response:
        """Raises what httpx raises."""
        return await self._client.get(self._base + path, headers=self._headers)

    async def text(self, path: str) -> str | None:
        try:
            response = await self.get(path)
        except httpx.HTTPError:
            return None
        return response.text if response.status_code == 200 else None

    async def json(self, path: str) -> object:
        text = await self.text(path)
        try:
            return None if text is None else msgspec.json.decode(text)
        except msgspec.DecodeError:
            return None

    async def model_names(self) -> tuple[str, ...] | None:
        document = await self.json("/v1/models")
        cards = document.get("data") if isinstance(document, dict) else None
        if not isinstance(cards, list):
            return None
        return tuple(str(card["id"]) for card in cards if isinstance(card, dict) and "id" in card)

    async def version(self) -> str | None:
        document = await self.json("/version")
        version = document.get("version") if isinstance(document, dict) else None
        return version if isinstance(version, str) else None

    async def tokenizes(self, model: str) -> bool:
        try:
            response = await self._client.post(
                self._base + "/tokenize",
                headers=self._headers,
                json={"model": model, "prompt": "a"},
            )
        except httpx.HTTPError:
            return False
        return response.status_code == 200


def read_cache_config(metrics: str) -> dict[str, str]:
    """Return the labels of vLLM's `cache_config_info`, by name; empty without it."""
    sample = _CACHE.search(metrics)
    if sample is None:
        return {}
    return {each["name"]: each["value"] for each in _LABEL.finditer(sample["labels"])}


async def examine_store(store: RedisStore, key: bytes, clock: Clock) -> StoreFacts:
    """Write, read and delete one key, and ask each server who it is.

    `store` is the caller's to close. Time-outs are the caller's.
    """
    try:
        await store.read([("GET", key)])  # connects
        began = clock.monotonic()
        await store.read([("GET", key)])
        round_trip = clock.monotonic() - began
    except StoreError as error:
        return StoreFacts(failure=str(error.__cause__ or error))
    info = await _info(store)
    return StoreFacts(
        version=info.get("redis_version"),
        policies=tuple(filter(None, [info.get("maxmemory_policy")])),
        writable=await _keeps(store, key),
        round_trip=round_trip,
    )


async def _info(store: RedisStore) -> dict[str, str]:
    """Return what `INFO` tells; a Cluster answers for one of its servers, or not at all."""
    fields: dict[str, str] = {}
    for section in ("server", "memory"):
        try:
            (told,) = await store.read([("INFO", section)])
        except StoreError:
            continue
        pairs = told.items() if isinstance(told, dict) else _lines(told)
        fields |= {_plain(name): _plain(value) for name, value in pairs}
    return fields


def _lines(told: object) -> list[tuple[str, str]]:
    split = [line.partition(":") for line in _plain(told).splitlines()]
    return [(name, value.strip()) for name, _, value in split if value]


def _plain(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


async def _keeps(store: RedisStore, key: bytes) -> bool:
    try:
        await store.write([("SET", key, b"1", "EX", 60)])
        (kept,) = await store.read([("GET", key)])
        await store.write([("DEL", key)])
    except StoreError:
        return False
    return bool(kept == b"1")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
