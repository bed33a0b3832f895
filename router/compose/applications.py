"""What a gateway answers with, by one configuration: the rule, the relay, HTTP in front."""

from __future__ import annotations

from router.compose.core import Core
from router.compose.models import (
    build_admin_keys,
)
from router.compose.receptions import Reception, Rooms
from router.domain.topology import ClusterKind, Role
from router.gateway.admin_room import AdminRoom
from router.gateway.client_limits import ClientLimits
from router.gateway.cors import CorsRules, CrossOrigin
from router.gateway.dispatch import Application, BoundedBodies, Dispatcher
from router.gateway.front import FrontRoom
from router.gateway.openai import OpenAiRules, OpenAiSurface, RelayMaker
from router.gateway.openapi import Description, Keys, Surroundings
from router.gateway.requests import BodyBudget
from router.ports import Timeouts
from router.service.counting import EngineCounter, PromptCounter
from router.service.fleet import Fleet
from router.service.journals import Journal
from router.service.live_plans import LivePlans
from router.service.membership import Membership
from router.service.observations import ObservedCourse
from router.service.order_book import OrderBook
from router.service.plans import RequestLedger, RequestPlanner
from router.service.relay import Relay
from router.service.relay_ports import RelaySettings
from router.service.reservations import OwnRoom
from router.service.routing import Routed, Routing, RoutingRules
from router.service.snapshots import PolicyRules, SnapshotBuilder
from router.service.state import StateReport
from router.service.visits import Visits
from router.settings import (
    Settings,
    describe_instance,
    parse_instance,
)


def build_routing(core: Core) -> Routing:
    """Return the rule."""
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
        binding=core.binding,
    )


def build_surface(core: Core, routing: Routing, budget: BodyBudget) -> OpenAiSurface:
    """Return what the relayed endpoints share."""
    settings = core.settings
    return OpenAiSurface(
        routing=routing,
        make_relay=_build_relays(core, routing),
        tenants=core.tenants,
        visits=Visits(core.limits, core.admission, core.clock, core.bookings or OwnRoom()),
        catalog=core.catalog,
        stored=core.stored,
        budget=budget,
        hook=core.metrics,
        access=core.access,
        clock=core.clock,
        new_id=core.new_id,
        rules=OpenAiRules(
            homes=frozenset(
                cluster.name for cluster in settings.clusters if cluster.kind is ClusterKind.PD
            ),
            passed_paths=settings.server.passthrough_paths,
            max_body_bytes=settings.server.max_body_bytes,
            expose_routing_headers=settings.server.expose_routing_headers,
        ),
    )


def build_rooms(
    core: Core,
    routing: Routing,
    surface: OpenAiSurface,
    membership: Membership,
    orders: OrderBook,
) -> Rooms:
    """Return what the framework's routes work with."""
    front = FrontRoom(
        catalog=core.catalog,
        tenants=core.tenants,
        is_ready=lambda: not core.draining.is_set() and can_serve(core.fleet),
        render_metrics=lambda: _render_metrics(core),
        started_at=int(core.started_at.timestamp()),
    )
    admin = _admin_room(core, routing, membership, orders)
    if not core.settings.server.openapi:
        return Rooms(front, admin, Description(None), Description(None))
    keys = Keys(clients=not core.tenants.is_open, admins=bool(admin.keys))
    schemas = describe_instance()
    return Rooms(
        front,
        admin,
        Description(Surroundings(surface.paths(), keys, schemas)),
        Description(Surroundings({}, keys, schemas)),
    )


def build_applications(
    settings: Settings, surface: OpenAiSurface, reception: Reception, budget: BodyBudget
) -> tuple[Application, Application | None]:
    """Return the clients' application, and the operators' where it has its own listener."""
    limit = settings.server.max_body_bytes
    others = BoundedBodies(reception.public, limit, budget)
    clients: Application = Dispatcher(surface.endpoints(), others, families=surface.families())
    if settings.server.cors.allow_origins:
        clients = CrossOrigin(clients, _cors_rules(settings))
    private = reception.private
    return clients, None if private is None else BoundedBodies(private, limit, budget)


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
        journal=Journal(core.log, core.workers),
        report=StateReport(
            leadership=core.leadership,
            describe_solved=core.thresholds.describe,
            fleet=core.fleet,
            links=core.links,
            operator=core.operator,
            catalog=core.catalog,
            index=core.index,
            admission=core.admission,
            binding=core.binding,
            tenants=core.tenants,
            pools=core.pools,
            clock=core.clock,
            store=core.store.kind,
            store_is_up=lambda: core.store.is_up,
            tokenizers={
                model: tokenizer.describe for model, tokenizer in core.tokenizers.by_model.items()
            },
            describe_workers=core.workers.describe,
            config=core.config,
            balance=core.balance,
            orders=orders,
        ),
        plans=LivePlans(core.deployments, core.catalog, core.operator, core.lengths),
        clock=core.clock,
        parse_instance=lambda document: parse_instance(document, core.settings),
        new_request_id=core.new_id,
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
