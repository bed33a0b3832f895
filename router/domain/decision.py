"""Everything the per-request rule may look at, in one frozen snapshot, and what it answers.

A snapshot can be logged, generated and replayed: `router.policy.route.decide` reads nothing else.

These are structs, made for every request, and the garbage collector knows nothing of them
(`gc=False`): a value refers to values alone, so no cycle leads through it, and the thousand
decisions that are kept for operators cost its collections nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from kvmeta.types import CacheBelief, SourceState
from router.domain.topology import ClusterKind, Role
from router.domain.units import NO_BYTES, Bytes, BytesPerSecond, Seconds, Tokens


class Route(StrEnum):
    """Where the prefill runs."""

    LOCAL = "local"
    PRFAAS = "prfaas"


class Regime(StrEnum):
    """Whether a link has bandwidth to spare for prefixes (DESIGN 5)."""

    SCARCE = "scarce"
    ABUNDANT = "abundant"


class ThresholdMode(StrEnum):
    """Who says what t is."""

    MANUAL = "manual"
    AUTO = "auto"
    OFF = "off"


class TokenSource(StrEnum):
    """Who counted the prompt's tokens."""

    CLIENT = "client"
    TOKENIZER = "tokenizer"
    ENGINE = "engine"
    ESTIMATE = "estimate"


class UnknownMetadata(StrEnum):
    """What to do where nobody knows what is cached."""

    TOTAL = "total"
    """Take it as zero cached: the whole prompt is uncached."""
    LOCAL = "local"
    """Keep the request local."""


class Rule(StrEnum):
    """How a prompt's side is chosen (`scheduler.policy`)."""

    PAPER = "paper"
    """Offload iff more tokens are uncached than t."""
    EXPECTED = "expected"
    """t is the prior; the other side takes what it would have done clearly sooner."""
    SLACK = "slack"
    """t is the prior; prompts wait at the gateway and are bound to an instance that is free."""


class Reason(StrEnum):
    """Why a request went where it went; in the order in which the rule asks."""

    DISABLED = "disabled"
    OVERRIDE = "override"
    NOT_DISAGGREGABLE = "not_disaggregable"
    BELOW_THRESHOLD = "below_threshold"
    SOONER_LOCAL = "sooner_local"
    LINK_DOWN = "link_down"
    LINK_STALE = "link_stale"
    GATE_MODEL = "gate_model"
    GATE_WORKLOAD = "gate_workload"
    GATE_SCHEDULER = "gate_scheduler"
    REMOTE_UNAVAILABLE = "remote_unavailable"
    REMOTE_QUEUE_FULL = "remote_queue_full"
    LINK_CONGESTED = "link_congested"
    ABOVE_THRESHOLD = "above_threshold"
    SOONER_REMOTE = "sooner_remote"
    LOCAL_PREFILL_UNAVAILABLE = "local_prefill_unavailable"
    REMOTE_PREFILL_FAILED = "remote_prefill_failed"
    DECISION_TIMEOUT = "decision_timeout"


class RequestView(Struct, frozen=True, gc=False):
    """The request as the rule sees it. `home` is the PD cluster asked for, where it may be asked.

    `disaggregable` is False for requests that one instance must do whole (echo, prompt_logprobs,
    several prompts).
    """

    model: str
    tenant: str
    total_tokens: Tokens
    token_source: TokenSource
    disaggregable: bool = True
    home: str | None = None


class InstanceView(Struct, frozen=True, gc=False):
    """One instance at the moment of the decision.

    `belief` is the longest reusable prefix of this prompt there. `ahead` is the prefill time
    queued before this request, decisions in flight included. `prefill` is the expected prefill
    time of this prompt's uncached tokens there. `queue_depth` counts requests waiting for
    capacity, None when the last reading is too old. `slots` bounds concurrent decodes.
    `rank` is the data-parallel rank that will be pinned, None where none is.
    """

    name: str
    cluster: str
    role: Role
    ready: bool
    takes_handoff: bool
    compatibility: str
    belief: CacheBelief
    ahead: Seconds = 0.0
    prefill: Seconds = 0.0
    queue_depth: int | None = None
    inflight: int = 0
    slots: int | None = None
    rank: int | None = None


class ClusterView(Struct, frozen=True, gc=False):
    """A cluster and those of its instances that serve the model."""

    name: str
    kind: ClusterKind
    instances: tuple[InstanceView, ...]


class LinkView(Struct, frozen=True, gc=False):
    """A link at the moment of the decision.

    `utilization` is None without a measurement. `free` is how many more bytes may be booked, None
    where nothing bounds them; `booked` are those that are. `capacity` is what it is built for,
    however little it carries now; `rate` is that, None where nobody knows.
    """

    name: str
    up: bool
    regime: Regime
    utilization: float | None = None
    free: Bytes | None = None
    telemetry_required: bool = False
    telemetry_age: Seconds | None = None
    telemetry_max_age: Seconds = 10.0
    capacity: BytesPerSecond | None = None
    booked: Bytes = NO_BYTES
    rate: BytesPerSecond | None = None


class ThresholdView(Struct, frozen=True, gc=False):
    """The threshold in force for one pair of clusters."""

    mode: ThresholdMode
    tokens: Tokens


class GateLimits(Struct, frozen=True, gc=False):
    """What an operator wants of a model and its traffic before prefills leave home; None: nothing.

    `kv_rate` is the greatest Phi_kv of one instance. `long_share` and `long_tokens` are the least
    share of requests over the threshold and their least mean length; `gain` is the least factor by
    which offloading must raise Lambda_max over keeping everything local.
    """

    kv_rate: BytesPerSecond | None = None
    long_share: float | None = None
    long_tokens: float | None = None
    gain: float | None = None

    @property
    def ask_workload(self) -> bool:
        """Whether anything is wanted of the traffic."""
        return not (self.long_share is None and self.long_tokens is None and self.gain is None)


class WorkloadView(Struct, frozen=True, gc=False):
    """Traffic against a threshold: the share over it, their mean uncached tokens, the gain.

    `long_tokens` is None where no request is over it, `gain` where nobody computed it.
    """

    long_share: float
    long_tokens: float | None
    gain: float | None = None


class GateView(Struct, frozen=True, gc=False):
    """What the admission gates look at (DESIGN 5).

    `kv_rate` is Phi_kv = S_kv / T_prefill at the operating length, None for an unprofiled model.
    `link_rate` is what the link is built for, None where that does not matter. `workload` is the
    traffic of late, None where nothing is wanted of it or too little was seen.
    """

    kv_rate: BytesPerSecond | None = None
    limits: GateLimits = GateLimits()
    link_rate: BytesPerSecond | None = None
    workload: WorkloadView | None = None


class PairView(Struct, frozen=True, gc=False):
    """One way to offload: a PrfaaS cluster, a PD cluster and the link between them.

    `link` carries the KV from `prfaas` to `pd`. `ships_to_pd` and `ships_to_prfaas` tell whether
    connector and model can ship a bare prefix in that direction; `back_link` is the link for the
    second.
    """

    prfaas: str
    pd: str
    link: LinkView
    threshold: ThresholdView
    gates: GateView = GateView()
    ships_to_pd: bool = False
    ships_to_prfaas: bool = False
    back_link: LinkView | None = None


class KvSizing(Struct, frozen=True, gc=False):
    """KV bytes of this prompt: S_kv(total) and its token-proportional slope.

    `total` is None for an unprofiled model: bytes are then not booked.
    """

    total: Bytes | None
    per_token: float = 0.0


class OverrideView(Struct, frozen=True, gc=False):
    """An operator's order for this request."""

    route: Route


class Snapshot(Struct, frozen=True, gc=False):
    """One request, the fleet, the links and the policy at one instant."""

    request: RequestView
    clusters: tuple[ClusterView, ...]
    pairs: tuple[PairView, ...]
    sizing: KvSizing
    default_threshold: ThresholdView
    override: OverrideView | None = None
    on_unknown: UnknownMetadata = UnknownMetadata.TOTAL
    remote_queue_limit: int = 16
    rule: Rule = Rule.PAPER


class Placement(Struct, frozen=True, gc=False):
    """An instance chosen for a leg; the prefix believed to be there (None unknown), and how far."""

    cluster: str
    instance: str
    cached_tokens: Tokens | None = None
    rank: int | None = None
    cache_state: SourceState = SourceState.UNKNOWN


class PrefixTransfer(Struct, frozen=True, gc=False):
    """A prefix that travels so that the computing side need not compute it."""

    source: str
    target: str
    tokens: Tokens
    link: str
    bytes: Bytes


class Decision(Struct, frozen=True, gc=False):
    """Where one request runs, and why.

    `prefill` None means that the decode instance computes the prompt itself; equal instances mean
    one call does everything. `uncached_tokens` is what was compared with `threshold`,
    `compute_uncached_tokens` what the computing instance will compute. `blocked_by` names what
    kept an override or a wished route from being followed. `kv_bytes` is what the decode instance
    will pull (DESIGN 5), None unprofiled.
    """

    route: Route
    reason: Reason
    blocked_by: Reason | None
    home: str
    prefill: Placement | None
    decode: Placement
    uncached_tokens: Tokens
    compute_uncached_tokens: Tokens
    threshold: Tokens
    regime: Regime
    cached: tuple[tuple[str, CacheBelief], ...]
    link: LinkView | None
    kv_bytes: Bytes | None
    prefix_transfer: PrefixTransfer | None = None

    @property
    def single_call(self) -> bool:
        """Whether one instance does everything in one call."""
        return self.prefill is None or self.prefill.instance == self.decode.instance

    @property
    def link_bytes(self) -> Mapping[str, Bytes]:
        """The bytes that the request will move over each link that it uses."""
        moved: dict[str, Bytes] = {}
        if self.single_call:
            return moved
        if self.route is Route.PRFAAS and self.link is not None and self.kv_bytes:
            moved[self.link.name] = self.kv_bytes
        prefix = self.prefix_transfer
        if prefix is not None and prefix.bytes:
            moved[prefix.link] = Bytes(moved.get(prefix.link, 0) + prefix.bytes)
        return moved


class NoRoute(Struct, frozen=True, gc=False):
    """Nobody can serve the request now: no live decode instance in any PD cluster."""

    model: str
