"""The few calls to a Kubernetes API server that scaling takes.

Every one of them may be repeated: a write names the version that it replaces (`resourceVersion`),
so that the server refuses it with 409 where somebody wrote meanwhile, ourselves included. Source:
the API conventions of Kubernetes, "Concurrency Control and Consistency"; `autoscaling/v1` Scale.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from router.adapters.actuators.calls import Answer, Caller, NoAnswer
from router.domain.errors import ActuationFailed
from router.domain.units import Seconds

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""Of two pods of a Deployment the one with the lower cost goes first; without it, 0."""

_OVERLOADED: Final = frozenset({429, 500, 502, 503, 504})


class WorkloadKind(StrEnum):
    """What can be scaled."""

    DEPLOYMENT = "Deployment"
    STATEFUL_SET = "StatefulSet"
    LEADER_WORKER_SET = "LeaderWorkerSet"

    @property
    def path(self) -> str:
        """Return the part of the API that has it, up to its namespace."""
        match self:
            case WorkloadKind.DEPLOYMENT | WorkloadKind.STATEFUL_SET:
                return "/apis/apps/v1"
            case WorkloadKind.LEADER_WORKER_SET:
                return "/apis/leaderworkerset.x-k8s.io/v1"

    @property
    def plural(self) -> str:
        """Return its resource."""
        return f"{self.value.lower()}s"


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload of the namespace."""

    kind: WorkloadKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Scale:
    """How many replicas are wanted, as of which version."""

    replicas: int
    version: str


@dataclass(frozen=True, slots=True)
class Readiness:
    """How many replicas are wanted and how many are ready, once its controller has looked."""

    wanted: int
    ready: int
    first_ordinal: int


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """The directory that Kubernetes mounts into a pod. Each read raises ActuationFailed."""

    directory: Path

    def token(self) -> str:
        """Return the token as it is now: Kubernetes renews it. The file is in memory."""
        return self._read("token")

    def namespace(self) -> str:
        """Return the namespace that the account is in."""
        return self._read("namespace")

    def trust(self) -> ssl.SSLContext:
        """Return what verifies the API server, and nobody else."""
        try:
            return ssl.create_default_context(cadata=self._read("ca.crt"))
        except ssl.SSLError as error:
            raise ActuationFailed("the service account's ca.crt holds no certificate") from error

    def _read(self, name: str) -> str:
        try:
            text = (self.directory / name).read_text("ascii").strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not ASCII text"
            raise ActuationFailed(
                f"the service account's {name} cannot be read: {reason}"
            ) from error
        if not text:
            raise ActuationFailed(f"the service account's {name} is empty")
        return text


class KubeApi:
    """Talks to one API server about one namespace, the account's where none is given.

    A call that meets an overloaded server is made
    `attempts` times, `pause` seconds apart and then twice as long.
    """

    def __init__(
        self,
        caller: Caller,
        base: str,
        account: ServiceAccount,
        namespace: str | None,
        *,
        attempts: int,
        pause: Seconds,
    ) -> None:
        self._caller = caller
        self._base = base
        self._given_namespace = namespace
        self._account = account
        self.attempts = attempts
        self.pause = pause

    @property
    def _namespace(self) -> str:
        return self._given_namespace or self._account.namespace()

    async def read_scale(self, workload: Workload) -> Scale:
        """Return a workload's scale. Raises ActuationFailed."""
        document = await self._get(f"{self._path(workload)}/scale", f"scale of {workload}")
        return _read_scale(document, workload)

    async def write_scale(self, workload: Workload, replicas: int, version: str) -> bool:
        """Set the number of replicas; False where the scale is of another version by now."""
        body = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {
                "name": workload.name,
                "namespace": self._namespace,
                "resourceVersion": version,
            },
            "spec": {"replicas": replicas},
        }
        answer = await self._call("PUT", f"{self._path(workload)}/scale", body)
        if answer.status == 409:
            return False
        _accept(answer, f"update scale of {workload}")
        return True

    async def read_readiness(self, workload: Workload) -> Readiness | None:
        """Return how far a workload is; None where its controller has not seen its last change."""
        document = await self._get(self._path(workload), str(workload))
        spec, status = _part(document, "spec"), _part(document, "status")
        generation = _number(_part(document, "metadata"), "generation", 0)
        if _number(status, "observedGeneration", generation) < generation:
            return None
        return Readiness(
            wanted=_number(spec, "replicas", 1),
            ready=_number(status, "readyReplicas", 0),
            first_ordinal=_number(_part(spec, "ordinals"), "start", 0),
        )

    async def find_pod(self, host: str, *, address: bool) -> str:
        """Return the name of the pod that has an address, or that a host name begins with."""
        pods = f"/api/v1/namespaces/{self._namespace}/pods"
        if not address:
            name = host.partition(".")[0]
            await self._get(f"{pods}/{quote(name, safe='')}", f"pod {name}")
            return name
        found = await self._get(f"{pods}?fieldSelector=status.podIP%3D{quote(host)}", "pods")
        items = found.get("items")
        names = [
            _part(item, "metadata").get("name") for item in items or () if isinstance(item, dict)
        ]
        if len(names) != 1 or not isinstance(names[0], str):
            raise ActuationFailed(f"kubernetes: {len(names)} pods have the address {host}")
        return names[0]

    async def prefer_removal(self, pod: str, cost: int | None) -> None:
        """Set what the removal of a pod costs; None takes it away. A pod that is gone is fine."""
        value = None if cost is None else str(cost)
        body = {"metadata": {"annotations": {DELETION_COST: value}}}
        path = f"/api/v1/namespaces/{self._namespace}/pods/{quote(pod, safe='')}"
        answer = await self._call("PATCH", path, body)
        if answer.status != 404:
            _accept(answer, f"annotate pod {pod}")

    def _path(self, workload: Workload) -> str:
        kind = workload.kind
        return f"{kind.path}/namespaces/{self._namespace}/{kind.plural}/{workload.name}"

    async def _get(self, path: str, what: str) -> Mapping[str, Any]:
        answer = await self._call("GET", path)
        _accept(answer, f"get {what}")
        return answer.document()

    async def _call(self, method: str, path: str, body: object = None) -> Answer:
        """Make a call, again where the server is overloaded or broke off. Raises NoAnswer."""
        pause = self.pause
        for _ in range(self.attempts - 1):
            try:
                answer = await self._once(method, path, body)
            except NoAnswer:
                pass
            else:
                if answer.status not in _OVERLOADED:
                    return answer
            await asyncio.sleep(pause)
            pause *= 2
        return await self._once(method, path, body)

    async def _once(self, method: str, path: str, body: object) -> Answer:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"authorization": f"Bearer {self._account.token()}", "accept": "application/json"}
        if body is not None:
            headers["content-type"] = kind
        content = None if body is None else json.dumps(body).encode()
        return await self._caller.call(method, self._base + path, headers=headers, content=content)


def _accept(answer: Answer, what: str) -> None:
    """Let what was done pass. Raises ActuationFailed with the server's reason."""
    if answer.fine:
        return
    if answer.status == 401:
        raise ActuationFailed(f"kubernetes does not accept our token (401): cannot {what}")
    raise ActuationFailed(f"kubernetes: cannot {what} ({answer.status}): {answer.reason()}")


def _read_scale(document: Mapping[str, Any], workload: Workload) -> Scale:
    version = _part(document, "metadata").get("resourceVersion")
    if document.get("kind") != "Scale" or not isinstance(version, str):
        raise ActuationFailed(f"kubernetes: what is no Scale came for {workload}")
    # A field of 0 is left out in Kubernetes' JSON.
    return Scale(_number(_part(document, "spec"), "replicas", 0), version)


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _number(document: Mapping[str, Any], name: str, default: int) -> int:
    value = document.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default
