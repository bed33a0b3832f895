"""Keeps the embedded index listening to the fleet: instances to sources of KV events."""

from __future__ import annotations

from collections.abc import Callable

from kvmeta.ingest.sharded import SourceFeed
from kvmeta.ingest.subscriber import SourceSpec
from kvmeta.types import CacheLayout, SourceId
from router.adapters.event_discovery import EventDiscovery
from router.domain.topology import AUTO_EVENTS, Instance


class IngestFeed:
    """Implements `EventFeed` over an ingest: all of it here, or a shard's."""

    def __init__(
        self,
        ingest: SourceFeed,
        layout_of: Callable[[Instance], CacheLayout],
        discovery: EventDiscovery,
    ) -> None:
        """`layout_of` tells how the blocks of an instance's model are named and reused.

        `discovery` finds the sources of instances whose endpoints are not configured.
        """
        self._ingest = ingest
        self._layout_of = layout_of
        self._discovery = discovery

    async def follow(self, instance: Instance) -> None:
        """Start to ingest every rank of an instance; does nothing for one without events."""
        if instance.kv_events is None:
            return
        if instance.kv_events == AUTO_EVENTS:
            self._discovery.follow(instance)
            return
        for spec in list_sources(instance, self._layout_of(instance)):
            await self._ingest.add(spec)

    async def forget(self, instance: str) -> None:
        """Stop, and drop all that the index holds of an instance."""
        self._discovery.forget(instance)
        await self._ingest.remove(instance)


class NoFeed:
    """A `SourceFeed` for a gateway whose index other processes fill (`prfaas kvmeta`)."""

    async def add(self, spec: SourceSpec) -> None:
        """Do nothing: an ingest process follows it."""

    async def remove(self, instance: str) -> None:
        """Do nothing: what the index holds of an instance belongs to an ingest process."""


def list_sources(instance: Instance, layout: CacheLayout) -> list[SourceSpec]:
    """Return the source of every rank of an instance whose endpoints are configured."""
    if instance.kv_events is None or instance.kv_events == AUTO_EVENTS:
        return []
    return [
        SourceSpec(
            source=SourceId(instance.name, rank),
            layout=layout,
            events_endpoint=offset_port(instance.kv_events, rank),
            replay_endpoint=None
            if instance.kv_replay is None
            else offset_port(instance.kv_replay, rank),
        )
        for rank in range(instance.ranks)
    ]


def offset_port(endpoint: str, rank: int) -> str:
    """Return the endpoint of a data-parallel rank: its port is the first rank's plus the rank.

    As `offset_endpoint_port` in vLLM's distributed/kv_events.py; other transports have one rank.
    """
    if rank == 0:
        return endpoint
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + rank}"
