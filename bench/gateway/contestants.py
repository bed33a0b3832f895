"""Who is measured: this gateway and vllm-router, in the modes that both have."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from bench.gateway.events import BLOCK_SIZE
from bench.gateway.workloads import MODEL, WORKLOADS, Form
from router.sim.tokenizer import locate_tokenizer

ALL = tuple(WORKLOADS)
_MAIN = ("small-1", "small-32", "long-4")
"""Where the form of the prompt is much of the work."""

ENGINES = 6
"""Ports of the mock engine: two prefill, two decode, two prefill in another cluster."""


class Mode(StrEnum):
    """What a router does with a request."""

    PD = "pd"
    """A prefill call, a hand-off, a decode call."""
    REGULAR = "regular"
    """One call."""


@dataclass(frozen=True, slots=True)
class Ours:
    """This gateway, one process. `redis` puts its state into a Redis server."""

    redis: bool = False


@dataclass(frozen=True, slots=True)
class VllmRouter:
    """The vllm-router package with one of its policies."""

    policy: str


Product: TypeAlias = Ours | VllmRouter


@dataclass(frozen=True, slots=True)
class Contestant:
    """A router in one mode, and the workloads that it gets with each form of prompt."""

    name: str
    mode: Mode
    product: Product
    workloads: dict[Form, tuple[str, ...]]


CONTESTANTS: tuple[Contestant, ...] = (
    Contestant("ours", Mode.PD, Ours(), {Form.IDS: ALL, Form.TEXT: (*_MAIN, "paced")}),
    Contestant(
        "vllm-router",
        Mode.PD,
        VllmRouter("round_robin"),
        {Form.IDS: ALL, Form.TEXT: _MAIN},
    ),
    Contestant("ours-redis", Mode.PD, Ours(redis=True), {Form.IDS: (*_MAIN, "burst", "paced")}),
    Contestant("ours", Mode.REGULAR, Ours(), {Form.IDS: ALL, Form.TEXT: _MAIN}),
    Contestant(
        "vllm-router-round-robin",
        Mode.REGULAR,
        VllmRouter("round_robin"),
        {Form.IDS: ALL, Form.TEXT: _MAIN},
    ),
    Contestant(
        "vllm-router-cache-aware",
        Mode.REGULAR,
        VllmRouter("cache_aware"),
        {Form.IDS: _MAIN, Form.TEXT: _MAIN},
    ),
)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a contestant is to run, and among what."""

    directory: Path
    port: int
    metrics_port: int
    engines: Sequence[str]
    events: Sequence[tuple[str, str]]
    peer: Path
    redis_url: str | None = None


def command(contestant: Contestant, site: Site) -> list[str]:
    """Return the command that runs a contestant; writes its configuration where it needs one."""
    match contestant.product:
        case Ours():
            path = site.directory / f"{contestant.mode}-{contestant.name}.yaml"
            path.write_text(yaml.safe_dump(describe(contestant.mode, site), sort_keys=False))
            serve = ["serve", "--config", str(path), "--log-level", "warning"]
            return [sys.executable, "-m", "router", *serve]
        case VllmRouter(policy):
            return [
                str(site.peer),
                *("--host", "127.0.0.1", "--port", str(site.port)),
                *("--prometheus-port", str(site.metrics_port)),
                *("--policy", policy, "--log-level", "warning"),
                *_name_workers(contestant.mode, site.engines),
            ]


def ready_path(contestant: Contestant) -> str:
    """Return where a contestant answers 200 once it can serve."""
    return "/ready" if isinstance(contestant.product, Ours) else "/health"


def _name_workers(mode: Mode, engines: Sequence[str]) -> list[str]:
    match mode:
        case Mode.PD:
            prefill = [word for url in engines[:2] for word in ("--prefill", url)]
            decode = [word for url in engines[2:4] for word in ("--decode", url)]
            return ["--vllm-pd-disaggregation", *prefill, *decode]
        case Mode.REGULAR:
            return ["--worker-urls", *engines[:2]]


def describe(mode: Mode, site: Site) -> dict[str, Any]:
    """Return this gateway's configuration: everything on, everything else as it is by default."""
    document: dict[str, Any] = {
        "server": {"host": "127.0.0.1", "port": site.port},
        "store": {"url": site.redis_url or "memory://"},
        "models": [
            {
                "name": MODEL,
                "revision": "1",
                "tokenizer": {"kind": "hf", "path": str(locate_tokenizer())},
                "cache": {"block_size": BLOCK_SIZE},
                "profiles": {"prfaas": "profile.yaml", "pd": "profile.yaml"},
            }
        ],
        "clusters": _describe_clusters(mode, site),
        "kvmeta": {"ingest": "embedded"},
        "drain": {"delay_seconds": 0, "grace_seconds": 1},
    }
    if mode is Mode.PD:
        link = {"name": "west-east", "from": "west", "to": "east", "capacity_gbps": 100}
        document["links"] = [link]
    (site.directory / "profile.yaml").write_text(yaml.safe_dump(_PROFILE))
    return document


_PROFILE = {
    "model": MODEL,
    "revision": "1",
    "hardware": "none",
    "engine": "mock",
    "date": "2026-01-01",
    "source": "modelled",
    "points": [
        {"tokens": 1_000, "kv_bytes": 200_000_000, "prefill_seconds": 0.4},
        {"tokens": 128_000, "kv_bytes": 2_400_000_000, "prefill_seconds": 7.0},
    ],
}


def _describe_clusters(mode: Mode, site: Site) -> list[dict[str, Any]]:
    def entry(name: str, at: int, role: str, source: int | None = None) -> dict[str, Any]:
        told = {"name": name, "url": site.engines[at], "role": role}
        if source is None:
            return told
        events, replay = site.events[source]
        return told | {"kv_events": events, "kv_replay": replay}

    match mode:
        case Mode.PD:
            east = [
                entry("p0", 0, "prefill", 0),
                entry("p1", 1, "prefill", 1),
                entry("d0", 2, "decode"),
                entry("d1", 3, "decode"),
            ]
            west = [entry("f0", 4, "prefill", 2), entry("f1", 5, "prefill", 3)]
            return [
                {"name": "east", "kind": "pd", "instances": east},
                {"name": "west", "kind": "prfaas", "instances": west},
            ]
        case Mode.REGULAR:
            both = [entry("b0", 0, "both", 2), entry("b1", 1, "both", 3)]
            return [{"name": "east", "kind": "pd", "instances": both}]
