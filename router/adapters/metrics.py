"""Prometheus metrics (DESIGN 11). Everything observed passes through hooks; gauges are read live.

Label sets are bounded: names come from the configuration and the admin API, everything a client
can invent is told as `other`. No key, salt or prompt is in any label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from kvmeta.backends.breakers import BreakerState
from kvmeta.types import SourceId, SourceReport, SourceState
from router.control.links import (
    fresh_telemetry,
    is_up,
    usable_bandwidth,
    utilization,
)
from router.domain.decision import Decision, Placement, Route, TokenSource
from router.domain.topology import ClusterKind
from router.domain.units import Bytes, Seconds
from router.ports import Clock
from router.service.admission import Admission
from router.service.decisions import DecisionRecord
from router.service.fleet import Fleet
from router.service.links import LinkBoard
from router.service.models import ModelCatalog
from router.service.operator import Operator
from router.service.relay_ports import FailureKind, Fallback, KvOutcome, Leg, Usage
from router.service.tenants import TenantBook

_TOKEN_BUCKETS = tuple(float(1 << power) for power in range(7, 19))
"""128 to 262,144 tokens: the paper's workload is cut at 128 and 128K."""

_SECONDS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
"""From a small model's first token to a long prompt's wait behind others."""

_TOKEN_SECONDS_BUCKETS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2)
"""Around the paper's SLO of 40 tokens a second (0.025 s)."""

_LOOKUP_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Up to and over the look-up budget of 20 ms."""

_QUEUE_BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0)
"""The first tells of no queue at all; up to and over the usual time-out of 60 s."""

OTHER = "other"


@dataclass(frozen=True, slots=True)
class LiveState:
    """What the gauges are read from at each scrape."""

    fleet: Fleet
    links: LinkBoard
    operator: Operator
    catalog: ModelCatalog
    clock: Clock
    admission: Admission
    tenants: TenantBook


class PrometheusMetrics:
    """Implements the decision, queue, relay, request and ingest hooks; renders the exposition."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.store_is_up = True

        def counter(name: str, what: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"prfaas_{name}", what, labels, registry=self.registry)

        def histogram(
            name: str, what: str, buckets: Sequence[float], labels: Sequence[str] = ()
        ) -> Histogram:
            return Histogram(
                f"prfaas_{name}", what, labels, buckets=buckets, registry=self.registry
            )

        self._requests = counter("requests_total", "Answered requests", ("route", "reason", "code"))
        self._decisions = counter("decisions_total", "Decisions", ("route", "reason", "regime"))
        self._uncached = histogram(
            "uncached_tokens", "Tokens compared with t", _TOKEN_BUCKETS, ("route",)
        )
        self._prompt_tokens = counter("prompt_tokens_total", "Prompt tokens of decided requests")
        self._estimated = counter(
            "prompts_estimated_total", "Decided requests whose tokens nobody could list"
        )
        self._cached_tokens = counter(
            "cached_tokens_total", "Prompt tokens believed cached where computed", ("cluster",)
        )
        self._first_byte = histogram(
            "time_to_first_token_seconds",
            "From the request to the answer's first body byte",
            _SECONDS_BUCKETS,
            ("route",),
        )
        self._per_token = histogram(
            "time_per_output_token_seconds",
            "Between output tokens of a stream",
            _TOKEN_SECONDS_BUCKETS,
            ("route",),
        )
        self._duration = histogram(
            "request_duration_seconds",
            "From the request to the answer's end",
            _SECONDS_BUCKETS,
            ("route",),
        )
        self._lookup = histogram(
            "index_lookup_seconds", "Look-ups in the KV-metadata index", _LOOKUP_BUCKETS
        )
        self._queued = histogram(
            "queue_seconds",
            "From counted to admitted, or turned away; 0 where a decode slot was free",
            _QUEUE_BUCKETS,
            ("tenant",),
        )
        self._truth = counter(
            "index_truth_total",
            "Beliefs compared with what the engine reported; over: believed more than was there,"
            " missed: only guessed so",
            ("instance", "rank", "outcome"),
        )
        self._events = counter("index_events_total", "KV events applied", ("type",))
        self._event_errors = counter(
            "index_event_errors_total", "KV events that could not be applied", ("cause",)
        )
        self._fallbacks = counter(
            "fallbacks_total", "Requests that left their decided course", ("reason",)
        )
        self._upstream_errors = counter(
            "upstream_errors_total", "Failed calls to engines", ("instance", "kind")
        )
        self._kv_bytes = counter(
            "kv_bytes_total", "Bytes of hand-offs over links by outcome", ("outcome",)
        )
        self._drift = counter(
            "tokenizer_drift_total", "Requests whose engine counted other prompt tokens than we"
        )
        for outcome in KvOutcome:
            self._kv_bytes.labels(outcome)
        for fallback in Fallback:
            self._fallbacks.labels(fallback)

    # -- decisions ---------------------------------------------------------------------------

    def decided(self, record: DecisionRecord) -> None:
        """Count a decision that a request follows."""
        decision, total = record.decision, record.snapshot.request.total_tokens
        self._decisions.labels(decision.route, decision.reason, decision.regime).inc()
        self._uncached.labels(decision.route).observe(decision.uncached_tokens)
        self._prompt_tokens.inc(total)
        if record.snapshot.request.token_source is TokenSource.ESTIMATE:
            self._estimated.inc()
        computing = decision.prefill or decision.decode
        self._cached_tokens.labels(computing.cluster).inc(total - decision.compute_uncached_tokens)

    def looked_up(self, elapsed: Seconds, *, timed_out: bool) -> None:  # noqa: ARG002 - part of the hook
        """Time a look-up."""
        self._lookup.observe(elapsed)

    def waited(self, tenant: str, elapsed: Seconds) -> None:
        """Time a wait for a decode slot."""
        self._queued.labels(tenant).observe(elapsed)

    # -- the relay ---------------------------------------------------------------------------

    def fell_back(self, decision: Decision, fallback: Fallback) -> None:  # noqa: ARG002 - part of the hook
        """Count a change of course."""
        self._fallbacks.labels(fallback).inc()

    def upstream_failed(self, instance: str, leg: Leg, kind: FailureKind) -> None:  # noqa: ARG002 - part of the hook
        """Count a failed call."""
        self._upstream_errors.labels(instance, kind).inc()

    def prefill_answered(self, placement: Placement, usage: Usage) -> None:
        """Compare what the index believed with what the engine found (DESIGN 6, Truth)."""
        believed, found = placement.cached_tokens, usage.cached_tokens
        if believed is None or found is None:
            return
        guessed = placement.cache_state is SourceState.APPROXIMATE
        over = "missed" if guessed else "over"
        outcome = "exact" if believed == found else over if believed > found else "under"
        rank = str(placement.rank or 0)
        self._truth.labels(placement.instance, rank, outcome).inc()

    def kv_shipped(self, decision: Decision, size: Bytes, outcome: KvOutcome) -> None:
        """Count a hand-off's bytes that crossed a link."""
        if decision.route is Route.PRFAAS:
            self._kv_bytes.labels(outcome).inc(size)

    def first_byte(self, decision: Decision, elapsed: Seconds) -> None:
        """Time to the first token."""
        self._first_byte.labels(decision.route).observe(elapsed)

    def answered(
        self, decision: Decision, usage: Usage | None, content_events: int, *, complete: bool
    ) -> None:
        """Take note of an answer's end; the request's own counts are in `request_finished`."""

    # -- requests ----------------------------------------------------------------------------

    def request_finished(self, decision: Decision | None, status: int, elapsed: Seconds) -> None:
        """Count an answered request; one without a decision has route and reason `none`."""
        if decision is None:
            self._requests.labels("none", "none", str(status)).inc()
            return
        self._requests.labels(decision.route, decision.reason, str(status)).inc()
        self._duration.labels(decision.route).observe(elapsed)

    def output_paced(self, decision: Decision, seconds_per_token: Seconds) -> None:
        """Time between a stream's tokens."""
        self._per_token.labels(decision.route).observe(seconds_per_token)

    def drifted(self) -> None:
        """Count a request whose prompt the engine counted differently."""
        self._drift.inc()

    # -- the index ---------------------------------------------------------------------------

    def events_applied(self, source: SourceId, kind: str, count: int) -> None:  # noqa: ARG002 - part of the hook
        """Count KV events applied."""
        self._events.labels(kind).inc(count)

    def error(self, source: SourceId, cause: str) -> None:  # noqa: ARG002 - part of the hook
        """Count a KV event that could not be applied, or was lost."""
        self._event_errors.labels(cause).inc()

    def state_changed(self, source: SourceId, state: SourceState) -> None:
        """Told of new epochs; the state itself is a gauge."""

    def lag(self, source: SourceId, seconds: float) -> None:
        """Told of an event's age; hosts' clocks differ, so it is not exported."""

    def store_changed(self, state: BreakerState) -> None:
        """Note whether look-ups reach the store."""
        self.store_is_up = state is BreakerState.CLOSED

    # -- exposition --------------------------------------------------------------------------

    def watch(self, live: LiveState) -> None:
        """Read gauges from `live` at every scrape. Call once."""
        self.registry.register(_LiveGauges(live, lambda: self.store_is_up))

    def render(self, sources: Iterable[SourceReport]) -> bytes:
        """Return the text exposition, with the index's sources as they are now."""
        scrape = CollectorRegistry()
        scrape.register(_Once(lambda: _source_gauges(sources)))
        return generate_latest(_Plain(self.registry)) + generate_latest(_Plain(scrape))


class _Plain(Collector):
    """A registry without the `_created` series, which double every counter and tell nobody."""

    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [
                sample for sample in family.samples if not sample.name.endswith("_created")
            ]
            yield family


class _Once(Collector):
    """A collector over one reading."""

    def __init__(self, read: Callable[[], Iterator[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        return self._read()


def _source_gauges(sources: Iterable[SourceReport]) -> Iterator[Metric]:
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


class _LiveGauges(Collector):
    """Gauges computed from live state, so that they are true counts and never drift (CASES R09)."""

    def __init__(self, live: LiveState, store_is_up: Callable[[], bool]) -> None:
        self._live = live
        self._store_is_up = store_is_up

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before the first scrape; this keeps registration from collecting."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._links()
        yield from self._instances()
        yield from self._thresholds()
        yield from self._queue()
        up = float(self._store_is_up())
        yield GaugeMetricFamily("prfaas_store_up", "Whether the store answers", value=up)

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
        turns = CounterMetricFamily(
            "prfaas_instance_transitions_total", "Changes of health", labels=labels
        )
        fleet = self._live.fleet
        for member in fleet.members:
            name = [member.instance.name, member.instance.role]
            up.add_metric(name, float(fleet.is_ready(member)))
            inflight.add_metric(name, member.inflight)
            breaker.add_metric(name, float(fleet.breaker_is_open(member)))
            turns.add_metric(name, member.transitions)
            depth = fleet.queue_depth(member)
            if depth is not None:
                queue.add_metric(name, depth)
        yield from (up, inflight, queue, breaker, turns)

    def _queue(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "prfaas_queue_depth", "Requests that wait for a decode slot", labels=["tenant"]
        )
        for tenant in sorted(self._live.tenants.names):
            depth.add_metric([tenant], self._live.admission.depth(tenant))
        yield depth

    def _thresholds(self) -> Iterator[Metric]:
        tokens = GaugeMetricFamily(
            "prfaas_threshold_tokens", "t in force", labels=["model", "prfaas", "pd"]
        )
        kinds = {cluster.name: cluster.kind for cluster in self._live.fleet.clusters}
        for model in self._live.catalog.models:
            for state in self._live.links.states:
                source, target = state.link.source, state.link.target
                if kinds.get(source) is ClusterKind.PRFAAS and kinds.get(target) is ClusterKind.PD:
                    view = self._live.operator.threshold(model.name, source, target)
                    tokens.add_metric([model.name, source, target], view.tokens)
        yield tokens
