"""What carries conversions of instances out, and how it is reached (DESIGN 8)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from router.settings.fields import (
    Duration,
    FilePath,
    HttpUrl,
    ModelName,
    Name,
    PositiveCount,
    PositiveDuration,
    Section,
    incoherent,
)
from router.settings.secrets import Secret

KubernetesName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)
]
"""A name of an object in Kubernetes: a DNS subdomain."""


def _needs_tls(value: str) -> str:
    if not value.startswith("https://"):
        raise PydanticCustomError("address", "must start with https://: a token is sent there")
    return value


class SglangSettings(Section):
    """The actuator `sglang`: engines change their role themselves (`/pd_role_switch`)."""

    timeout_seconds: PositiveDuration = 10
    """Longest wait for one answer. A switch that takes longer goes on in the engine, which is asked
    for its role until the conversion's own time-out."""
    decode_cuda_graph_memory_gb: Duration | None = None
    """Memory in GB that the engine must have free before it captures CUDA graphs for decoding; left
    out, what the engine itself reports, if it does."""


class WorkloadSettings(Section):
    """A workload whose pods are instances of one role."""

    kind: Literal["StatefulSet", "LeaderWorkerSet", "Deployment"] = "StatefulSet"
    """`StatefulSet` and `LeaderWorkerSet` give pods names that stay, so that instances have URLs
    before they run. Pods of a `Deployment` must be added by the admin API."""
    name: KubernetesName
    """Its name."""


class WorkloadPairSettings(Section):
    """The two workloads between which a PD cluster's accelerators move."""

    cluster: Name
    """The PD cluster that they are."""
    model: ModelName | None = None
    """The model that they serve; left out, every model of the cluster that has no pair of its
    own."""
    prefill: WorkloadSettings
    """Runs its prefill instances."""
    decode: WorkloadSettings
    """Runs its decode instances."""

    @model_validator(mode="after")
    def _are_two(self) -> Self:
        if self.prefill == self.decode:
            raise incoherent("decode", "must be another workload than `prefill`")
        return self


class KubernetesSettings(Section):
    """The actuator `kubernetes`: one workload is scaled down by one and the other up by one."""

    url: Annotated[HttpUrl, AfterValidator(_needs_tls)] = "https://kubernetes.default.svc"
    """The API server; the default is where pods find it."""
    service_account: FilePath = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    """Directory with `token`, `ca.crt` and `namespace`, as Kubernetes mounts it into a pod. The
    token is read anew for each call, since Kubernetes renews it."""
    namespace: KubernetesName | None = None
    """The workloads' namespace; left out, the service account's."""
    workloads: tuple[WorkloadPairSettings, ...] = ()
    """Which workloads hold the instances of which cluster."""
    timeout_seconds: PositiveDuration = 10
    """Longest wait for one answer of the API server."""
    attempts: PositiveCount = 5
    """How often a call is made that meets a conflict or an overloaded server. client-go gives
    up after as many conflicts."""


class WebhookSettings(Section):
    """The actuator `webhook`: somebody else is asked to carry the conversion out."""

    url: HttpUrl | None = None
    """Where conversions are posted to; required where this is the actuator."""
    secret: Secret = None
    """Signs each call (HMAC-SHA256); plain, `${VAR}` or `file:PATH`. Required where this is the
    actuator: what moves accelerators must not obey anybody."""
    ca_file: FilePath | None = None
    """Certificates that vouch for an `https` receiver; left out, those that browsers trust."""
    in_place: bool = True
    """Whether the instance itself takes the other role. Off where another instance comes up in its
    stead and it ends, as with the actuator `kubernetes`."""
    timeout_seconds: PositiveDuration = 5
    """Longest wait for one answer."""
    attempts: PositiveCount = 3
    """How often a call without an answer is made. All attempts carry one idempotency key."""
    undo_timeout_seconds: PositiveDuration = 30
    """Longest time for which the receiver may answer 202 to an undo."""
