"""Gauges that are read from live state at each scrape, so that they are true counts (CASES R09)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from kvmeta.types import SourceReport, SourceState
from router.adapters.model_gauges import ModelGauges
from router.control.links import (
    fresh_telemetry,
    is_up,
    usable_bandwidth,
    utilization,
)
from router.domain.topology import ClusterKind
from router.ports import Clock
from router.service.admission import Admission
from router.service.fleet import Fleet
from router.service.late_binding import LateBinding
from router.service.leadership import Leadership
from router.service.lengths import OperatingLengths
from router.service.links import LinkBoard
from router.service.models import ModelCatalog
from router.service.operator import Operator
from router.service.tenants import TenantBook


@dataclass(frozen=True, slots=True)
class LiveState:
    """What the gauges are read from at each scrape."""

    fleet: Fleet
    links: LinkBoard
    operator: Operator
    catalog: ModelCatalog
    clock: Clock
    admission: Admission
    binding: LateBinding
    tenants: TenantBook
    lengths: OperatingLengths
    leadership: Leadership
    store_is_up: Callable[[], bool]


class LiveGauges:
    """Gauges computed from live state: they never drift."""

    def __init__(self, live: LiveState) -> None:
        self._live = live
        self._model = ModelGauges(live.operator, live.catalog, live.lengths)

    def collect(self) -> Iterator[Metric]:
        """Read everything now."""
        yield from self._links()
        yield from self._instances()
        yield from self._thresholds()
        yield from self._model.collect()
        yield from self._queue()
        yield self._prefill_queue()
        yield from self._controller()
        up = float(self._live.store_is_up())
        yield GaugeMetricFamily(
            "prfaas_store_up", "Whether the store answers whoever asks", value=up
        )

    def _prefill_queue(self) -> Metric:
        gauge = GaugeMetricFamily(
            "prfaas_prefill_queue_depth",
            "Under policy slack, prompts that wait for a prefill instance, by whose lane it is",
            labels=["cluster"],
        )
        for cluster, depth in self._live.binding.depths().items():
            gauge.add_metric([cluster], depth)
        return gauge

    def _links(self) -> Iterator[Metric]:
        def gauge(name: str, what: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"prfaas_link_{name}", what, labels=["link"])

        up = gauge("up", "Whether KV may be sent")
        capacity = gauge("capacity_bytes_per_second", "Nominal bandwidth")
        available = gauge("available_bytes_per_second", "Usable bandwidth")
        egress = gauge("egress_bytes_per_second", "Measured egress")
        used = gauge("utilization_ratio", "Measured egress over usable bandwidth")
        inflight = gauge("inflight_bytes", "Bytes of hand-offs booked now")
        now = self._live.clock.monotonic()
        for state in self._live.links.states:
            name = [state.link.name]
            up.add_metric(name, float(is_up(state, now)))
            capacity.add_metric(name, state.nominal)
            available.add_metric(name, usable_bandwidth(state, now))
            inflight.add_metric(name, state.booked)
            report = fresh_telemetry(state, now)
            ratio = utilization(state, now)
            if report is not None and ratio is not None:
                egress.add_metric(name, report.egress)
                used.add_metric(name, ratio)
        yield from (up, capacity, available, egress, used, inflight)

    def _instances(self) -> Iterator[Metric]:
        labels = ["instance", "role"]

        def gauge(name: str, what: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"prfaas_instance_{name}", what, labels=labels)

        up = gauge("up", "Whether new work may go there")
        inflight = gauge("inflight", "Legs of ours in flight")
        queue = gauge("queue_depth", "Requests waiting for capacity; absent when unknown")
        breaker = gauge("breaker_open", "Whether the breaker keeps work away")
        fleet = self._live.fleet
        for member in fleet.members:
            name = [member.instance.name, member.instance.role]
            up.add_metric(name, float(fleet.is_ready(member)))
            inflight.add_metric(name, member.inflight)
            breaker.add_metric(name, float(fleet.breaker_is_open(member)))
            depth = fleet.queue_depth(member)
            if depth is not None:
                queue.add_metric(name, depth)
        yield from (up, inflight, queue, breaker)

    def _queue(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "prfaas_queue_depth", "Requests that wait for a decode slot", labels=["tenant"]
        )
        for tenant in sorted(self._live.tenants.names):
            depth.add_metric([tenant], self._live.admission.depth(tenant))
        yield depth

    def _controller(self) -> Iterator[Metric]:
        leadership = self._live.leadership
        yield GaugeMetricFamily(
            "prfaas_controller_leader",
            "Whether this gateway solves thresholds and converts, for all that share its store",
            value=float(leadership.leads),
        )
        yield GaugeMetricFamily(
            "prfaas_controller_term",
            "Number of the leader's term: it rises with each new one",
            value=leadership.term,
        )

    def _thresholds(self) -> Iterator[Metric]:
        def gauge(name: str, what: str) -> GaugeMetricFamily:
            labels = ["model", "prfaas", "pd"]
            return GaugeMetricFamily(f"prfaas_threshold_{name}", what, labels=labels)

        tokens = gauge("tokens", "t in force")
        solved = gauge("solved_tokens", "t that `auto` solved; absent until there is one")
        at_bound = gauge("at_bound", "Whether that t is at one of the bounds of `auto`")
        operator = self._live.operator
        bounds = (operator.rules.low, operator.rules.high)
        kinds = {cluster.name: cluster.kind for cluster in self._live.fleet.clusters}
        for model in self._live.catalog.models:
            for state in self._live.links.states:
                source, target = state.link.source, state.link.target
                if kinds.get(source) is ClusterKind.PRFAAS and kinds.get(target) is ClusterKind.PD:
                    name = [model.name, source, target]
                    tokens.add_metric(name, operator.threshold(*name).tokens)
                    in_force = operator.solved.of(model.name, target)
                    if in_force is not None:
                        solved.add_metric(name, in_force.tokens)
                        at_bound.add_metric(name, float(in_force.tokens in bounds))
        yield from (tokens, solved, at_bound)


def source_gauges(sources: Iterable[SourceReport]) -> Iterator[Metric]:
    """Yield what the index says of its sources."""
    labels = ["instance", "rank"]
    blocks = GaugeMetricFamily("prfaas_index_blocks", "Blocks held by a source", labels=labels)
    states = GaugeMetricFamily(
        "prfaas_index_source_state",
        "1 for the state a source is in: how far what is known of it may be trusted",
        labels=[*labels, "state"],
    )
    ages = GaugeMetricFamily(
        "prfaas_index_source_age_seconds",
        "Since a source last proved that nothing was missed; absent where it never did",
        labels=labels,
    )
    for report in sources:
        name = [report.source.instance, str(report.source.rank)]
        blocks.add_metric(name, report.blocks)
        if report.age_seconds is not None:
            ages.add_metric(name, report.age_seconds)
        for state in SourceState:
            states.add_metric([*name, state], float(report.state is state))
    yield from (blocks, states, ages)
