"""Puts one gateway together: the embedded index, the fleet, the rule, the relay, HTTP in front."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from kvmeta.ingest.service import KvIngest
from kvmeta.ingest.sharded import SourceFeed
from router.adapters.engine_http import HttpEngineClient
from router.adapters.event_discovery import EventDiscovery
from router.adapters.event_feed import IngestFeed, NoFeed
from router.adapters.probes import HttpProbe
from router.adapters.siblings import Seat
from router.adapters.store.loads import RedisLoads
from router.compose.applications import (
    build_applications,
    build_rooms,
    build_routing,
    build_surface,
    client_limits,
)
from router.compose.core import Core, build_core, put_in_force, renew_core, watch
from router.compose.ingest import build_shard
from router.compose.models import (
    CompositionError,
    fits,
)
from router.compose.receptions import Reception, Rooms
from router.compose.reloading import ReloadRefused
from router.compose.stores import read_secret
from router.control.health import Health, step_health
from router.control.silence import SilenceRules
from router.gateway.access import AccessLog, RecordedAccess
from router.gateway.client_limits import ClientLimits
from router.gateway.dispatch import Application, Switch
from router.gateway.refusals import RefusalLog
from router.gateway.requests import BodyBudget
from router.service.config_record import ReloadOutcome
from router.service.membership import Followed, Membership
from router.service.order_book import OrderBook
from router.service.orders import Orders
from router.service.peers import Peers
from router.service.probing import Prober
from router.service.silence import SilenceWatch
from router.settings import (
    Loaded,
    Settings,
    Topology,
    build_topology,
)
from router.settings.reloads import Settled, fingerprint_of


@dataclass(frozen=True, slots=True)
class Readied:
    """Another configuration, with all that follows from it, ready to go by."""

    settled: Settled
    core: Core
    topology: Topology
    application: Application
    admin: Application | None
    rooms: Rooms
    health: Mapping[str, Health]
    renamed: frozenset[str]


@dataclass(slots=True)
class Gateway:
    """One gateway, ready to run. `admin` has its own listener where the configuration says so.

    It is a `Reloadable`: requests that run go on by the configuration that they began with.
    """

    application: Switch
    admin: Switch | None
    reception: Reception
    limits: ClientLimits
    refusals: RefusalLog
    budget: BodyBudget
    core: Core
    ingest: Ingest
    membership: Membership
    orders: OrderBook
    peers: Peers | None
    prober: Prober | None = None
    renewed: asyncio.Event = field(default_factory=asyncio.Event)

    def start_draining(self) -> None:
        """Answer 503 on `/ready` from now on; requests are still served."""
        self.core.draining.set()

    # -- reloads

    async def reload(self, settled: Settled) -> None:
        """Go on by another configuration, as a whole. Raises ReloadRefused, having done nothing."""
        await self.take_over(await self.prepare(settled))

    async def prepare(self, settled: Settled) -> Readied:
        """Make another configuration ready; nothing is changed yet. Raises ReloadRefused.

        Engines that it adds are probed, so that those that live are used at once.
        """
        loaded = settled.loaded
        try:
            secret = await self._secret_for(loaded.settings)
            topology = build_topology(loaded.settings)
            readied = await asyncio.to_thread(self._build, settled, topology, secret)
        except CompositionError as error:
            raise ReloadRefused(str(error)) from error
        if self.prober is None:
            return readied
        newcomers = self.membership.newcomers(topology.instances, self.orders.orders)
        found = await self.prober.examine(newcomers)
        rules = self.core.fleet.rules.probe
        health = {
            name: step_health(Health(), outcome.healthy, rules) for name, outcome in found.items()
        }
        return replace(readied, health=health)

    async def take_over(self, readied: Readied, *, counts: bool = True) -> None:
        """Go on by what was made ready: all of it between two requests.

        With `counts` this process tells the metrics, for all workers of the gateway.
        """
        core = self.core = readied.core
        put_in_force(core, readied.topology)
        orders = self.orders.orders
        core.links.follow(orders.links)
        turnover = self.membership.reconfigure(
            readied.topology.instances,
            orders,
            usable=fits(core.settings),
            renamed=readied.renamed,
            health=readied.health,
        )
        self.reception.exchange(readied.rooms)
        self.application.application = readied.application
        if self.admin is not None and readied.admin is not None:
            self.admin.application = readied.admin
        core.config.applied(fingerprint_of(readied.settled.loaded), readied.settled.restart_needed)
        if counts:
            core.metrics.reloaded(ReloadOutcome.APPLIED)
        self.renewed.set()
        await self.membership.carry_out(turnover)

    def note_refused(self, message: str, *, counts: bool = True) -> None:
        """Show operators that a configuration was refused, and count it if it `counts` here."""
        self.core.config.refused(message)
        if counts:
            self.core.metrics.reloaded(ReloadOutcome.REFUSED)

    async def _secret_for(self, settings: Settings) -> bytes:
        return self.core.secret if settings.store.embedded else await read_secret(settings)

    def _build(self, settled: Settled, topology: Topology, secret: bytes) -> Readied:
        """Build all that is new. In a thread of its own: tokenizers take seconds to load."""
        core = renew_core(self.core, settled.loaded, secret)
        routing = build_routing(core)
        surface = build_surface(core, routing, self.budget)
        rooms = build_rooms(core, routing, surface, self.membership, self.orders)
        application, admin = build_applications(core.settings, surface, self.reception, self.budget)
        renamed = core.layouts.renamed_by(core.settings, self.membership.configured)
        return Readied(settled, core, topology, application, admin, rooms, {}, renamed)

    # -- running

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Probe, ingest and keep connections for the time of the block.

        When it begins every instance was probed once.
        """
        probe = self.core.settings.upstream.probe
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.core.store.running())
            stack.push_async_callback(self.core.leadership.leave)
            stack.push_async_callback(self.core.engines.aclose)
            stack.callback(self.core.tokenizers.close)
            # Not by the requests' connections: what they fill must still be asked how it is.
            client = HttpEngineClient()
            stack.push_async_callback(client.aclose)
            prober = self.prober = Prober(
                self.core.fleet,
                HttpProbe(client, probe.timeout_seconds),
                clock=self.core.clock,
                interval=probe.interval_seconds,
                lines=self.core.engines,
                hook=self.core.metrics,
            )
            silence = _build_silence_watch(self.core)
            await self.membership.begin()
            await self.orders.begin()
            await self.core.thresholds.begin()
            await prober.probe_all()
            await stack.enter_async_context(self.core.workers.answering())
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            runs: list[Callable[[], Coroutine[None, None, None]]] = [
                *self.ingest.runs,
                prober.run,
                silence.run,
                self.core.leadership.run,
                self.core.links.run,
                self.core.thresholds.run,
                partial(self.core.balance.run, self.orders),
                self.core.truth.run,
                self.core.binding.run,
                self._improve_tokenizers,
            ]
            if self.core.store.common is not None:
                runs += [self.orders.run, self.core.thresholds.follow]
            if self.core.slots is not None:
                stack.push_async_callback(self.core.slots.leave)
                runs.append(partial(self.core.slots.run, self.core.admission))
            if self.core.places is not None:
                stack.push_async_callback(self.core.places.leave)
                runs.append(partial(self.core.places.run, self.core.binding))
            if self.core.bookings is not None:
                stack.push_async_callback(self.core.bookings.leave)
                runs.append(self.core.bookings.run)
            if self.peers is not None:
                stack.push_async_callback(self.peers.leave)
                runs.append(self.peers.run)
            background = [tasks.create_task(run()) for run in runs]
            try:
                yield
            finally:
                for task in background:
                    task.cancel()

    async def _improve_tokenizers(self) -> None:
        """Improve what was loaded, at the start and with each reload."""
        while True:
            self.renewed.clear()
            await self.core.tokenizers.run()
            await self.renewed.wait()


@dataclass(frozen=True, slots=True)
class Ingest:
    """How KV events reach the index: `feed` is told of instances, `runs` go on beside requests."""

    feed: IngestFeed
    runs: tuple[Callable[[], Coroutine[None, None, None]], ...]


def build_gateway(
    loaded: Loaded,
    *,
    secret: bytes | None = None,
    seat: Seat | None = None,
    access: AccessLog | None = None,
) -> Gateway:
    """Return the gateway of a configuration. Raises CompositionError.

    `secret` derives the salts of tenants that have none (`stores.read_secret`); None makes one up.
    `seat` is this process's place among the workers of one gateway, if there are several.
    `access` takes the requests' lines; None leaves them to Python's logging.
    """
    secret = secret or secrets.token_bytes(32)
    core = build_core(loaded, secret, seat, access or RecordedAccess())
    routing = build_routing(core)
    ingest = _build_ingest(core)
    membership = Membership(core.fleet, _follow_instances(core, ingest))
    orders = _build_orders(core, membership)
    peers = _build_peers(core)
    watch(core)
    budget = BodyBudget(core.settings.server.max_buffered_bytes)
    surface = build_surface(core, routing, budget)
    rooms = build_rooms(core, routing, surface, membership, orders)
    reception = Reception(rooms, apart=core.settings.admin.port is not None)
    application, admin = build_applications(core.settings, surface, reception, budget)
    limits = client_limits(core.settings)
    return Gateway(
        Switch(application),
        None if admin is None else Switch(admin),
        reception,
        limits,
        RefusalLog(core.metrics, core.access),
        budget,
        core,
        ingest,
        membership,
        orders,
        peers,
    )


def _follow_instances(core: Core, ingest: Ingest) -> Followed:
    configured = [member.instance for member in core.fleet.members]
    return Followed(configured, ingest.feed, usable=fits(core.settings))


def _build_peers(core: Core) -> Peers | None:
    """Return how this process and its peers tell each other; None where there are none."""
    common = core.store.common
    if common is None:
        return None
    board = RedisLoads(common.store, common.keys, common.owner)
    return Peers(core.fleet, core.links, core.lengths, board, core.clock, me=common.owner)


def _build_orders(core: Core, membership: Membership) -> OrderBook:
    async def follow(orders: Orders) -> None:
        core.operator.follow(orders)
        core.binding.follow()
        core.links.follow(orders.links)
        await membership.follow(orders)

    return OrderBook(core.state, core.clock, follow)


def _build_ingest(core: Core) -> Ingest:
    """Ingest here where the index is our own, or where it is asked for; then shared by leases."""
    settings, store = core.settings, core.store
    mode = settings.kvmeta.ingest
    if store.leases is None and mode == "external":
        raise CompositionError("kvmeta.ingest: external needs a store that processes share")
    if store.leases is not None and mode == "embedded":
        shard = build_shard(
            settings,
            core.index,
            store.leases,
            name=f"gateway-{secrets.token_hex(4)}",
            clock=core.clock,
            hook=core.metrics,
            layouts=core.layouts,
        )
        return Ingest(shard.feed, (shard.run,))
    following = KvIngest(
        core.index,
        probe_interval_seconds=settings.kvmeta.probe_interval_seconds,
        max_age_seconds=settings.kvmeta.max_age_seconds,
        hook=core.metrics,
    )
    target: SourceFeed = following if store.leases is None else NoFeed()
    discovery = EventDiscovery(
        core.engines,
        target,
        core.layouts,
        interval=settings.kvmeta.probe_interval_seconds,
        timeout=settings.upstream.probe.timeout_seconds,
        told_ranks=core.fleet.set_ranks,
    )
    runs = (discovery.run,) if store.leases is not None else (following.run, discovery.run)
    return Ingest(IngestFeed(target, core.layouts, discovery), runs)


def _build_silence_watch(core: Core) -> SilenceWatch:
    upstream = core.settings.upstream
    return SilenceWatch(
        core.fleet,
        core.engines,
        clock=core.clock,
        interval=upstream.probe.interval_seconds,
        rules=SilenceRules(
            patience=upstream.probe.timeout_seconds,
            stream_grace=upstream.lost_stream_timeout_seconds,
        ),
    )
