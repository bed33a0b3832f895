"""The state of one gateway: what lives as long as it does, and what follows from its settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from kvmeta.history import ApproximateIndex, PromptHistory
from kvmeta.index import MetadataIndex
from kvmeta.speculation import Speculation, SpeculativeIndex
from router.adapters.clocks import SystemClock
from router.adapters.engine_http import HttpEngineClient
from router.adapters.ids import RandomIds
from router.adapters.live_gauges import LiveState
from router.adapters.metrics import PrometheusMetrics
from router.adapters.siblings import Seat
from router.adapters.store.bookings import RedisBookings
from router.adapters.store.slots import LEASE_SECONDS, RedisShares
from router.adapters.workers import Workers
from router.compose.actuators import Controls, build_long_loop
from router.compose.models import (
    CompositionError,
    Layouts,
    build_catalog,
    build_tenants,
)
from router.compose.pools import build_pools
from router.compose.stores import Store, build_leadership, build_limits, build_state, open_store
from router.compose.tokenizers import Tokenizers, load_tokenizers, renew_tokenizers
from router.control.admission import AdmissionRules
from router.control.health import BreakerRules, ProbeRules
from router.control.links import BandwidthMode, RegimeBounds
from router.control.slack import Promise, SlackRules
from router.control.thresholds import StepRules
from router.domain.decision import Rule
from router.domain.errors import NotFound
from router.gateway.access import AccessLog
from router.ports import StateStore
from router.service.admission import Admission, OwnSlots
from router.service.balance import BalanceLoop
from router.service.config_record import ConfigRecord
from router.service.connectors import Connector, find_connector, third_party_connectors
from router.service.decisions import DecisionLog
from router.service.deployments import LiveDeployments
from router.service.findings import FindingsBook
from router.service.fleet import Fleet, FleetRules
from router.service.foresight import Foresight
from router.service.late_binding import BindingRules, LateBinding
from router.service.leadership import Leadership
from router.service.lengths import OperatingLengths
from router.service.limits import LimitLedger
from router.service.links import LinkBoard
from router.service.models import ModelCatalog
from router.service.operator import Operator, ThresholdRules
from router.service.places import PrefillPlaces
from router.service.pools import PoolBook, PrefixPool
from router.service.reservations import SharedRoom
from router.service.slot_shares import SharedSlots
from router.service.solved_book import SolvedBook
from router.service.stored_responses import StoredResponses
from router.service.tenants import TenantBook
from router.service.thresholds import ThresholdLoop
from router.service.truth import TruthWatch
from router.settings import (
    Loaded,
    Settings,
    Topology,
    build_topology,
)
from router.settings.reloads import fingerprint_of


@dataclass(frozen=True, slots=True)
class Core:
    """The state of one gateway, and what is shared by everything that works on it.

    What follows from the settings alone is another with each reload; all else stays.
    """

    settings: Settings
    secret: bytes = field(repr=False)
    config: ConfigRecord
    layouts: Layouts
    lengths: OperatingLengths
    deployments: LiveDeployments
    state: StateStore
    leadership: Leadership
    thresholds: ThresholdLoop
    balance: BalanceLoop
    limits: LimitLedger
    stored: StoredResponses
    started_at: datetime
    clock: SystemClock
    metrics: PrometheusMetrics
    workers: Workers
    access: AccessLog
    catalog: ModelCatalog
    connector: Connector
    fleet: Fleet
    links: LinkBoard
    operator: Operator
    store: Store
    index: MetadataIndex
    foresight: Foresight
    truth: TruthWatch
    pools: PoolBook
    tenants: TenantBook
    admission: Admission
    slots: SharedSlots | None
    binding: LateBinding
    places: SharedSlots | None
    bookings: SharedRoom | None
    log: DecisionLog
    engines: HttpEngineClient
    tokenizers: Tokenizers
    draining: asyncio.Event
    new_id: Callable[[], str]


def build_core(loaded: Loaded, secret: bytes, seat: Seat | None, access: AccessLog) -> Core:
    """Return the state that a gateway begins with. Raises CompositionError."""
    settings = loaded.settings
    clock = SystemClock()
    metrics = PrometheusMetrics(shared=None if seat is None else seat.directory)
    topology = build_topology(settings)
    catalog = build_catalog(loaded)
    fleet = Fleet(topology.clusters, topology.instances, clock=clock, rules=_fleet_rules(settings))
    foresight = _build_foresight(settings, fleet, clock)
    engines = HttpEngineClient(max_connections=settings.upstream.max_connections_per_instance)
    store = open_store(settings, clock)
    index = _foresee(store.index, foresight)
    slots, places = _share_slots(store, fleet), _share_places(store, fleet)
    config = ConfigRecord(fingerprint_of(loaded), clock)
    log = DecisionLog(settings.admin.decision_log_size)
    lengths = OperatingLengths()
    operator = Operator(
        _threshold_rules(settings), clock=clock, policy=Rule(settings.scheduler.policy)
    )
    links = LinkBoard(
        topology.links,
        clock=clock,
        bounds=_regime_bounds(settings),
        budget=settings.scheduler.link_budget_seconds,
        mode=BandwidthMode(settings.scheduler.bandwidth.mode),
        infers=settings.scheduler.bandwidth.infer,
        overlap=settings.transfer.layerwise_overlap,
        transfers=fleet.transfer_seconds,
    )
    deployments = LiveDeployments(fleet, links, clock)
    state = build_state(store)
    leadership = build_leadership(settings, store, clock)
    return Core(
        settings=settings,
        secret=secret,
        config=config,
        layouts=Layouts(settings),
        lengths=lengths,
        deployments=deployments,
        state=state,
        leadership=leadership,
        thresholds=ThresholdLoop(
            operator.solved,
            book=SolvedBook(state, leadership, clock),
            leadership=leadership,
            fleet=fleet,
            deployments=deployments,
            models=catalog.models,
            lengths=lengths,
            clock=clock,
            rules=_step_rules(settings),
            period=settings.scheduler.short_loop.period_seconds,
        ),
        balance=BalanceLoop(
            fleet,
            operator,
            clock=clock,
            hook=metrics,
            command=leadership,
            found=FindingsBook(state, leadership, clock),
            by=build_long_loop(settings, catalog, Controls(fleet, state, leadership, clock)),
        ),
        limits=build_limits(store, clock),
        stored=StoredResponses(clock, shared=store.origins),
        started_at=clock.now(),
        clock=clock,
        metrics=metrics,
        access=access,
        workers=Workers(seat, metrics, config, clock, log),
        catalog=catalog,
        connector=_choose_connector(settings),
        fleet=fleet,
        links=links,
        operator=operator,
        store=store,
        index=index,
        foresight=foresight,
        truth=TruthWatch(metrics, index, foresight.history),
        tenants=TenantBook(build_tenants(settings), secret=secret),
        admission=Admission(
            fleet,
            _decode_slots(catalog),
            source=slots or OwnSlots(fleet),
            clock=clock,
            hook=metrics,
            rules=_admission_rules(settings),
            timeout=settings.admission.queue_timeout_seconds,
        ),
        slots=slots,
        binding=LateBinding(
            fleet,
            links,
            PrefillPlaces(
                fleet,
                places or OwnSlots(fleet),
                concurrency=settings.scheduler.slack.prefill_concurrency,
            ),
            clock=clock,
            hook=metrics,
            rules=_binding_rules(settings),
            is_on=lambda: operator.policy is Rule.SLACK,
        ),
        places=places,
        bookings=_share_links(store, links),
        log=log,
        engines=engines,
        pools=PoolBook(fleet, build_pools(settings, engines, clock)),
        tokenizers=load_tokenizers(settings),
        draining=asyncio.Event(),
        new_id=RandomIds(),
    )


def renew_core(core: Core, loaded: Loaded, secret: bytes) -> Core:
    """Return the state as it will be by another configuration. Raises CompositionError.

    What lives on is shared with `core`, and not touched. Pools and tokenizers that are described as
    before are kept.
    """
    settings = loaded.settings
    return replace(
        core,
        settings=settings,
        secret=secret,
        catalog=build_catalog(loaded),
        connector=_choose_connector(settings),
        tenants=TenantBook(build_tenants(settings), secret=secret),
        pools=PoolBook(core.fleet, _renew_pools(core, settings)),
        tokenizers=renew_tokenizers(core.tokenizers, core.settings, settings),
    )


def _renew_pools(core: Core, settings: Settings) -> dict[tuple[str, str], PrefixPool]:
    pools = build_pools(settings, core.engines, core.clock)
    old, new = _pooled(core.settings), _pooled(settings)
    for key, known in core.pools.pools.items():
        if key in pools and old[key] == new[key]:
            pools[key] = known
    return pools


def _pooled(settings: Settings) -> dict[tuple[str, str], tuple[object, object]]:
    """Return what each pool is made of."""
    return {
        (cluster.name, model.name): (cluster.pool, model)
        for cluster in settings.clusters
        for model in settings.models
    }


def put_in_force(core: Core, topology: Topology) -> None:
    """Let what lives on go by the settings of `core`, but for who belongs to the fleet."""
    settings = core.settings
    core.layouts.settings = settings
    core.fleet.reconfigure(topology.clusters, rules=_fleet_rules(settings))
    core.links.reconfigure(
        topology.links,
        bounds=_regime_bounds(settings),
        budget=settings.scheduler.link_budget_seconds,
        mode=BandwidthMode(settings.scheduler.bandwidth.mode),
        infers=settings.scheduler.bandwidth.infer,
        overlap=settings.transfer.layerwise_overlap,
    )
    core.operator.rules = _threshold_rules(settings)
    core.operator.configured_policy = Rule(settings.scheduler.policy)
    core.thresholds.reconfigure(
        core.catalog.models,
        rules=_step_rules(settings),
        period=settings.scheduler.short_loop.period_seconds,
    )
    controls = Controls(core.fleet, core.state, core.leadership, core.clock)
    core.balance.reconfigure(build_long_loop(settings, core.catalog, controls))
    core.admission.reconfigure(
        _decode_slots(core.catalog),
        rules=_admission_rules(settings),
        timeout=settings.admission.queue_timeout_seconds,
    )
    core.log.resize(settings.admin.decision_log_size)
    core.binding.reconfigure(_binding_rules(settings))
    watch(core)


def watch(core: Core) -> None:
    """Have the gauges read from `core`."""
    core.metrics.watch(
        LiveState(
            core.fleet,
            core.links,
            core.operator,
            core.catalog,
            core.clock,
            core.admission,
            core.binding,
            core.tenants,
            core.lengths,
            core.leadership,
            lambda: core.store.is_up,
        )
    )


def _threshold_rules(settings: Settings) -> ThresholdRules:
    threshold = settings.scheduler.threshold
    return ThresholdRules(
        threshold.mode, threshold.tokens, threshold.min_tokens, threshold.max_tokens
    )


def _step_rules(settings: Settings) -> StepRules:
    scheduler = settings.scheduler
    return StepRules(
        low=scheduler.threshold.min_tokens,
        high=scheduler.threshold.max_tokens,
        dwell=scheduler.short_loop.dwell_seconds,
    )


def _regime_bounds(settings: Settings) -> RegimeBounds:
    bandwidth = settings.scheduler.bandwidth
    return RegimeBounds(bandwidth.scarce_above, bandwidth.abundant_below)


def _share_slots(store: Store, fleet: Fleet) -> SharedSlots | None:
    """Return how decode slots are shared, where there are others to share them with."""
    if store.common is None:
        return None
    common = store.common
    shares = RedisShares(common.store, common.keys.slots, common.owner)
    return SharedSlots(fleet, shares, me=common.owner)


def _share_places(store: Store, fleet: Fleet) -> SharedSlots | None:
    """Return how prefill instances' time is shared, where there are others to share it with."""
    if store.common is None:
        return None
    common = store.common
    shares = RedisShares(common.store, common.keys.places, common.owner)
    return SharedSlots(fleet, shares, me=common.owner, alone_after=LEASE_SECONDS)


def _share_links(store: Store, links: LinkBoard) -> SharedRoom | None:
    """Return how links' bytes are shared, where there are others to share them with."""
    if store.common is None:
        return None
    common = store.common
    bookings = RedisBookings(common.store, common.keys, common.owner)
    return SharedRoom(bookings, links.limit, heard=links.hear_of_bookings)


def _decode_slots(catalog: ModelCatalog) -> Mapping[str, int | None]:
    return {model.name: model.decode_slots for model in catalog.models}


def _admission_rules(settings: Settings) -> AdmissionRules:
    admission = settings.admission
    # Half of the time for priorities, half for everybody: nobody times out for them alone.
    return AdmissionRules(admission.queue_size, patience=admission.queue_timeout_seconds / 2)


def _binding_rules(settings: Settings) -> BindingRules:
    slack = settings.scheduler.slack
    return BindingRules(
        slack=SlackRules(
            aging=slack.aging_seconds,
            stretch=slack.stretch,
            queue_size=slack.queue_size,
            promise=Promise(slack.promise_factor, slack.promise_seconds),
        ),
        concurrency=slack.prefill_concurrency,
        timeout=settings.admission.queue_timeout_seconds,
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
