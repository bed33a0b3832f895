"""How it decides and how it talks to engines: scheduler, kvmeta, transfer, upstream."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from router.domain.decision import ThresholdMode, UnknownMetadata
from router.settings.actuators import KubernetesSettings, SglangSettings, WebhookSettings
from router.settings.fields import (
    BandwidthMode,
    Count,
    Duration,
    FilePath,
    Name,
    PositiveCount,
    PositiveDuration,
    PositiveNumber,
    Ratio,
    Section,
    Text,
    TokenCount,
    incoherent,
)
from router.settings.serving import DEFAULT_MEDIA


class ThresholdSettings(Section):
    """The threshold t: a prompt with more uncached tokens is prefilled in a PrfaaS cluster."""

    mode: ThresholdMode = ThresholdMode.MANUAL
    """`manual` uses `tokens`, `auto` solves equation 7 of the paper, `off` offloads nothing."""
    tokens: TokenCount = 19400
    """t in tokens; 0 offloads everything. The paper's case study solves to 19.4K."""
    min_tokens: TokenCount = 512
    """Least t that `auto` may set: below it a hand-off costs more than the prefill it saves."""
    max_tokens: TokenCount = 131072
    """Greatest t that `auto` may set: 128K, the longest prompt of the paper's profiles."""

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.min_tokens > self.max_tokens:
            raise incoherent(
                "min_tokens", f"must not exceed max_tokens ({self.min_tokens} > {self.max_tokens})"
            )
        return self


class BandwidthSettings(Section):
    """When a link has bandwidth to spare for prefixes."""

    mode: BandwidthMode = "auto"
    """`auto` follows utilisation with hysteresis; `scarce` and `abundant` fix the regime."""
    scarce_above: Ratio = 0.8
    """Utilisation above which a link is scarce: queueing delay grows as 1/(1 - rho), fivefold at
    0.8."""
    abundant_below: Ratio = 0.6
    """Utilisation below which it is abundant again; the gap keeps the regime from flapping."""
    infer: bool = True
    """Whether a link without telemetry of what is available, and without an operator's capacity,
    is judged by hand-offs that wait for it: a throttled link looks idle otherwise."""

    @model_validator(mode="after")
    def _hysteresis_has_a_gap(self) -> Self:
        if self.scarce_above <= self.abundant_below:
            raise incoherent(
                "scarce_above",
                "must be greater than abundant_below"
                f" ({self.scarce_above:g} <= {self.abundant_below:g})",
            )
        return self


class ShortLoopSettings(Section):
    """Follows bandwidth and queues, and re-solves t."""

    period_seconds: PositiveDuration = 1
    """Time between two steps: congestion shows within about a second, and NIC counters
    are read no faster."""
    dwell_seconds: Duration = 5
    """Least time between two relaxing changes: five periods. Tightening never waits."""


class LongLoopSettings(Section):
    """Proposes to convert instances between prefill and decode."""

    period_seconds: PositiveDuration = 60
    """The window over which the balance of equation 8 is measured."""
    confirm_windows: PositiveCount = 5
    """Windows for which the predicted gain must hold: a conversion costs minutes of capacity."""
    min_gain: Ratio = 0.05
    """Least predicted rise of what is sustained: profiles are interpolated to some percent."""
    dwell_seconds: Duration = 600
    """Least time from the end of a conversion to the next one: ten windows show what it did."""
    drain_timeout_seconds: PositiveDuration = 900
    """Longest time to become idle; then the conversion is rolled back. At 40 tokens a second, the
    example's SLO, answers of 36,000 tokens end within it."""
    act_timeout_seconds: PositiveDuration = 300
    """Longest time for the actuator to act, and to undo: engines load weights for minutes."""
    verify_timeout_seconds: PositiveDuration = 300
    """Longest time until the new role is served; then the conversion is rolled back."""
    actuator: Literal["dry_run", "label", "sglang", "kubernetes", "webhook"] = "dry_run"
    """What carries a conversion out. `dry_run` only proposes, the safe start; `label` changes the
    role here alone, for engines that serve both; the others have their own sections."""
    sglang: SglangSettings = SglangSettings()
    """How engines are asked, with `actuator: sglang`."""
    kubernetes: KubernetesSettings = KubernetesSettings()
    """What is scaled, with `actuator: kubernetes`."""
    webhook: WebhookSettings = WebhookSettings()
    """Who is asked, with `actuator: webhook`."""


class SlackSettings(Section):
    """How prompts wait for a prefill instance under policy `slack`."""

    prefill_concurrency: PositiveCount = 1
    """Prompts that an instance is given at once, for each data-parallel rank. An engine computes
    prompts one after the other, and what waits inside it cannot be put in order any more; two keep
    an engine busy that is far away or batches short prompts."""
    aging_seconds: PositiveDuration = 15
    """Wait after which a prompt goes first. More of it is more goodput and a longer tail."""
    stretch: Annotated[float, Field(ge=1)] = 3
    """An instance that has nothing else to do takes a prompt that costs it up to so many times what
    it would cost where it belongs. A PrfaaS instance of the paper is worth 2.7 to 2.9 at home."""
    promise_factor: PositiveNumber = 2
    """A first token is in time within so many times what it would take alone, or within
    `promise_seconds` where that is longer. Prompts wait in the order of what is left of it."""
    promise_seconds: PositiveDuration = 2
    """Within so many seconds every first token is in time, however short the prompt."""
    queue_size: PositiveCount = 1024
    """Most prompts that wait for an instance; beyond it 503 with Retry-After. As many as
    `admission.queue_size`, whose time-out bounds both waits together."""


class SchedulerSettings(Section):
    """The per-request rule and its two control loops."""

    threshold: ThresholdSettings = ThresholdSettings()
    """The threshold t."""
    bandwidth: BandwidthSettings = BandwidthSettings()
    """The regime of links."""
    policy: Literal["paper", "expected", "slack"] = "paper"
    """The rule: `paper` compares with t; `expected` takes t as the prior, and leaves its side where
    the other one would be done sooner by half a prefill, which needs both pools' profiles; `slack`
    lets prompts wait at the gateway in the order of their SLO's slack until an instance is free,
    which needs profiles of all pools."""
    slack: SlackSettings = SlackSettings()
    """The queue of policy `slack`."""
    on_unknown_metadata: UnknownMetadata = UnknownMetadata.TOTAL
    """Where nobody knows what is cached: `total` takes it for nothing, `local` stays local."""
    remote_queue_limit: PositiveCount = 16
    """Requests waiting at a PrfaaS instance beyond which prompts stay local: 16 prompts of 32K are
    half a minute on the example's H200, more than a local prefill takes."""
    decision_timeout_ms: PositiveDuration = 250
    """Longest time to decide; then local. Half of the shortest profiled prefill (0.44 s): waiting
    longer would cost more than the best decision saves a short prompt. An engine that counts 100K
    tokens takes about as long: raise it for such prompts, or count in process (`tokenizer: hf`)."""
    skip_counting: Literal["never", "short"] = "never"
    """Whether engines count prompts that stay local whatever the number. With `short` one whose
    bytes, and 4096 tokens for a chat's template, do not exceed t is not counted: its length is an
    estimate, and what is cached of it unknown, so that the least loaded local instance takes it
    and not the one that knows it. Under policy `paper`, and not for tenants with a token limit."""
    signal_max_age_seconds: PositiveDuration = 10
    """Age at which a queue depth or load reading no longer counts: ten short periods."""
    link_budget_seconds: PositiveDuration = 30
    """Bytes booked on a link stay below its usable bandwidth times this; beyond it
    `link_congested`. A hand-off is booked while it waits and computes as well, so less than some
    times the longest prefill (7.4 s for 128K tokens on the example's H200) books a starved link out
    while it idles: 30 s is where a solved t does well (`docs/benchmarks/starved-link.md`). More of
    it lets more wait for a link that stops."""
    leader_lease_seconds: Annotated[PositiveDuration, Field(ge=0.3)] = 3
    """Of the processes that share a store one controls; another does at most so long after it died.
    Three lost renewals, half a second apart, cost the lease. Not below 0.3: a renewal is a round
    trip to the store, which may take `store.timeout_ms`."""
    short_loop: ShortLoopSettings = ShortLoopSettings()
    """The loop of seconds."""
    long_loop: LongLoopSettings = LongLoopSettings()
    """The loop of minutes."""


class LookupBreakerSettings(Section):
    """Stops asking a store that does not answer."""

    failures: PositiveCount = 5
    """Failed look-ups in a row that open it: at 20 ms each a tenth of a second."""
    cooldown_seconds: PositiveDuration = 2
    """Time before the store is tried again; it is back within a few seconds of its return."""


class KvmetaSettings(Section):
    """The KV-metadata index."""

    ingest: Literal["embedded", "external", "auto"] = "auto"
    """Who reads KV events: `embedded` the gateway, `external` `prfaas kvmeta`; `auto` is embedded
    on memory, external on Redis."""
    lookup_timeout_ms: PositiveDuration = 20
    """Look-up budget; over it what is cached is unknown. A healthy Redis answers in 1 to 2 ms."""
    max_blocks_per_source: PositiveCount = 2_000_000
    """Most blocks remembered of one publisher: twice what 8 H200 (1.1 TB) hold of the example
    model, 64 tokens a block at 17 KB a token."""
    max_blocks_total: PositiveCount = 16_000_000
    """Most blocks remembered in all: about 2 GB at 117 bytes a block."""
    speculative_ttl_seconds: Duration = 2
    """How long a prefix just routed counts as present before the engine's events say so; 0
    switches it off. Events follow within a scheduler step."""
    approximate_ttl_seconds: Duration = 120
    """How long a prompt that was computed by an instance without `kv_events` counts as cached there
    (`approximate`); 0 leaves such instances unknown. Dynamo's approximate indexer uses 120."""
    approximate_blocks: PositiveCount = 16_384
    """Most blocks guessed so of one source: a million tokens at 64 a block, about what one 80 GB
    accelerator holds at 17 KB a token beside the weights."""
    probe_interval_seconds: PositiveDuration = 5
    """Time between two replay probes of an idle source, which prove that nothing was missed."""
    max_age_seconds: PositiveDuration = 30
    """Age at which a source without proof of life is unknown: six missed probes."""
    counted_media: Annotated[tuple[Text, ...], Field(min_length=1)] = DEFAULT_MEDIA
    """Cache tiers that count as reusable. GPU and CPU; a disk may cost more than it saves."""
    breaker: LookupBreakerSettings = LookupBreakerSettings()
    """The breaker before the store."""

    @model_validator(mode="after")
    def _caps_and_ages_cohere(self) -> Self:
        if self.max_blocks_per_source > self.max_blocks_total:
            raise incoherent(
                "max_blocks_per_source",
                f"must not exceed max_blocks_total ({self.max_blocks_total})",
            )
        if self.max_age_seconds <= self.probe_interval_seconds:
            raise incoherent(
                "max_age_seconds",
                "must be greater than probe_interval_seconds, or idle sources age between probes",
            )
        return self


class TransferSettings(Section):
    """How KV moves from prefill to decode."""

    connector: Name = "nixl"
    """`nixl`, `mooncake`, `offloading-p2p`, `lmcache`, `none`, or one that an installed package
    adds."""
    lease_seconds: PositiveDuration = 30
    """How long a prefill instance keeps blocks for a decode instance (NIXL's
    `kv_lease_duration`)."""
    lease_margin_seconds: Duration = 5
    """A hand-off older than the lease less this is thrown away: one NIXL heartbeat."""
    layerwise_overlap: bool = False
    """Whether KV travels layer by layer while the prefill runs, so that what is inferred of a link
    begins then. NIXL pulls when the prefill is done; the stand-in engines overlap by default
    (`engines.layerwise_overlap`)."""

    @model_validator(mode="after")
    def _margin_fits_lease(self) -> Self:
        if self.lease_margin_seconds >= self.lease_seconds:
            raise incoherent(
                "lease_margin_seconds",
                f"must be less than lease_seconds ({self.lease_seconds:g})",
            )
        return self


class BreakerSettings(Section):
    """Keeps requests from an instance that fails. Transport errors, 5xx and time-outs count."""

    failures: PositiveCount = 10
    """Failures within the window that open it: one bad request with its retries does not."""
    window_seconds: PositiveDuration = 120
    """The window: long enough that failures of minutes-long prefills fall into one."""
    cooldown_seconds: PositiveDuration = 30
    """Time before one request may try again: an engine process restarts in no less."""


class ProbeSettings(Section):
    """Health probes of instances."""

    interval_seconds: PositiveDuration = 1
    """Time between two probes of an instance, so that a dead one is out after three seconds.
    They do not wait for each other: one that hangs is out two intervals after the time-out."""
    timeout_seconds: PositiveDuration = 5
    """Time for an answer: a busy engine answers late, without being dead. An instance that is down
    and has been silent for this long is lost: calls that wait there are given up."""
    failures: PositiveCount = 3
    """Failures in a row that take it out (Kubernetes' failureThreshold)."""
    successes: PositiveCount = 2
    """Successes in a row that bring it back, so that alternation does not flip it."""


class UpstreamSettings(Section):
    """Calls to engines."""

    connect_timeout_seconds: PositiveDuration = 2
    """Time to connect; then another instance is tried. Linux repeats a lost SYN after
    1 s, so one may be lost."""
    first_byte_timeout_seconds: Duration = 0
    """Silence allowed before an answer; 0 is off, since a long prefill is silent for minutes."""
    idle_timeout_seconds: Duration = 300
    """Silence allowed between two pieces of an answer; 0 is off."""
    lost_stream_timeout_seconds: Duration = 30
    """How long an answer that has begun waits on at an instance that is down and silent; then its
    client gets an error event. As long as an engine process takes to restart; calls without a byte
    of an answer are given up at once."""
    max_connections_per_instance: PositiveCount = 1024
    """Most connections to one instance: four times vLLM's `max_num_seqs` of 256."""
    breaker: BreakerSettings = BreakerSettings()
    """The circuit breaker of each instance."""
    probe: ProbeSettings = ProbeSettings()
    """Health probes."""


class EnginesSettings(Section):
    """The stand-in engines of `prfaas engines` and `prfaas demo`."""

    time_scale: PositiveNumber = 1
    """How many times faster than the profiles say."""
    seed: Count = 0
    """Seeds what is drawn by chance, so that runs repeat."""
    blocks: PositiveCount = 8192
    """Cache capacity of an engine in blocks: half a million tokens at 64 a block, four prompts of
    128K."""
    max_model_len: PositiveCount = 262144
    """Longest prompt and answer together, in tokens: twice the longest profiled prompt."""
    load_failure_policy: Literal["recompute", "fail"] = "fail"
    """What a decode does when its KV cannot be pulled (vLLM's default is `fail`)."""
    layerwise_overlap: bool = True
    """Whether KV travels layer by layer while the prefill runs."""
    event_encoding: Literal["map", "array"] = "map"
    """Shape of KV events: `map` since vLLM 0.26, `array` before."""
    tokenizer: FilePath | None = None
    """Tokenizer of the stand-ins, relative to the configuration file; left out, a built-in one."""
