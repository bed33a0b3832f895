"""Puts one gateway together: the embedded index, the fleet, the rule, the relay, HTTP in front."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import httpx

from kvmeta.history import ApproximateIndex, PromptHistory
from kvmeta.index import MetadataIndex
from kvmeta.ingest.service import KvIngest
from kvmeta.ingest.sharded import SourceFeed
from kvmeta.speculation import Speculation, SpeculativeIndex
from router.adapters.clocks import SystemClock
from router.adapters.engine_http import HttpEngineClient
from router.adapters.event_discovery import EventDiscovery
from router.adapters.event_feed import IngestFeed, NoFeed
from router.adapters.live_gauges import LiveState
from router.adapters.metrics import PrometheusMetrics
from router.adapters.probes import HttpProbe
from router.adapters.siblings import Seat
from router.adapters.store.slots import RedisShares
from router.adapters.workers import Workers
from router.compose.ingest import build_shard
from router.compose.models import (
    CompositionError,
    build_admin_keys,
    build_catalog,
    build_tenants,
    fits,
    layouts_by_instance,
)
from router.compose.pools import build_pools
from router.compose.stores import Store, build_limits, build_report_board, build_state, open_store
from router.compose.tokenizers import Tokenizers, load_tokenizers
from router.control.admission import AdmissionRules
from router.control.health import BreakerRules, ProbeRules
from router.control.links import BandwidthMode, RegimeBounds
from router.control.silence import SilenceRules
from router.control.thresholds import StepRules
from router.domain.decision import Rule
from router.domain.errors import NotFound
from router.domain.topology import ClusterKind, Role
from router.gateway.access import AccessLog, RecordedAccess
from router.gateway.admin import build_admin
from router.gateway.admin_room import AdminRoom
from router.gateway.client_limits import ClientLimits
from router.gateway.cors import CorsRules, CrossOrigin
from router.gateway.dispatch import Application, BoundedBodies, Dispatcher
from router.gateway.front import (
    FrontRoom,
    behind_proxies,
    build_application,
    build_health,
    build_metrics,
    build_models,
)
from router.gateway.openai import OpenAiRules, OpenAiSurface, RelayMaker
from router.gateway.openapi import Keys, Surroundings, add_description
from router.gateway.requests import BodyBudget
from router.ports import Timeouts
from router.service.admission import Admission, OwnSlots
from router.service.connectors import Connector, find_connector, third_party_connectors
from router.service.counting import EngineCounter, PromptCounter
from router.service.decisions import DecisionLog
from router.service.fleet import Fleet, FleetRules
from router.service.foresight import Foresight
from router.service.lengths import OperatingLengths
from router.service.links import LinkBoard
from router.service.membership import Followed, Membership
from router.service.models import ModelCatalog
from router.service.observations import ObservedCourse
from router.service.operator import Operator, ThresholdRules
from router.service.order_book import OrderBook
from router.service.orders import Orders
from router.service.peers import Peers
from router.service.plans import RequestLedger, RequestPlanner
from router.service.pools import PoolBook
from router.service.probing import Prober
from router.service.relay import Relay
from router.service.relay_ports import RelaySettings
from router.service.routing import Routed, Routing, RoutingRules
from router.service.silence import SilenceWatch
from router.service.slot_shares import SharedSlots
from router.service.snapshots import PolicyRules, SnapshotBuilder
from router.service.state import StateReport
from router.service.stored_responses import StoredResponses
from router.service.tenants import TenantBook
from router.service.thresholds import ThresholdLoop
from router.service.truth import TruthWatch
from router.service.visits import Visits
from router.settings import (
    Loaded,
    Settings,
    build_topology,
    describe_instance,
    parse_instance,
)


@dataclass(frozen=True, slots=True)
class Core:
    """The state of one gateway, and what is shared by everything that works on it."""

    settings: Settings
    clock: SystemClock
    metrics: PrometheusMetrics
    workers: Workers
    access: AccessLog
    catalog: ModelCatalog
    connector: Connector
    fleet: Fleet
    links: LinkBoard
    operator: Operator
    lengths: OperatingLengths
    store: Store
    index: MetadataIndex
    foresight: Foresight
    truth: TruthWatch
    pools: PoolBook
    tenants: TenantBook
    admission: Admission
    slots: SharedSlots | None
    log: DecisionLog
    engines: HttpEngineClient
    tokenizers: Tokenizers
    draining: asyncio.Event


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway, ready to run. `admin` has its own listener where the configuration says so."""

    application: Application
    admin: Application | None
    limits: ClientLimits
    budget: BodyBudget
    core: Core
    ingest: Ingest
    membership: Membership
    orders: OrderBook
    peers: Peers | None

    def start_draining(self) -> None:
        """Answer 503 on `/ready` from now on; requests are still served."""
        self.core.draining.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Probe, ingest and keep connections for the time of the block.

        When it begins every instance was probed once.
        """
        probe = self.core.settings.upstream.probe
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.core.store.running())
            stack.push_async_callback(self.core.engines.aclose)
            stack.callback(self.core.tokenizers.close)
            client = await stack.enter_async_context(
                httpx.AsyncClient(
                    timeout=probe.timeout_seconds,
                    # What hangs must not keep the others from being asked.
                    limits=httpx.Limits(max_connections=None),
                    trust_env=False,
                )
            )
            prober = Prober(
                self.core.fleet,
                HttpProbe(client),
                clock=self.core.clock,
                interval=probe.interval_seconds,
                lines=self.core.engines,
                hook=self.core.metrics,
            )
            silence = _build_silence_watch(self.core)
            thresholds = _build_threshold_loop(self.core)
            await self.membership.begin()
            await self.orders.begin()
            await prober.probe_all()
            await stack.enter_async_context(self.core.workers.answering())
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            runs = [
                *self.ingest.runs,
                prober.run,
                silence.run,
                thresholds.run,
                self.core.truth.run,
                self.core.tokenizers.run,
            ]
            if self.core.store.common is not None:
                runs.append(self.orders.run)
            if self.core.slots is not None:
                stack.push_async_callback(self.core.slots.leave)
                runs.append(partial(self.core.slots.run, self.core.admission))
            if self.peers is not None:
                stack.push_async_callback(self.peers.leave)
                runs.append(self.peers.run)
            background = [tasks.create_task(run()) for run in runs]
            try:
                yield
            finally:
                for task in background:
                    task.cancel()


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
    core = _build_core(loaded, secret, seat, access or RecordedAccess())
    routing = _build_routing(core)
    ingest = _build_ingest(core)
    membership = Membership(core.fleet, _follow_instances(core, ingest))
    orders = _build_orders(core, membership)
    board = build_report_board(core.store)
    peers = None if board is None else Peers(core.fleet, core.links, board, core.clock)
    core.metrics.watch(
        LiveState(
            core.fleet,
            core.links,
            core.operator,
            core.catalog,
            core.clock,
            core.admission,
            core.tenants,
            core.lengths,
        )
    )
    budget = BodyBudget(core.settings.server.max_buffered_bytes)
    application, admin = _build_applications(core, routing, membership, orders, budget)
    limits = client_limits(core.settings)
    return Gateway(application, admin, limits, budget, core, ingest, membership, orders, peers)


def _follow_instances(core: Core, ingest: Ingest) -> Followed:
    configured = [member.instance for member in core.fleet.members]
    return Followed(configured, ingest.feed, usable=fits(core.settings))


def _build_orders(core: Core, membership: Membership) -> OrderBook:
    async def put_in_force(orders: Orders) -> None:
        core.operator.follow(orders)
        core.links.follow(orders.links)
        await membership.follow(orders)

    return OrderBook(build_state(core.store), core.clock, put_in_force)


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
            name=f"gateway-{_new_id()[:8]}",
            clock=core.clock,
            hook=core.metrics,
        )
        return Ingest(shard.feed, (shard.run,))
    following = KvIngest(
        core.index,
        probe_interval_seconds=settings.kvmeta.probe_interval_seconds,
        max_age_seconds=settings.kvmeta.max_age_seconds,
        hook=core.metrics,
    )
    target: SourceFeed = following if store.leases is None else NoFeed()
    layout_of = layouts_by_instance(settings)
    discovery = EventDiscovery(
        core.engines,
        target,
        layout_of,
        interval=settings.kvmeta.probe_interval_seconds,
        timeout=settings.upstream.probe.timeout_seconds,
        told_ranks=core.fleet.set_ranks,
    )
    runs = (discovery.run,) if store.leases is not None else (following.run, discovery.run)
    return Ingest(IngestFeed(target, layout_of, discovery), runs)


def _build_core(loaded: Loaded, secret: bytes, seat: Seat | None, access: AccessLog) -> Core:
    settings = loaded.settings
    clock = SystemClock()
    metrics = PrometheusMetrics(shared=None if seat is None else seat.directory)
    topology = build_topology(settings)
    threshold = settings.scheduler.threshold
    catalog = build_catalog(loaded)
    fleet = Fleet(topology.clusters, topology.instances, clock=clock, rules=_fleet_rules(settings))
    foresight = _build_foresight(settings, fleet, clock)
    engines = HttpEngineClient(max_connections=settings.upstream.max_connections_per_instance)
    store = open_store(settings, clock, metrics)
    index = _foresee(store.index, foresight)
    slots = _share_slots(store, catalog, fleet)
    return Core(
        settings=settings,
        clock=clock,
        metrics=metrics,
        access=access,
        workers=Workers(seat, metrics, clock),
        catalog=catalog,
        connector=_choose_connector(settings),
        fleet=fleet,
        links=LinkBoard(
            topology.links,
            clock=clock,
            bounds=RegimeBounds(
                settings.scheduler.bandwidth.scarce_above,
                settings.scheduler.bandwidth.abundant_below,
            ),
            budget=settings.scheduler.link_budget_seconds,
            mode=BandwidthMode(settings.scheduler.bandwidth.mode),
        ),
        operator=Operator(
            ThresholdRules(
                threshold.mode, threshold.tokens, threshold.min_tokens, threshold.max_tokens
            ),
            clock=clock,
        ),
        lengths=OperatingLengths(),
        store=store,
        index=index,
        foresight=foresight,
        truth=TruthWatch(metrics, index, foresight.history),
        tenants=TenantBook(build_tenants(settings), secret=secret),
        admission=_build_admission(settings, fleet, catalog, clock, metrics, slots),
        slots=slots,
        log=DecisionLog(),
        engines=engines,
        pools=PoolBook(fleet, build_pools(settings, engines, clock)),
        tokenizers=load_tokenizers(settings),
        draining=asyncio.Event(),
    )


def _share_slots(store: Store, catalog: ModelCatalog, fleet: Fleet) -> SharedSlots | None:
    """Return how decode slots are shared, where there are any and others to share them with."""
    if store.common is None or all(model.decode_slots is None for model in catalog.models):
        return None
    common = store.common
    shares = RedisShares(common.store, common.keys, common.owner)
    return SharedSlots(fleet, shares, me=common.owner)


def _build_admission(
    settings: Settings,
    fleet: Fleet,
    catalog: ModelCatalog,
    clock: SystemClock,
    metrics: PrometheusMetrics,
    slots: SharedSlots | None,
) -> Admission:
    timeout = settings.admission.queue_timeout_seconds
    return Admission(
        fleet,
        {model.name: model.decode_slots for model in catalog.models},
        source=slots or OwnSlots(fleet),
        clock=clock,
        hook=metrics,
        # Half of the time for priorities, half for everybody: nobody times out for them alone.
        rules=AdmissionRules(settings.admission.queue_size, patience=timeout / 2),
        timeout=timeout,
    )


def _build_foresight(settings: Settings, fleet: Fleet, clock: SystemClock) -> Foresight:
    return Foresight(
        fleet,
        Speculation(clock=clock.monotonic, ttl_seconds=settings.kvmeta.speculative_ttl_seconds),
        PromptHistory(
            clock=clock.monotonic,
            ttl_seconds=settings.kvmeta.approximate_ttl_seconds,
            max_blocks=settings.kvmeta.approximate_blocks,
        ),
    )


def _foresee(index: MetadataIndex, foresight: Foresight) -> MetadataIndex:
    """Let look-ups see guesses where there are no events, and what is being computed everywhere."""
    return SpeculativeIndex(ApproximateIndex(index, foresight.history), foresight.speculation)


def _choose_connector(settings: Settings) -> Connector:
    try:
        return find_connector(settings.transfer.connector, third_party_connectors())
    except NotFound as error:
        raise CompositionError(f"transfer.connector: {error}") from error


def _fleet_rules(settings: Settings) -> FleetRules:
    probe, breaker = settings.upstream.probe, settings.upstream.breaker
    return FleetRules(
        probe=ProbeRules(probe.failures, probe.successes),
        breaker=BreakerRules(breaker.failures, breaker.window_seconds, breaker.cooldown_seconds),
        signal_max_age=settings.scheduler.signal_max_age_seconds,
    )


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


def _build_threshold_loop(core: Core) -> ThresholdLoop:
    scheduler = core.settings.scheduler
    return ThresholdLoop(
        core.operator.solved,
        fleet=core.fleet,
        links=core.links,
        models=core.catalog.models,
        lengths=core.lengths,
        clock=core.clock,
        rules=StepRules(
            low=scheduler.threshold.min_tokens,
            high=scheduler.threshold.max_tokens,
            dwell=scheduler.short_loop.dwell_seconds,
        ),
        period=scheduler.short_loop.period_seconds,
    )


def _build_routing(core: Core) -> Routing:
    settings = core.settings
    decision_timeout = settings.scheduler.decision_timeout_ms / 1000
    return Routing(
        counter=PromptCounter(
            EngineCounter(core.engines, core.fleet, clock=core.clock, timeout=decision_timeout),
            core.tokenizers.by_model,
            core.tokenizers.threads,
        ),
        index=core.index,
        builder=SnapshotBuilder(
            fleet=core.fleet,
            links=core.links,
            operator=core.operator,
            rules=PolicyRules(
                rule=Rule(settings.scheduler.policy),
                on_unknown=settings.scheduler.on_unknown_metadata,
                remote_queue_limit=settings.scheduler.remote_queue_limit,
                ships_prefix=core.connector.ships_prefix,
            ),
            lengths=core.lengths,
            clock=core.clock,
        ),
        lengths=core.lengths,
        log=core.log,
        hook=core.metrics,
        clock=core.clock,
        rules=RoutingRules(
            decision_timeout=decision_timeout,
            lookup_timeout=settings.kvmeta.lookup_timeout_ms / 1000,
            skip_counting=settings.scheduler.skip_counting == "short",
        ),
        truncation={
            model.name: core.connector.prefill_truncation(model.layout)
            for model in core.catalog.models
        },
        pools=core.pools,
    )


def _build_applications(
    core: Core,
    routing: Routing,
    membership: Membership,
    orders: OrderBook,
    budget: BodyBudget,
) -> tuple[Application, Application | None]:
    """Return the clients' application, and the operators' where it has its own listener."""
    settings = core.settings
    front = FrontRoom(
        catalog=core.catalog,
        tenants=core.tenants,
        is_ready=lambda: not core.draining.is_set() and can_serve(core.fleet),
        render_metrics=lambda: _render_metrics(core),
        started_at=int(core.clock.now().timestamp()),
    )
    surface = OpenAiSurface(
        routing=routing,
        make_relay=_build_relays(core, routing),
        tenants=core.tenants,
        visits=Visits(build_limits(core.store, core.clock), core.admission, core.clock),
        catalog=core.catalog,
        stored=StoredResponses(core.clock, shared=core.store.origins),
        budget=budget,
        hook=core.metrics,
        access=core.access,
        clock=core.clock,
        new_id=_new_id,
        rules=OpenAiRules(
            homes=frozenset(
                cluster.name for cluster in core.fleet.clusters if cluster.kind is ClusterKind.PD
            ),
            passed_paths=settings.server.passthrough_paths,
            max_body_bytes=settings.server.max_body_bytes,
            expose_routing_headers=settings.server.expose_routing_headers,
        ),
    )
    public = build_application(title="PrfaaS router")
    public.include_router(build_health(front))
    public.include_router(build_models(front))
    private = public
    if settings.admin.port is not None:
        private = build_application(title="PrfaaS router, administration")
        private.include_router(build_health(front))
    private.include_router(build_metrics(front))
    private.include_router(build_admin(_admin_room(core, routing, membership, orders)))
    if settings.server.openapi:
        keys = Keys(clients=not core.tenants.is_open, admins=bool(build_admin_keys(settings)))
        schemas = describe_instance()
        add_description(public, Surroundings(surface.paths(), keys, schemas))
        if private is not public:
            add_description(private, Surroundings({}, keys, schemas))
    limit = settings.server.max_body_bytes
    others = BoundedBodies(behind_proxies(public), limit, budget)
    clients: Application = Dispatcher(surface.endpoints(), others, families=surface.families())
    if settings.server.cors.allow_origins:
        clients = CrossOrigin(clients, _cors_rules(settings))
    return (
        clients,
        None if private is public else BoundedBodies(behind_proxies(private), limit, budget),
    )


def client_limits(settings: Settings) -> ClientLimits:
    """Return the bounds of clients' connections."""
    server = settings.server
    return ClientLimits(
        max_connections=server.max_connections,
        max_head_bytes=server.max_head_bytes,
        max_head_fields=server.max_head_fields,
        head=server.timeouts.head_seconds,
        body=server.timeouts.body_seconds,
        idle=server.timeouts.idle_seconds,
        stall=server.timeouts.stall_seconds,
    )


def _cors_rules(settings: Settings) -> CorsRules:
    cors = settings.server.cors
    return CorsRules(
        allow_origins=cors.allow_origins,
        allow_headers=cors.allow_headers,
        allow_credentials=cors.allow_credentials,
        max_age=round(cors.max_age_seconds),
    )


def _admin_room(
    core: Core, routing: Routing, membership: Membership, orders: OrderBook
) -> AdminRoom:
    return AdminRoom(
        keys=build_admin_keys(core.settings),
        fleet=core.fleet,
        membership=membership,
        links=core.links,
        operator=core.operator,
        orders=orders,
        routing=routing,
        tenants=core.tenants,
        catalog=core.catalog,
        log=core.log,
        report=StateReport(
            fleet=core.fleet,
            links=core.links,
            operator=core.operator,
            catalog=core.catalog,
            index=core.index,
            admission=core.admission,
            tenants=core.tenants,
            pools=core.pools,
            clock=core.clock,
            store=core.store.kind,
            store_is_up=lambda: core.metrics.store_is_up,
            tokenizers={
                model: tokenizer.describe for model, tokenizer in core.tokenizers.by_model.items()
            },
            describe_workers=core.workers.describe,
        ),
        clock=core.clock,
        parse_instance=lambda document: parse_instance(document, core.settings),
        new_request_id=_new_id,
    )


def _build_relays(core: Core, routing: Routing) -> RelayMaker:
    """Return what makes the relay of each request."""
    upstream, transfer = core.settings.upstream, core.settings.transfer
    settings = RelaySettings(
        timeouts=Timeouts(
            upstream.connect_timeout_seconds,
            upstream.first_byte_timeout_seconds,
            upstream.idle_timeout_seconds,
        ),
        lease=transfer.lease_seconds,
        lease_margin=transfer.lease_margin_seconds,
    )
    truncation = {
        model.name: core.connector.prefill_truncation(model.layout) for model in core.catalog.models
    }

    def make_relay(routed: Routed) -> Relay:
        return Relay(
            client=core.engines,
            planner=RequestPlanner(routing, core.fleet, routed),
            ledger=RequestLedger(core.fleet, core.links, routed, core.foresight),
            hook=ObservedCourse(
                core.truth,
                core.clock,
                routed,
                truncation=truncation[routed.ask.named.model.name],
            ),
            connector=core.connector,
            clock=core.clock,
            settings=settings,
        )

    return make_relay


def can_serve(fleet: Fleet) -> bool:
    """Whether some PD cluster has a live instance that can answer."""
    kinds = {cluster.name: cluster.kind for cluster in fleet.clusters}
    return any(
        fleet.is_ready(member)
        and member.instance.role is not Role.PREFILL
        and kinds[member.instance.cluster] is ClusterKind.PD
        for member in fleet.members
    )


async def _render_metrics(core: Core) -> bytes:
    return await core.workers.render_metrics(await core.index.describe())


def _new_id() -> str:
    return secrets.token_hex(16)
