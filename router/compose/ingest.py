"""Puts the ingest together as a process of its own: `prfaas kvmeta`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kvmeta.index import MetadataIndex
from kvmeta.ingest.hooks import IngestHook
from kvmeta.ingest.service import KvIngest
from kvmeta.ingest.sharded import LEASE_SECONDS, LeasedIndex, Shard, ShardedIngest
from kvmeta.leases import LeaseStore
from router.adapters.engine_http import HttpEngineClient
from router.adapters.event_discovery import EventDiscovery
from router.adapters.event_feed import IngestFeed
from router.compose.models import Layouts, fits
from router.ports import Clock, StateStore
from router.service.membership import Followed
from router.service.order_book import OrderBook
from router.service.orders import Orders
from router.settings import Settings, build_topology
from router.settings.reloads import Settled


@dataclass(frozen=True, slots=True)
class IngestShard:
    """One shard, ready to run: it follows its share of the instances' sources.

    With `orders` it knows by itself which instances there are, and is a `Reloadable`; without,
    `feed` is told.
    """

    feed: IngestFeed
    discovery: EventDiscovery
    sharded: ShardedIngest
    following: KvIngest
    engines: HttpEngineClient
    followed: Followed
    layouts: Layouts
    orders: OrderBook | None = None

    async def run(self) -> None:
        """Ingest until cancelled; then give every lease back."""
        if self.orders is not None:
            await self.followed.begin()
            await self.orders.begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                if self.orders is not None:
                    tasks.create_task(self.orders.run())
                tasks.create_task(self.following.run())
                tasks.create_task(self.sharded.run())
                tasks.create_task(self.discovery.run())
        finally:
            await self.engines.aclose()

    async def reload(self, settled: Settled) -> None:
        """Follow the instances of another configuration; those that stay are followed on."""
        settings = settled.loaded.settings
        renamed = self.layouts.renamed_by(settings, self.followed.configured)
        self.layouts.settings = settings
        self.followed.reconfigure(build_topology(settings).instances, usable=fits(settings))
        orders = Orders() if self.orders is None else self.orders.orders
        await self.followed.carry_out(self.followed.turn_to(orders, renamed=renamed))

    def note_refused(self, message: str) -> None:
        """The log has told; nobody asks this process."""


def build_shard(
    settings: Settings,
    index: MetadataIndex,
    leases: LeaseStore,
    *,
    name: str,
    clock: Clock,
    lease_seconds: float = LEASE_SECONDS,
    hook: IngestHook | None = None,
    state: StateStore | None = None,
    layouts: Layouts | None = None,
) -> IngestShard:
    """Return the shard `name` of the ingest into `index`.

    `layouts` are those of the settings, if nobody changes them meanwhile. `state` keeps the orders
    by which instances come and go; without, somebody else follows them.
    """
    shard = Shard(name, clock=clock.monotonic, ttl_seconds=lease_seconds)
    following = KvIngest(
        LeasedIndex(index, shard.may_write),
        probe_interval_seconds=settings.kvmeta.probe_interval_seconds,
        max_age_seconds=settings.kvmeta.max_age_seconds,
        hook=hook,
    )
    sharded = ShardedIngest(following, leases, shard)
    engines = HttpEngineClient(max_connections=settings.upstream.max_connections_per_instance)
    layout_of = layouts or Layouts(settings)
    discovery = EventDiscovery(
        engines,
        sharded,
        layout_of,
        interval=settings.kvmeta.probe_interval_seconds,
        timeout=settings.upstream.probe.timeout_seconds,
    )
    feed = IngestFeed(sharded, layout_of, discovery)
    followed = Followed(build_topology(settings).instances, feed, usable=fits(settings))
    return IngestShard(
        feed=feed,
        discovery=discovery,
        sharded=sharded,
        following=following,
        engines=engines,
        followed=followed,
        layouts=layout_of,
        orders=None if state is None else OrderBook(state, clock, followed.follow),
    )
