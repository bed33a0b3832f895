"""The metrics of one engine under vLLM's names (ENGINE-FACTS 4.5), in a registry of its own."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5)
_LONG_SECONDS = (*_SECONDS, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5)
_BYTES = tuple(float(2 ** (10 + 2 * power)) for power in range(14))

LOCAL_COMPUTE, LOCAL_HIT, EXTERNAL = "local_compute", "local_cache_hit", "external_kv_transfer"
"""Where a prompt token's KV came from: the values of `prompt_tokens_by_source`."""


class EngineMetrics:
    """Counters, gauges and histograms of one incarnation of an engine.

    Gauges are set when they are read (`render`); everything else is counted when it happens.
    Durations are in simulated seconds, so that a time scale does not change them.
    """

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model, "engine": "0"}
        self.running = self._gauge("num_requests_running", "Requests in execution batches.")
        self.waiting = self._gauge("num_requests_waiting", "Requests waiting to be processed.")
        waiting = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Waiting requests by reason: capacity, or deferred for remote KV.",
            ["model_name", "engine", "reason"],
            registry=self._registry,
        )
        self.waiting_capacity = waiting.labels(**self._labels, reason="capacity")
        self.waiting_deferred = waiting.labels(**self._labels, reason="deferred")
        self.cache_usage = self._gauge("kv_cache_usage_perc", "KV-cache usage; 1 is full.")
        self.cache_queries = self._counter("prefix_cache_queries", "Prompt tokens looked up.")
        self.cache_hits = self._counter("prefix_cache_hits", "Prompt tokens found.")
        self.external_queries = self._counter(
            "external_prefix_cache_queries", "Prompt tokens asked of the connector."
        )
        self.external_hits = self._counter(
            "external_prefix_cache_hits", "Prompt tokens that the connector delivered."
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prefill tokens processed.")
        by_source = Counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by the source of their KV.",
            ["model_name", "engine", "source"],
            registry=self._registry,
        )
        self.by_source = {
            source: by_source.labels(**self._labels, source=source)
            for source in (LOCAL_COMPUTE, LOCAL_HIT, EXTERNAL)
        }
        self.generated = self._counter("generation_tokens", "Generation tokens processed.")
        self.preemptions = self._counter("num_preemptions", "Preemptions; this engine has none.")
        finished = Counter(
            "vllm:request_success",
            "Requests by reason of their end.",
            ["model_name", "engine", "finished_reason"],
            registry=self._registry,
        )
        self.finished = {
            reason: finished.labels(**self._labels, finished_reason=reason)
            for reason in ("stop", "length", "abort", "error")
        }
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token.", _LONG_SECONDS
        )
        self.queued = self._histogram(
            "request_queue_time_seconds", "Time in the WAITING phase.", _LONG_SECONDS
        )
        self.prefill = self._histogram(
            "request_prefill_time_seconds", "Time in the PREFILL phase.", _LONG_SECONDS
        )
        self.prompt_lengths = self._histogram(
            "request_prompt_tokens", "Prefill tokens per request.", _TOKENS
        )
        self.computed = self._histogram(
            "request_prefill_kv_computed_tokens", "New KV tokens computed in prefill.", _TOKENS
        )
        self.transfer_seconds = self._histogram(
            "nixl_xfer_time_seconds", "Duration of a KV transfer, at the reader.", _LONG_SECONDS
        )
        self.transfer_bytes = self._histogram(
            "nixl_bytes_transferred", "Bytes of a KV transfer, at the reader.", _BYTES
        )
        self.failed_transfers = self._counter("nixl_num_failed_transfers", "Failed KV transfers.")
        self.expired = self._counter("nixl_num_kv_expired_reqs", "Hand-offs whose lease ended.")

    def count_prompt(self, *, computed: int, hit: int, external: int) -> None:
        """Count one prompt's tokens by the source of their KV."""
        self.by_source[LOCAL_COMPUTE].inc(computed)
        self.by_source[LOCAL_HIT].inc(hit)
        self.by_source[EXTERNAL].inc(external)
        self.prompt_tokens.inc(computed + hit + external)
        self.prompt_lengths.observe(computed + hit + external)
        self.computed.observe(computed)

    def render(self) -> bytes:
        """Return the exposition text."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(f"vllm:{name}", text, ["model_name", "engine"], registry=self._registry)
        return gauge.labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"vllm:{name}", text, ["model_name", "engine"], registry=self._registry)
        return counter.labels(**self._labels)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(
            f"vllm:{name}",
            text,
            ["model_name", "engine"],
            registry=self._registry,
            buckets=buckets,
        )
        return histogram.labels(**self._labels)
