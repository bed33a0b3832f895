"""Where it runs: clusters, instances, links."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from router.domain.topology import AUTO_EVENTS, ClusterKind, Role
from router.settings.fields import (
    EventsEndpoint,
    HttpUrl,
    ModelName,
    Name,
    PositiveCount,
    PositiveDuration,
    PositiveNumber,
    Section,
    Text,
    ZmqEndpoint,
    incoherent,
)
from router.settings.secrets import Secret


class InstanceSettings(Section):
    """One engine endpoint."""

    name: Name
    """Unique in the whole configuration."""
    url: HttpUrl
    """Base URL of the engine's OpenAI server."""
    role: Role
    """`prefill`, `decode`, or `both`: an aggregated endpoint where one call does everything."""
    model: ModelName | None = None
    """The one model it serves; left out, every configured one."""
    served_name: ModelName | None = None
    """Its own name for the model; left out, the model's `served_name`."""
    api_key: Secret = None
    """Sent to this engine as Bearer; left out, no Authorization header."""
    accepts_handoff: bool = False
    """Whether a `both` instance decodes another instance's KV. Off, since an endpoint that hides
    its own P/D behind one URL cannot."""
    data_parallel_ranks: PositiveCount = 1
    """Data-parallel ranks behind the URL; rank r publishes on the endpoints' port + r, as vLLM
    does."""
    revision: Text | None = None
    """Revision of the weights it runs; left out, the model's."""
    compatibility: Text | None = None
    """Prefill and decode are paired only where this is equal; left out, the revision. Set it where
    engine version or attention backend make KV incompatible."""
    kv_events: EventsEndpoint | None = None
    """Where it publishes KV events; `auto` asks the engine (`/kv_event_sources`, where vLLM tells
    endpoints and ranks); left out, what it caches is guessed from routed prompts."""
    kv_replay: ZmqEndpoint | None = None
    """Where it replays missed events; left out, a gap makes its index entry partial. With
    `kv_events: auto` the engine tells it."""

    pool_member: Text | None = None
    """`instance_id` of its LMCache server in the cluster's `pool`; left out, its own name."""

    convertible: bool = False
    """Whether the long loop may convert it between prefill and decode. Off, since most engines are
    started for one role; with actuator `label` it must serve both as it runs."""
    hardware: Text | None = None
    """What it runs on; left out, what its pool's profile names. One on other hardware than the
    profile's is never converted: the model knows nothing of it."""

    @model_validator(mode="after")
    def _events_cohere(self) -> Self:
        if self.kv_replay is not None and self.kv_events is None:
            raise incoherent("kv_replay", "needs kv_events: there is nothing else to replay")
        if self.kv_events == AUTO_EVENTS:
            if self.kv_replay is not None:
                raise incoherent("kv_replay", "must be left out: `kv_events: auto` finds it")
            return self
        for field, endpoint in (("kv_events", self.kv_events), ("kv_replay", self.kv_replay)):
            if endpoint is not None and self.data_parallel_ranks > 1:
                self._check_rank_ports(field, endpoint)
        return self

    def _check_rank_ports(self, field: str, endpoint: str) -> None:
        if not endpoint.startswith("tcp://"):
            raise incoherent(field, "must be tcp:// with several ranks: rank r uses port + r")
        last = int(endpoint.rpartition(":")[2]) + self.data_parallel_ranks - 1
        if last > 65535:
            raise incoherent(field, f"port + rank exceeds 65535 (the last rank would use {last})")


class PoolSettings(Section):
    """A pool of KV that a cluster's instances share, asked beside the index."""

    kind: Literal["lmcache"] = "lmcache"
    """LMCache in its multi-process mode, with a coordinator that its servers report to
    (`--coordinator-event-reporting`)."""
    url: HttpUrl
    """The coordinator, by default at port 9300."""
    model_name: ModelName | None = None
    """What the servers call the model; left out, the name engines know it by."""
    chunk_size: PositiveCount = 256
    """Tokens in a chunk: the servers' `--chunk-size`, 256 unless set."""
    object_groups: PositiveCount = 1
    """Groups that each chunk is stored in: more than one only with `--separate-object-groups`. What
    a group lacks is not told, so the number must be right."""
    tiers: Annotated[tuple[Literal["l1", "l2"], ...], Field(min_length=1)] = ("l1", "l2")
    """Tiers that count: `l1` is memory, `l2` what lies behind it."""
    peers: bool = False
    """Whether the servers fetch from each other (`--p2p-advertise-url`): then what one of them has
    counts for all."""
    timeout_ms: PositiveDuration = 100
    """Longest time to wait for an answer; then the pool has no say. Both ways carry the whole
    prompt, 0.7 MB for 128K tokens."""


class ClusterSettings(Section):
    """Instances on one fabric."""

    name: Name
    """Unique among clusters."""
    kind: ClusterKind
    """`pd` prefills and decodes; `prfaas` only prefills, behind a link."""
    instances: tuple[InstanceSettings, ...] = ()
    """Its engines; more can be added by the admin API."""
    pool: PoolSettings | None = None
    """What they share beside their own caches."""


class LinkTelemetrySettings(Section):
    """Whether a link may be used without fresh measurements."""

    required: bool = False
    """Whether stale telemetry closes the link (`link_stale`). Off: our own booked bytes suffice to
    start with."""
    max_age_seconds: PositiveDuration = 10
    """Age at which telemetry is stale: ten periods of the short loop."""


class LinkSettings(Section):
    """A directed path between clusters; KV flows from `from` to `to`."""

    name: Name
    """Unique among links."""
    source: Name = Field(alias="from")
    """The cluster that sends."""
    target: Name = Field(alias="to")
    """The cluster that receives."""
    capacity_gbps: PositiveNumber
    """Bandwidth in Gbit/s (1e9 bit/s) that KV transfers may use."""
    telemetry: LinkTelemetrySettings = LinkTelemetrySettings()
    """Demands on measurements."""
