"""Whole gateways for tests: composed as `prfaas serve` does, on a free port, from a file.

    async with scripted_system(tmp_path, threshold=100) as system:
        answer = await system.complete(200)                 # a prompt of 200 token ids
        assert system.engine("f0").calls                    # its prefill leg went there

    async with standin_system(tmp_path, groups=RECURRENT) as system:
        ...                                                 # real caches, events and hand-offs

Both have one PD cluster `east` (prefill `p0`, decode `d0`), one PrfaaS cluster `west` (`f0`) and
the link `west-east`. Everything runs in the test's own event loop, over real sockets.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kvmeta.types import GroupKind
from router.compose.gateway import Gateway, build_gateway
from router.domain.topology import Role
from router.gateway.client_limits import ClientLimits
from router.gateway.clients import ClientEdge, EdgeConfig
from router.gateway.dispatch import Application
from router.settings import load
from router.sim.engines.asgi import Listener
from router.sim.engines.cluster import EngineHost, RunningCluster, serve_cluster
from router.sim.engines.specs import (
    CacheSpec,
    ClusterSpec,
    EngineProfile,
    EngineSpec,
    GroupSpec,
    LinkSpec,
)
from tests.fakes.live_engines import LiveEngine
from tests.fakes.standins import AffineProfile, shipped_tokenizer

MODEL = "tiny"
BLOCK = 16
DENSE = (GroupSpec(GroupKind.FULL_ATTENTION),)
RECURRENT = (GroupSpec(GroupKind.RECURRENT, 3), GroupSpec(GroupKind.FULL_ATTENTION))
WINDOWED = (
    GroupSpec(GroupKind.FULL_ATTENTION),
    GroupSpec(GroupKind.SLIDING_WINDOW, 2, window=64),
)

Document = dict[str, Any]

PROFILE: Document = {
    "model": MODEL,
    "revision": "1",
    "hardware": "one stand-in",
    "engine": "stand-in",
    "date": "2026-04-16",
    "source": "modelled",
    "kv": {"fixed_bytes": 0, "bytes_per_token": 1000},
    "points": [
        {"tokens": 1000, "kv_bytes": 1_000_000, "prefill_seconds": 0.1},
        {"tokens": 8000, "kv_bytes": 8_000_000, "prefill_seconds": 0.8},
    ],
}
"""S_kv = 1000 bytes a token, T_prefill = 0.1 ms a token: what `AffineProfile` says, too."""

_TERMS = itertools.count(1)


class Metrics:
    """One scrape of `/metrics`."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.samples: list[Sample] = [
            sample for family in self.families for sample in family.samples
        ]

    def total(self, name: str, **labels: str) -> float:
        """Sum the samples of a name whose labels include those given; 0 without any."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == f"prfaas_{name}" and labels.items() <= sample.labels.items()
        )


@dataclass
class System:
    """One gateway that serves, its engines, and a client of it."""

    gateway: Gateway
    url: str
    client: httpx.AsyncClient
    admin_url: str
    engines: Mapping[str, LiveEngine] = field(default_factory=dict)
    clusters: Mapping[str, RunningCluster] = field(default_factory=dict)
    edge: ClientEdge = field(default_factory=lambda: ClientEdge(ClientLimits()))

    def engine(self, name: str) -> LiveEngine:
        """A scripted engine."""
        return self.engines[name]

    def host(self, name: str) -> EngineHost:
        """A stand-in engine."""
        return next(c.engines[name] for c in self.clusters.values() if name in c.engines)

    # -- as a client

    async def complete(
        self, prompt: object, *, headers: Mapping[str, str] | None = None, **body: object
    ) -> httpx.Response:
        """Ask for a completion; a number asks with that many token ids, never seen before."""
        asked = fresh_ids(prompt) if isinstance(prompt, int) else prompt
        return await self.client.post(
            "/v1/completions",
            json={"model": MODEL, "prompt": asked, "max_tokens": 4, **body},
            headers=headers,
        )

    # -- as an operator

    async def admin(
        self, method: str, path: str, body: object = None, *, key: str | None = None
    ) -> httpx.Response:
        """Call the admin API."""
        return await self.client.request(
            method,
            f"{self.admin_url}/admin/v1/{path}",
            json=body,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
        )

    async def order(self, method: str, path: str, body: object = None) -> Document:
        """Call the admin API, which must be content, and return its document."""
        answer = await self.admin(method, path, body)
        assert answer.is_success, answer.text
        document: Document = answer.json()
        return document

    async def decisions(self, query: str = "") -> list[Document]:
        """The latest decisions, newest first."""
        documents: list[Document] = (await self.order("GET", f"decisions?{query}"))["decisions"]
        return documents

    async def metrics(self) -> Metrics:
        """Scrape."""
        answer = await self.client.get(f"{self.admin_url}/metrics")
        assert answer.status_code == 200
        return Metrics(answer.text)

    async def counted(self, name: str, within: float = 60.0, **labels: str) -> Metrics:
        """Poll until a metric with these labels is over 0; return the scrape.

        Requests are counted after their last byte, which may reach the client a moment before.
        """
        async with asyncio.timeout(within):
            while True:
                metrics = await self.metrics()
                if metrics.total(name, **labels) > 0:
                    return metrics
                await asyncio.sleep(0.01)

    async def until(self, condition: Callable[[Document], bool], within: float = 60.0) -> Document:
        """Poll the state document until a condition holds of it; return it."""
        async with asyncio.timeout(within):
            while True:
                state = await self.order("GET", "state")
                if condition(state):
                    return state
                await asyncio.sleep(0.01)

    async def settled(self, within: float = 60.0) -> None:
        """Wait until nothing is in flight and nothing is booked."""

        def idle(state: Document) -> bool:
            return not any(each["inflight"] for each in state["instances"]) and not any(
                link["inflight_bytes"] for link in state["links"]
            )

        await self.until(idle, within)


def fresh_ids(count: int) -> list[int]:
    """Token ids whose every block is new."""
    term = next(_TERMS)
    return [1 + (term * 37 + place * (term + 1)) % 250 for place in range(count)]


def routing(answer: httpx.Response) -> tuple[str, str]:
    """Return where an answer says it ran, and why."""
    return answer.headers["x-prfaas-route"], answer.headers["x-prfaas-reason"]


# -- configurations


def merged(base: Document, changes: Mapping[str, Any]) -> Document:
    """Return `base` with `changes` laid over it, mappings into mappings."""
    result = dict(base)
    for name, value in changes.items():
        old = result.get(name)
        both = isinstance(old, dict) and isinstance(value, Mapping)
        result[name] = merged(old, value) if both else value
    return result


def describe(
    clusters: list[Document], *, threshold: int, model: Mapping[str, Any], **changes: object
) -> Document:
    """Return the configuration of a small system, with `changes` of its sections."""
    base: Document = {
        "models": [merged({"name": MODEL, "revision": "1"}, model)],
        "clusters": clusters,
        "links": [{"name": "west-east", "from": "west", "to": "east", "capacity_gbps": 1}],
        "scheduler": {
            "threshold": {"mode": "manual", "tokens": threshold},
            "decision_timeout_ms": 2000,
        },
        "kvmeta": {"lookup_timeout_ms": 1000},
        "upstream": {"connect_timeout_seconds": 1, "probe": {"interval_seconds": 0.05}},
        "drain": {"delay_seconds": 0.2, "grace_seconds": 5},
    }
    return merged(base, changes)


def write_configuration(directory: Path, document: Document) -> Path:
    """Write a configuration beside the profile that it may name; return its path."""
    (directory / "profile.yaml").write_text(yaml.safe_dump(PROFILE), "utf-8")
    path = directory / "prfaas.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
    return path


# -- systems


@asynccontextmanager
async def serve_gateway(
    path: Path,
    *,
    engines: Mapping[str, LiveEngine] | None = None,
    clusters: Mapping[str, RunningCluster] | None = None,
) -> AsyncIterator[System]:
    """Serve the gateway of a configuration for the time of the block."""
    gateway = build_gateway(load(path, {}))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(gateway.running())
        edge = ClientEdge(gateway.limits, gateway.refusals)
        url = admin_url = await stack.enter_async_context(
            serve_application(gateway.application, edge)
        )
        if gateway.admin is not None:
            admin_url = await stack.enter_async_context(
                serve_application(gateway.admin, ClientEdge(gateway.limits, gateway.refusals))
            )
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, timeout=10, trust_env=False, verify=False)
        )
        yield System(gateway, url, client, admin_url, engines or {}, clusters or {}, edge)


@asynccontextmanager
async def serve_application(
    application: Application, edge: ClientEdge | None = None
) -> AsyncIterator[str]:
    """Serve an application as `prfaas serve` does, on a free port; it ends without a pause."""
    edge = edge or ClientEdge(ClientLimits())
    config = EdgeConfig(application, edge=edge, ws="none", lifespan="off", log_config=None)
    listener = Listener(application, config)
    await listener.open("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.port}"
    finally:
        await listener.close()


@asynccontextmanager
async def scripted_system(
    directory: Path,
    *,
    threshold: int = 100,
    model: Mapping[str, Any] | None = None,
    entries: Mapping[str, Mapping[str, Any]] | None = None,
    names: str = "p0 d0 f0",
    pools: Mapping[str, Document] | None = None,
    make_engine: Callable[[str], LiveEngine] = LiveEngine,
    **changes: object,
) -> AsyncIterator[System]:
    """A gateway over scripted engines.

    `names` tell the engines by their first letter: p prefills and d decodes in `east`, f prefills
    in `west`, b does both in `east`. `entries` add to what the configuration says of them,
    `model` to the model's, `pools` to the clusters'; further keywords are laid over the
    configuration.
    """
    roles = {"p": "prefill", "d": "decode", "f": "prefill", "b": "both"}
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(make_engine(name)) for name in names.split()
        }
        clusters: dict[str, Document] = {
            "east": {"name": "east", "kind": "pd", "instances": []},
            "west": {"name": "west", "kind": "prfaas", "instances": []},
        }
        for name, shared in (pools or {}).items():
            clusters[name]["pool"] = shared
        for name, engine in engines.items():
            entry = {"name": name, "url": engine.url, "role": roles[name[0]]}
            home = clusters["west" if name[0] == "f" else "east"]
            home["instances"].append(entry | dict((entries or {}).get(name, {})))
        told = {"tokenizer": {"kind": "none"}, "cache": {"block_size": BLOCK}, **(model or {})}
        document = describe(list(clusters.values()), threshold=threshold, model=told, **changes)
        path = write_configuration(directory, document)
        yield await stack.enter_async_context(serve_gateway(path, engines=engines))


@asynccontextmanager
async def standin_system(
    directory: Path,
    *,
    threshold: int = 100,
    groups: tuple[GroupSpec, ...] = DENSE,
    model: Mapping[str, Any] | None = None,
    names: str = "p0 d0 f0",
    time_scale: float = 100.0,
    auto_events: bool = False,
    profile_of: Callable[[str], EngineProfile] = lambda _: AffineProfile(),
    gbps: float = 1.0,
    **changes: object,
) -> AsyncIterator[System]:
    """A gateway over stand-in engines with real caches, KV events and hand-offs.

    `groups` are the KV groups of the model, `profile_of` tells how fast an engine is by its name,
    `gbps` is what the link carries; with `auto_events` the gateway asks the engines where
    they publish. When it begins every source of events is synced.
    """
    roles = {"p": Role.PREFILL, "d": Role.DECODE, "f": Role.PREFILL, "b": Role.BOTH}
    specs = [
        replace(
            standin(name, roles[name[0]], groups),
            profile=profile_of(name),
            lease_floor_seconds=10.0,  # a busy machine hands over late
        )
        for name in names.split()
    ]
    links = (LinkSpec("west-east", "east", gbps),)
    east = ClusterSpec(
        "east",
        tuple(spec for spec in specs if spec.name[0] != "f"),
        time_scale=time_scale,
    )
    west = ClusterSpec(
        "west", tuple(spec for spec in specs if spec.name[0] == "f"), links, time_scale=time_scale
    )
    async with AsyncExitStack() as stack:
        running = {
            spec.name: await stack.enter_async_context(
                serve_cluster(spec, tokenizer=shipped_tokenizer())
            )
            for spec in (east, west)
        }
        clusters = [
            {
                "name": name,
                "kind": "pd" if name == "east" else "prfaas",
                "instances": [
                    entry_of(host, auto_events=auto_events) for host in cluster.engines.values()
                ],
            }
            for name, cluster in running.items()
        ]
        told = {
            "cache": {"block_size": BLOCK, "groups": [describe_group(each) for each in groups]},
            "profiles": {"prfaas": "./profile.yaml", "pd": "./profile.yaml"},
            **(model or {}),
        }
        document = describe(clusters, threshold=threshold, model=told, **changes)
        path = write_configuration(directory, document)
        system = await stack.enter_async_context(serve_gateway(path, clusters=running))
        await system.until(lambda state: len(states_of(state)) == len(specs))
        yield system


def standin(name: str, role: Role, groups: tuple[GroupSpec, ...] = DENSE) -> EngineSpec:
    """A small stand-in on free ports."""
    return EngineSpec(
        name=name,
        role=role,
        profile=AffineProfile(),
        model=MODEL,
        cache=CacheSpec(hash_unit=BLOCK, blocks=4096, groups=groups),
        max_model_len=8192,
        decode_tokens_per_second=1000.0,
        enable_scale_out=True,
    )


def entry_of(host: EngineHost, *, auto_events: bool = False) -> Document:
    """What a configuration says of a stand-in that runs."""
    entry = {"name": host.spec.name, "url": host.url, "role": host.spec.role.value}
    if auto_events:
        return entry | {"kv_events": "auto"}
    return entry | {"kv_events": host.events_endpoint, "kv_replay": host.replay_endpoint}


def describe_group(group: GroupSpec) -> Document:
    """What a configuration says of a KV group."""
    told: Document = {"kind": group.kind.value, "count": group.count}
    return told if group.window is None else told | {"window": group.window}


def states_of(state: Document) -> dict[str, str]:
    """Return the state of every instance's source that is synced."""
    return {
        source["instance"]: source["state"]
        for source in state["index"]["sources"]
        if source["state"] == "synced"
    }


@contextmanager
def free_port() -> Iterator[int]:
    """A port that nobody else takes while the block runs."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]
