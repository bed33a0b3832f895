"""Asks instances where they publish KV events, and asks again: ports change with a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from urllib.parse import urlsplit

import msgspec

from kvmeta.errors import DiscoveryError
from kvmeta.ingest.discovery import EVENT_SOURCES_PATH, read_sources
from kvmeta.ingest.sharded import SourceFeed
from kvmeta.ingest.subscriber import SourceSpec
from kvmeta.types import CacheLayout
from router.domain.topology import Instance
from router.domain.units import Seconds
from router.ports import EngineClient, EngineRequest, Timeouts

_LOG = logging.getLogger(__name__)


class EventDiscovery:
    """Keeps the ingest at what `GET /kv_event_sources` says of every instance that it was given.

    `told_ranks` hears how many data-parallel ranks an instance has. Whoever does not answer keeps
    the sources that it had: a busy engine is no reason to forget.
    """

    def __init__(
        self,
        client: EngineClient,
        ingest: SourceFeed,
        layout_of: Callable[[Instance], CacheLayout],
        *,
        interval: Seconds,
        timeout: Seconds,
        told_ranks: Callable[[str, int], None] | None = None,
    ) -> None:
        self._client = client
        self._ingest = ingest
        self._layout_of = layout_of
        self._interval = interval
        self._timeout = timeout
        self._told_ranks = told_ranks
        self._instances: dict[str, Instance] = {}
        self._known: dict[str, list[SourceSpec]] = {}
        self._silent: set[str] = set()
        self._changed = asyncio.Event()

    def follow(self, instance: Instance) -> None:
        """Ask `instance` from now on, at once for the first time."""
        self._instances[instance.name] = instance
        self._changed.set()

    def forget(self, name: str) -> None:
        """Stop asking; the sources are the caller's to remove."""
        self._instances.pop(name, None)
        self._known.pop(name, None)
        self._silent.discard(name)

    async def run(self) -> None:
        """Ask every instance, every `interval` seconds, until cancelled."""
        while True:
            self._changed.clear()
            async with asyncio.TaskGroup() as group:
                for instance in list(self._instances.values()):
                    group.create_task(self._ask(instance))
            try:
                async with asyncio.timeout(self._interval):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _ask(self, instance: Instance) -> None:
        name = instance.name
        try:
            specs = await self._fetch(instance)
            if self._instances.get(name) is instance:
                await self._follow_specs(name, specs)
        except Exception as error:  # noqa: BLE001  # the root of a task: the others are asked on
            if name in self._instances and name not in self._silent:
                self._silent.add(name)
                _LOG.warning("no event sources of %s: %s", name, str(error) or type(error).__name__)
        else:
            self._silent.discard(name)

    async def _follow_specs(self, name: str, specs: list[SourceSpec]) -> None:
        known = self._known.get(name, [])
        if specs == known:
            return
        self._known[name] = specs
        if {spec.source for spec in known} - {spec.source for spec in specs}:
            await self._ingest.remove(name)
            known = []
        for spec in specs:
            if spec not in known:
                await self._ingest.add(spec)
        if self._told_ranks is not None:
            self._told_ranks(name, max((spec.source.rank + 1 for spec in specs), default=1))
        _LOG.info("%s publishes KV events from %d ranks", name, len(specs))

    async def _fetch(self, instance: Instance) -> list[SourceSpec]:
        request = EngineRequest(
            instance=instance.name,
            base_url=instance.url,
            path=EVENT_SOURCES_PATH,
            method="GET",
            timeouts=Timeouts(self._timeout, self._timeout, self._timeout),
        )
        async with asyncio.timeout(self._timeout):
            response = await self._client.send(request)
            try:
                body = await response.read()
            finally:
                await response.aclose()
        if response.status != 200:
            raise DiscoveryError(f"it answered {response.status}")
        return read_sources(
            msgspec.json.decode(body),
            instance=instance.name,
            host=urlsplit(instance.url).hostname or "",
            layout=self._layout_of(instance),
        )
