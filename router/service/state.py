"""The documents in which live state is shown: instances, links, thresholds, sources."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from kvmeta.index import MetadataIndex
from kvmeta.types import SourceReport
from router.control.links import (
    LinkState,
    bandwidth_source,
    is_up,
    usable_bandwidth,
    utilization,
)
from router.domain.decision import ThresholdMode
from router.domain.topology import ClusterKind
from router.domain.units import Seconds, Tokens, to_gbps
from router.ports import Clock
from router.service.admission import Admission
from router.service.balance import BalanceLoop
from router.service.balance_documents import (
    describe_findings,
    describe_progress,
    describe_proposal,
)
from router.service.config_record import ConfigRecord
from router.service.decisions import Document
from router.service.fleet import Fleet
from router.service.late_binding import LateBinding
from router.service.leadership import Leadership
from router.service.links import LinkBoard
from router.service.members import Member
from router.service.models import ModelCatalog, ServedModel
from router.service.operator import Operator
from router.service.order_book import OrderBook
from router.service.orders import OverrideOrder, PairScope
from router.service.pools import PoolBook
from router.service.tenants import TenantBook


class StateReport:
    """Reads the live state into JSON documents, with ages. Keys, salts and prompts are in none."""

    def __init__(
        self,
        *,
        leadership: Leadership,
        describe_solved: Callable[[], Document],
        fleet: Fleet,
        links: LinkBoard,
        operator: Operator,
        catalog: ModelCatalog,
        index: MetadataIndex,
        pools: PoolBook,
        admission: Admission,
        binding: LateBinding,
        tenants: TenantBook,
        clock: Clock,
        store: str,
        store_is_up: Callable[[], bool],
        describe_workers: Callable[[], Awaitable[Document]],
        tokenizers: Mapping[str, Callable[[], Document]],
        config: ConfigRecord,
        balance: BalanceLoop,
        orders: OrderBook,
    ) -> None:
        """`store` names the kind of store, without credentials.

        `describe_solved` tells who solved the thresholds that are in force.

        `describe_workers` tells which process answers, and which others the gateway has;
        `tokenizers` tell, by model, how prompts are counted in process.
        """
        self._config = config
        self._leadership = leadership
        self._describe_solved = describe_solved
        self._describe_workers = describe_workers
        self._fleet = fleet
        self._links = links
        self._operator = operator
        self._catalog = catalog
        self._index = index
        self._pools = pools
        self._admission = admission
        self._binding = binding
        self._tenants = tenants
        self._clock = clock
        self._store = store
        self._store_is_up = store_is_up
        self._tokenizers = tokenizers
        self._balance = balance
        self._orders = orders

    async def whole(self) -> Document:
        """Return everything in one document."""
        return {
            "at": self._clock.now().isoformat(),
            **await self._describe_workers(),
            "config": self._config.describe(),
            "leader": self._leadership.describe(),
            "store": {"kind": self._store, "up": self._store_is_up()},
            "models": [self._model(model) for model in self._catalog.models],
            "clusters": [
                {"name": cluster.name, "kind": cluster.kind} for cluster in self._fleet.clusters
            ],
            "instances": self.instances(),
            "links": self.links(),
            "policy": self.policy(),
            "thresholds": self.pair_thresholds(),
            "solved": self._describe_solved(),
            **self.conversion(),
            "queue": self._admission.describe(self._tenants.names),
            "prefill_queue": self._binding.describe(),
            "overrides": [self.override(order) for order in self._operator.overrides],
            "index": {"sources": [source(report) for report in await self._index.describe()]},
            "pools": self.pools(),
        }

    def conversion(self) -> Document:
        """Return what the long loop found, and how far the latest conversion is."""
        return {
            "balance": describe_findings(self._balance.findings, self._balance.found_at),
            "conversion": describe_progress(self._orders.orders.conversion),
        }

    def proposal(self, model: str, pd: str) -> Document | None:
        """Return the conversion that the long loop proposes, None where it proposes none."""
        proposal = self._balance.proposal(model, pd)
        return None if proposal is None else describe_proposal(proposal)

    def pools(self) -> list[Document]:
        """Return how every shared pool does; null where none was asked yet."""
        return [
            {
                "cluster": cluster,
                "model": model,
                "answering": status.answering,
                "age_seconds": None
                if status.answered_at is None
                else self._age(status.answered_at),
            }
            for (cluster, model), status in self._pools.statuses.items()
        ]

    def instances(self) -> list[Document]:
        """Return every instance."""
        return [self.instance(member) for member in self._fleet.members]

    def instance(self, member: Member) -> Document:
        """Return one instance; readings that are too old are null, with their age beside them."""
        instance = member.instance
        reading = member.reading
        fresh = self._fleet.fresh_reading(member)
        return {
            "name": instance.name,
            "cluster": instance.cluster,
            "url": instance.url,
            "role": instance.role,
            "model": instance.model,
            "state": member.state,
            "alive": member.health.alive,
            "ready": self._fleet.is_ready(member),
            "breaker_open": self._fleet.breaker_is_open(member),
            "inflight": member.inflight,
            "peers_inflight": member.peers.inflight,
            "prefills_inflight": len(member.prefills),
            "decodes_inflight": member.decodes,
            "decode_slots_held": self._admission.held(instance.name),
            "decode_slots_used": self._admission.used(member),
            "queue_depth": self._fleet.queue_depth(member),
            "running": fresh.running if fresh else None,
            "kv_usage": fresh.kv_usage if fresh else None,
            "received_kv_bytes": fresh.transferred_bytes if fresh else None,
            "receive_seconds": fresh.transfer_seconds if fresh else None,
            "signal_age_seconds": self._age(reading.at) if reading else None,
            "transitions": member.transitions,
            "compatibility": instance.compatibility,
            "kv_events": instance.kv_events,
        }

    def links(self) -> list[Document]:
        """Return every link."""
        return [self.link(state) for state in self._links.states]

    def link(self, state: LinkState) -> Document:
        """Return one link, in Gbit/s as operators think of links."""
        now = self._clock.monotonic()
        view = self._links.view(state.link.name)
        report = state.telemetry
        return {
            "name": state.link.name,
            "from": state.link.source,
            "to": state.link.target,
            "up": is_up(state, now),
            "health": state.health,
            "capacity_gbps": to_gbps(state.nominal),
            "configured_capacity_gbps": to_gbps(state.link.capacity),
            "usable_gbps": to_gbps(usable_bandwidth(state, now)),
            "usable_source": bandwidth_source(state, now),
            "inferred": None
            if state.inferred is None
            else {
                "available_gbps": to_gbps(state.inferred.rate),
                "age_seconds": self._age(state.inferred.measured_at),
            },
            "utilization": utilization(state, now),
            "regime": view.regime,
            "bandwidth_mode": state.mode,
            "inflight_bytes": state.booked,
            "peers_inflight_bytes": state.peers_booked,
            "free_bytes": view.free,
            "telemetry": None
            if report is None
            else {
                "egress_gbps": to_gbps(report.egress),
                "available_gbps": None if report.available is None else to_gbps(report.available),
                "loss_ratio": report.loss_ratio,
                "retransmit_ratio": report.retransmit_ratio,
                "rtt_ms": None if report.rtt is None else report.rtt * 1000,
                "age_seconds": self._age(report.observed_at),
                "required": state.link.telemetry_required,
                "max_age_seconds": state.link.telemetry_max_age,
            },
        }

    def threshold(self, scope: PairScope) -> Document:
        """Return the threshold of a scope: as ordered for all of it, else as configured."""
        rules = self._operator.rules
        order = self._operator.threshold_order(scope)
        mode = order.mode if order else rules.mode
        tokens = order.tokens if order and order.tokens is not None else rules.tokens
        pairs = self.pair_thresholds(scope)
        solved = _common([pair["solved_tokens"] for pair in pairs])
        effective = solved if mode is ThresholdMode.AUTO and solved is not None else tokens
        return {
            "mode": mode,
            "tokens": tokens,
            "effective_tokens": effective,
            "solved_tokens": solved,
            "bounds": {"min_tokens": rules.low, "max_tokens": rules.high},
            "source": "operator" if order else "config",
            "updated_at": order.updated_at.isoformat() if order else None,
            "updated_by": order.updated_by if order else None,
            "scope": {"model": scope.model, "prfaas": scope.prfaas, "pd": scope.pd},
            "pairs": pairs,
        }

    def policy(self) -> Document:
        """Return the rule in force, and who chose it."""
        order = self._operator.policy_order
        return {
            "policy": self._operator.policy,
            "configured": self._operator.configured_policy,
            "source": "operator" if order else "config",
            "updated_at": order.updated_at.isoformat() if order else None,
            "updated_by": order.updated_by if order else None,
        }

    def pair_thresholds(self, scope: PairScope | None = None) -> list[Document]:
        """Return what is in force for every pair of clusters, of a scope if one is given."""
        scope = scope or PairScope()
        return [
            {
                "model": model.name,
                "prfaas": link.link.source,
                "pd": link.link.target,
                "mode": view.mode,
                "effective_tokens": view.tokens,
                "solved_tokens": self._solved(model.name, link.link.target),
            }
            for model in self._catalog.models
            for link in self._links.states
            if self._is_pair(link.link.source, link.link.target)
            if scope.contains(PairScope(model.name, link.link.source, link.link.target))
            for view in [self._operator.threshold(model.name, link.link.source, link.link.target)]
        ]

    def bandwidth(self, name: str | None) -> Document:
        """Return the regimes, of all links or of one. Raises NotFound."""
        states = [self._links.state(name)] if name is not None else list(self._links.states)
        modes = {state.mode for state in states}
        return {
            "mode": modes.pop() if len(modes) == 1 else None,
            "links": [
                {
                    "name": state.link.name,
                    "mode": state.mode,
                    "regime": self._links.view(state.link.name).regime,
                    "utilization": utilization(state, self._clock.monotonic()),
                }
                for state in states
            ],
        }

    def override(self, order: OverrideOrder) -> Document:
        """Return one override with what is left of its time."""
        expires = order.expires_at
        left = None if expires is None else (expires - self._clock.now()).total_seconds()
        return {
            "route": order.route,
            "model": order.model,
            "tenant": order.tenant,
            "ttl_seconds": left,
            "expires_at": expires.isoformat() if expires else None,
            "updated_at": order.updated_at.isoformat(),
            "updated_by": order.updated_by,
        }

    def _solved(self, model: str, pd: str) -> Tokens | None:
        in_force = self._operator.solved.of(model, pd)
        return None if in_force is None else in_force.tokens

    def _is_pair(self, source: str, target: str) -> bool:
        kinds = {cluster.name: cluster.kind for cluster in self._fleet.clusters}
        return kinds.get(source) is ClusterKind.PRFAAS and kinds.get(target) is ClusterKind.PD

    def _model(self, model: ServedModel) -> Document:
        in_process = self._tokenizers.get(model.name)
        return {
            "name": model.name,
            "aliases": sorted(model.aliases),
            "loras": sorted(model.loras),
            "block_size": model.layout.block_size,
            "groups": [group.kind for group in model.layout.groups],
            "profiled": sorted(model.profiles),
            "tokenizer": {"kind": model.tokenizer, **(in_process() if in_process else {})},
        }

    def _age(self, at: Seconds) -> Seconds:
        return max(0.0, self._clock.monotonic() - at)


def source(report: SourceReport) -> Document:
    """Return one source of KV events."""
    return {
        "instance": report.source.instance,
        "rank": report.source.rank,
        "state": report.state,
        "epoch": report.epoch,
        "blocks": report.blocks,
        "next_sequence": report.next_sequence,
        "age_seconds": report.age_seconds,
        "errors": report.errors,
    }


def _common(values: Iterable[object]) -> object:
    """Return the value that all have, None where they differ or there are none."""
    different = set(values)
    return different.pop() if len(different) == 1 else None
