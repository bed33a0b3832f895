"""Prometheus metrics (DESIGN 11). Everything observed passes through hooks; gauges are read live.

Label sets are bounded: names come from the configuration and the admin API, everything a client
can invent is told as `other`. No key, salt or prompt is in any label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvmeta.types import SourceId, SourceReport, SourceState
from router.adapters.across_workers import GaugeReading, merge_gauges
from router.adapters.live_gauges import LiveGauges, LiveState, source_gauges
from router.adapters.shared_counters import read_shared
from router.adapters.tallies import CountTable, DistributionTable
from router.domain.decision import Decision, Placement, Route, TokenSource
from router.domain.topology import Instance
from router.domain.units import Bytes, Seconds
from router.service.config_record import ReloadOutcome
from router.service.conversions import ConversionOutcome
from router.service.decisions import DecisionRecord
from router.service.late_binding import BindingOutcome
from router.service.relay_ports import FailureKind, Fallback, KvOutcome, Leg, Usage

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


class PrometheusMetrics:
    """Implements the decision, queue, relay, request and ingest hooks; renders the exposition."""

    def __init__(self, *, shared: Path | None = None) -> None:
        """`shared` is where the gateway's workers count together (`share_counters`)."""
        self.registry = CollectorRegistry()
        self._shared = shared
        self._live: LiveGauges | None = None

        def counter(name: str, what: str, labels: Sequence[str] = ()) -> CountTable | Counter:
            if shared is None:
                return CountTable(f"prfaas_{name}", what, labels, self.registry)
            return Counter(f"prfaas_{name}", what, labels, registry=self.registry)

        def histogram(
            name: str, what: str, buckets: Sequence[float], labels: Sequence[str] = ()
        ) -> DistributionTable | Histogram:
            if shared is None:
                return DistributionTable(f"prfaas_{name}", what, buckets, labels, self.registry)
            return Histogram(
                f"prfaas_{name}", what, labels, buckets=buckets, registry=self.registry
            )

        self._requests = counter("requests_total", "Answered requests", ("route", "reason", "code"))
        self._refused = counter(
            "refused_connections_total", "Refused before they were requests", ("cause",)
        )
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
        self._bound = histogram(
            "prefill_queue_seconds",
            "Under policy slack, from waiting for a prefill instance to the end of the wait",
            _QUEUE_BUCKETS,
            ("outcome",),
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
        self._transitions = counter(
            "instance_transitions_total", "Changes of health", ("instance", "role")
        )
        self._reloads = counter(
            "config_reloads_total", "Changed configurations, taken over or not", ("outcome",)
        )
        self._conversions = counter(
            "conversions_total", "Conversions between prefill and decode, by outcome", ("outcome",)
        )
        for conversion in ConversionOutcome:
            self._conversions.labels(conversion)
        for reload in ReloadOutcome:
            self._reloads.labels(reload)
        for outcome in KvOutcome:
            self._kv_bytes.labels(outcome)
        for wait in BindingOutcome:
            self._bound.labels(wait)
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

    def bound(self, outcome: BindingOutcome, elapsed: Seconds) -> None:
        """Time a wait for a prefill instance."""
        self._bound.labels(outcome).observe(elapsed)

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

    def connection_refused(self, cause: str) -> None:
        """Count what was refused before it was a request."""
        self._refused.labels(cause).inc()

    def output_paced(self, decision: Decision, seconds_per_token: Seconds) -> None:
        """Time between a stream's tokens."""
        self._per_token.labels(decision.route).observe(seconds_per_token)

    def drifted(self) -> None:
        """Count a request whose prompt the engine counted differently."""
        self._drift.inc()

    # -- the configuration ------------------------------------------------------------------

    def reloaded(self, outcome: ReloadOutcome) -> None:
        """Count a changed configuration."""
        self._reloads.labels(outcome).inc()

    def converted(self, outcome: ConversionOutcome) -> None:
        """Count a proposal of the long loop, or the end of a conversion."""
        self._conversions.labels(outcome).inc()

    # -- the fleet ---------------------------------------------------------------------------

    def probed(self, instance: Instance, *, changed: bool) -> None:
        """Count a change of health; an instance's count is there from its first probe on."""
        self._transitions.labels(instance.name, instance.role).inc(int(changed))

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

    # -- exposition --------------------------------------------------------------------------

    def watch(self, live: LiveState) -> None:
        """Read gauges from `live` at every scrape from now on."""
        self._live = LiveGauges(live)

    def gauges(self) -> Iterator[Metric]:
        """Read this process's own gauges now."""
        return iter(()) if self._live is None else self._live.collect()

    def render(
        self, sources: Iterable[SourceReport], others: Sequence[Sequence[GaugeReading]] = ()
    ) -> bytes:
        """Return the text exposition, with the index's sources as they are now.

        `others` are the gauges of the gateway's other workers; their counts are in the shared
        directory.
        """
        counted = self.registry if self._shared is None else read_shared(self._shared)
        scrape = CollectorRegistry()
        scrape.register(
            _Once(lambda: chain(merge_gauges(self.gauges(), others), source_gauges(sources)))
        )
        return generate_latest(_Plain(counted)) + generate_latest(_Plain(scrape))


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
