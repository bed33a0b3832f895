"""As much of a Kubernetes API server as scaling meets: TLS, tokens, versions, pods."""

from __future__ import annotations

import ssl
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fakes.scripted_engine import Recorded, Script, ScriptedEngine, json_answer

CERTIFICATE = Path(__file__).parent / "localhost.pem"
TOKEN = "kube-token-of-the-gateway"

COST = "controller.kubernetes.io/pod-deletion-cost"


@dataclass
class FakeWorkload:
    """One workload. `ready` follows `replicas` when the test says so."""

    replicas: int
    ready: int
    version: int = 1
    generation: int = 1
    observed: int = 1
    start: int = 0


@dataclass
class FakePod:
    """One pod."""

    address: str
    annotations: dict[str, str] = field(default_factory=dict)


class KubeApiServer:
    """Workloads of the namespace `engines` by (plural, name), pods by name; all of it over TLS.

    `conflicts` writes meet somebody else's write before them; `failures` are answered first, one
    a request; what is in `forbidden` (verb, resource) is 403, and so are writes to `broken` ones.
    """

    def __init__(self) -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(CERTIFICATE)
        self.engine = ScriptedEngine(self._answer, tls=tls)
        self.workloads: dict[tuple[str, str], FakeWorkload] = {}
        self.pods: dict[str, FakePod] = {}
        self.token = TOKEN
        self.conflicts = 0
        self.failures: deque[int] = deque()
        self.forbidden: set[tuple[str, str]] = set()
        self.broken: set[str] = set()

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.engine.url

    def settle(self) -> None:
        """Let every pod that is wanted be ready, and every controller have looked."""
        for workload in self.workloads.values():
            workload.ready = workload.replicas
            workload.observed = workload.generation

    def replicas(self) -> dict[str, int]:
        """Return how many replicas each workload wants."""
        return {name: workload.replicas for (_, name), workload in self.workloads.items()}

    def writes(self) -> list[str]:
        """Return the methods and paths of all that would change something."""
        changing = [each for each in self.engine.requests if each.method != "GET"]
        return [f"{each.method} {each.path}" for each in changing]

    def _answer(self, request: Recorded) -> Script:
        if self.failures:
            return _status(self.failures.popleft(), "etcdserver: leader changed")
        if request.header("authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        parts = urlsplit(request.path)
        match parts.path.strip("/").split("/"):
            case ["apis", group, _, "namespaces", "engines", plural, name, *rest] if group == (
                "leaderworkerset.x-k8s.io" if plural.startswith("leader") else "apps"
            ):
                resource = "/".join([plural, *rest])
                refused = self._refuse(request.method, resource)
                return refused or self._workload(request, plural, name, rest)
            case ["api", "v1", "namespaces", "engines", "pods", *name]:
                refused = self._refuse(request.method, "pods")
                return refused or self._pod(request, name, parse_qs(parts.query))
            case _:
                return _status(404, "the server could not find the requested resource")

    def _refuse(self, method: str, resource: str) -> Script | None:
        verb = {"GET": "get", "PUT": "update", "PATCH": "patch"}[method]
        if (verb, resource) not in self.forbidden:
            return None
        who = 'User "system:serviceaccount:serving:gateway"'
        return _status(403, f'{resource} is forbidden: {who} cannot {verb} resource "{resource}"')

    def _workload(self, request: Recorded, plural: str, name: str, rest: list[str]) -> Script:
        found = self.workloads.get((plural, name))
        if found is None:
            return _status(404, f'{plural} "{name}" not found')
        if request.method == "GET":
            return json_answer(_scale(name, found) if rest else _object(name, found))
        if name in self.broken:
            return _status(403, "denied by an admission webhook")
        assert request.header("content-type") == "application/json"
        body = request.json()
        if self.conflicts:
            self.conflicts -= 1
            found.version += 1
        if body["metadata"]["resourceVersion"] != str(found.version):
            return _status(409, "the object has been modified; please apply your changes to it")
        found.replicas = body["spec"]["replicas"]
        found.version += 1
        found.generation += 1
        return json_answer(_scale(name, found))

    def _pod(self, request: Recorded, name: list[str], query: dict[str, list[str]]) -> Script:
        if not name:
            address = query["fieldSelector"][0].removeprefix("status.podIP=")
            items = [
                {"metadata": {"name": each}}
                for each, pod in self.pods.items()
                if pod.address == address
            ]
            return json_answer({"kind": "PodList", "items": items})
        found = self.pods.get(name[0])
        if found is None:
            return _status(404, f'pods "{name[0]}" not found')
        if request.method == "PATCH":
            assert request.header("content-type") == "application/merge-patch+json"
            for key, value in request.json()["metadata"]["annotations"].items():
                found.annotations.pop(key, None)
                if value is not None:
                    found.annotations[key] = value
        metadata = {"name": name[0], "annotations": found.annotations}
        return json_answer({"kind": "Pod", "metadata": metadata})


def _scale(name: str, workload: FakeWorkload) -> dict[str, Any]:
    """A Scale as the server writes it: a number that is 0 is left out."""
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": name,
            "namespace": "engines",
            "resourceVersion": str(workload.version),
        },
        "spec": {"replicas": workload.replicas} if workload.replicas else {},
        "status": {"replicas": workload.replicas, "selector": f"app={name}"},
    }


def _object(name: str, workload: FakeWorkload) -> dict[str, Any]:
    ready = {"readyReplicas": workload.ready} if workload.ready else {}
    ordinals = {"ordinals": {"start": workload.start}} if workload.start else {}
    return {
        "metadata": {"name": name, "generation": workload.generation},
        "spec": {"replicas": workload.replicas, **ordinals},
        "status": {"observedGeneration": workload.observed, **ready},
    }


def _status(code: int, message: str) -> Script:
    return json_answer(
        {"kind": "Status", "status": "Failure", "message": message, "code": code}, code
    )


def write_account(directory: Path, token: str = TOKEN) -> Path:
    """Write a service account as Kubernetes mounts it; return its directory."""
    certificate = CERTIFICATE.read_text("ascii")
    begin = certificate.index("-----BEGIN CERTIFICATE-----")
    files = {"token": token, "namespace": "engines", "ca.crt": certificate[begin:]}
    for name, text in files.items():
        (directory / name).write_text(text, "ascii")
    return directory
