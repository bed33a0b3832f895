"""The fleet as it is configured: clusters, instances, links."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from router.domain.units import BytesPerSecond, Seconds

AUTO_EVENTS = "auto"
"""In place of an endpoint: the engine is asked where it publishes."""


class Role(StrEnum):
    """What an instance does for a request."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"
    """An aggregated endpoint: one call does everything (DESIGN 3)."""


class ClusterKind(StrEnum):
    """PD clusters prefill and decode on one fabric; PrfaaS clusters only prefill."""

    PD = "pd"
    PRFAAS = "prfaas"


class InstanceState(StrEnum):
    """What the operator lets an instance do."""

    ACTIVE = "active"
    DRAINING = "draining"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Instance:
    """One engine endpoint.

    `model` is the one model it serves, None for every configured one. `compatibility` tells
    engines apart whose KV must never be mixed (model revision, engine version, attention backend):
    prefill and decode are paired only where it is equal. `revision` is that of its weights where
    it is the instance's own: its blocks are others than the model's. `ranks` is the number of
    data-parallel ranks behind the URL; rank r publishes its events on the endpoint's port + r, as
    vLLM does. `kv_events` is the first rank's endpoint, `AUTO_EVENTS` where the engine is to be
    asked, None where it publishes none. `pool_member` is its server's name in its cluster's pool,
    None where that is the instance's own. `convertible` tells whether the long loop may change its
    role; `hardware` is what it runs on where that is not what its pool's profile was measured on.
    """

    name: str
    cluster: str
    url: str
    role: Role
    model: str | None = None
    served_name: str | None = None
    api_key: str | None = field(default=None, repr=False)
    accepts_handoff: bool = False
    ranks: int = 1
    compatibility: str = ""
    revision: str | None = None
    kv_events: str | None = None
    kv_replay: str | None = None
    pool_member: str | None = None
    convertible: bool = False
    hardware: str | None = None

    @property
    def can_prefill(self) -> bool:
        """Whether a prompt's KV can be computed here as a leg or as the whole request."""
        return self.role is not Role.DECODE

    @property
    def takes_handoff(self) -> bool:
        """Whether another instance's KV can be decoded here."""
        return self.role is Role.DECODE or (self.role is Role.BOTH and self.accepts_handoff)


def origin_of(url: str) -> tuple[str, str, int, str]:
    """Return scheme, host, port and path of an address, each in its one spelling."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, parts.hostname or "", port, parts.path.rstrip("/")


def may_share_a_model(one: str | None, other: str | None) -> bool:
    """Whether two instances may be asked for the same model; None serves every one."""
    return one is None or other is None or one == other


@dataclass(frozen=True, slots=True)
class Cluster:
    """A set of instances on one fabric."""

    name: str
    kind: ClusterKind


@dataclass(frozen=True, slots=True)
class Link:
    """A directed inter-cluster path; KV flows from `source` to `target`."""

    name: str
    source: str
    target: str
    capacity: BytesPerSecond
    telemetry_required: bool = False
    telemetry_max_age: Seconds = 10.0
