"""Settings -> where state is kept: the index, and the leases of processes that share it."""

from __future__ import annotations

from dataclasses import dataclass

from kvmeta.backends.memory import MemoryIndex
from kvmeta.index import MetadataIndex
from kvmeta.leases import LeaseStore
from router.adapters.clocks import SystemClock
from router.compose.models import CompositionError
from router.settings import Settings


@dataclass(frozen=True, slots=True)
class SharedStore:
    """What the processes of one deployment have in common."""

    index: MetadataIndex
    leases: LeaseStore


def open_index(settings: Settings, clock: SystemClock) -> MetadataIndex:
    """Return the index that a gateway reads. Raises CompositionError."""
    if not settings.store.embedded:
        return open_shared_store(settings).index
    return MemoryIndex(
        clock=clock.monotonic,
        max_blocks_per_source=settings.kvmeta.max_blocks_per_source,
        max_blocks_total=settings.kvmeta.max_blocks_total,
    )


def open_shared_store(settings: Settings) -> SharedStore:
    """Return what an ingest process of its own writes to. Raises CompositionError."""
    if settings.store.embedded:
        raise CompositionError(
            "kvmeta needs a store that processes share: set store.url to Redis (redis://…);"
            " with memory:// the gateway ingests by itself"
        )
    raise CompositionError("store.url: this gateway keeps its state in memory:// only")
