"""What the scenes are played on: the paper's case study, small enough for two processors. Pure.

Four PrfaaS instances (H200) and a PD cluster of three prefill and five decode instances (H20)
behind 100 Gbit/s (arXiv 2604.15039, section 4). A token here stands for `TOKENS` of the paper's:
seconds, bytes and Gbit/s are the paper's, and a request is cheap enough that nobody waits for a
processor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from router.domain.units import BytesPerSecond, Seconds, Tokens, from_gbps
from router.sim.arrivals import PoissonArrivals
from router.sim.traffic import Demand, SingleTraffic, draw_demands
from router.throughput.profiles import Profile, ProfilePoint, ProfileSource
from router.throughput.stages import DecodeRules, Deployment, PdPool, RemotePool
from router.throughput.workloads import TruncatedLogNormal

Document = dict[str, Any]

MODEL: Final = "case-study"
PD, PRFAAS, LINK = "east", "west", "west-east"
CAPACITY_GBPS: Final = 100.0
STARVED_GBPS: Final = 5.0
BLOCK_TOKENS: Final = 16
TOKENS: Final = 10
OUTPUT_TOKENS: Final = 16
DECODE_TOKENS_PER_SECOND: Final = 40.0
SLOTS: Final = 20
BOUNDS: Final = (50, 12_800)
"""Bounds of `auto`, in tokens."""
BUDGET_SECONDS: Final = 30.0
QUEUE_LIMIT: Final = 4
DWELL_SECONDS: Final = 5.0
LEASE_SECONDS: Final = 3.0
"""After a leader's last sign of life another acts within this."""
WINDOW_SECONDS: Final = 5.0
"""Windows of the long loop, short enough to be waited for."""
DRAIN_SECONDS: Final = 4.0
"""A gateway that leaves is not ready any more and serves on for so long."""
TELEMETRY_SECONDS: Final = 4.0
"""Age at which a report of the link no longer counts."""

_H200: Final = (
    (1000, 200_068_301, 0.44),
    (8000, 323_905_126, 0.72),
    (32_000, 735_366_349, 1.84),
    (128_000, 2_428_816_589, 7.40),
)
_H20: Final = (
    (1000, 200_068_301, 0.551),
    (8000, 323_905_126, 1.518),
    (32_000, 735_366_349, 4.974),
    (128_000, 2_428_816_589, 21.496),
)
"""Tokens, bytes, seconds: the H200 quoted (table 5), the H20 a fit to table 6."""

LENGTHS: Final = TruncatedLogNormal(9.9 - math.log(TOKENS), 1.0, 13, 12_800)
"""The paper's prompts."""

REMOTES: Final = ("f0", "f1", "f2", "f3")
LOCALS: Final = ("p0", "p1", "p2")
DECODES: Final = ("d0", "d1", "d2", "d3", "d4")


class Cast(StrEnum):
    """What a system is like beside the plant itself."""

    PLAIN = "plain"
    """As deployed."""
    SHIPS_PREFIX = "ships_prefix"
    """Its connector says that it can move a bare prefix."""
    CONVERTS = "converts"
    """Its long loop converts instances of the PD cluster, which serve both roles (`label`)."""


SHIPPING_CONNECTOR: Final = "nixl-prefix"


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens: its URL and its ports for KV events and their replay."""

    url: str
    events: int
    replay: int


def make_profile(points: tuple[tuple[int, int, float], ...]) -> Profile:
    """Return one of the case study's profiles at this scale."""
    return Profile.from_points(
        [ProfilePoint(*point) for point in _scale(points)], source=ProfileSource.MODELLED
    )


def make_deployment(gbps: float) -> Deployment:
    """Return the plant as the throughput model sees it, with a link of so many Gbit/s."""
    return Deployment(
        (RemotePool(PRFAAS, make_profile(_H200), len(REMOTES), from_gbps(gbps)),),
        (
            PdPool(
                PD,
                make_profile(_H20),
                len(LOCALS),
                len(DECODES),
                DecodeRules(SLOTS, 1 / DECODE_TOKENS_PER_SECOND, OUTPUT_TOKENS),
            ),
        ),
    )


def draw_traffic(rate: float, seed: int) -> Iterator[Demand]:
    """Yield the demands of Poisson arrivals of `rate` requests a second, without end."""
    return draw_demands(SingleTraffic(PoissonArrivals(rate), LENGTHS, OUTPUT_TOKENS), seed)


def link_rate(gbps: float) -> BytesPerSecond:
    """Return Gbit/s in bytes a second."""
    return from_gbps(gbps)


def describe_profiles() -> Mapping[str, Document]:
    """Return the profile files by their names."""
    return {
        name: {
            "model": MODEL,
            "revision": "1",
            "hardware": hardware,
            "engine": "stand-in",
            "date": "2026-04-16",
            "source": "modelled",
            "points": [
                {"tokens": tokens, "kv_bytes": size, "prefill_seconds": seconds}
                for tokens, size, seconds in _scale(points)
            ],
        }
        for name, hardware, points in (("h200", "8xH200", _H200), ("h20", "8xH20", _H20))
    }


def describe_plant(
    store: str, engines: Mapping[str, Address], *, port: int, cast: Cast = Cast.PLAIN
) -> Document:
    """Return the configuration of one replica, that listens on `port`."""
    converts = cast is Cast.CONVERTS
    return {
        "server": {"host": "127.0.0.1", "port": port},
        "store": {"url": store, "timeout_ms": 1000},
        "models": [
            {
                "name": MODEL,
                "revision": "1",
                "tokenizer": {"kind": "none"},
                "cache": {"block_size": BLOCK_TOKENS},
                "profiles": {"prfaas": "./h200.yaml", "pd": "./h20.yaml"},
                "decode": {
                    "max_concurrency": SLOTS,
                    "tokens_per_second_slo": DECODE_TOKENS_PER_SECOND,
                    "expected_output_tokens": OUTPUT_TOKENS,
                },
            }
        ],
        "clusters": [
            _describe_cluster(PD, "pd", engines, LOCALS + DECODES, convertible=converts),
            _describe_cluster(PRFAAS, "prfaas", engines, REMOTES, convertible=False),
        ],
        "links": [
            {
                "name": LINK,
                "from": PRFAAS,
                "to": PD,
                "capacity_gbps": CAPACITY_GBPS,
                "telemetry": {"max_age_seconds": TELEMETRY_SECONDS},
            },
        ],
        "scheduler": {
            "threshold": {
                "mode": "auto",
                "tokens": 1940,
                "min_tokens": BOUNDS[0],
                "max_tokens": BOUNDS[1],
            },
            "decision_timeout_ms": 2000,
            "remote_queue_limit": QUEUE_LIMIT,
            "link_budget_seconds": BUDGET_SECONDS,
            "leader_lease_seconds": LEASE_SECONDS,
            "short_loop": {"period_seconds": 1, "dwell_seconds": DWELL_SECONDS},
            "long_loop": {
                "period_seconds": WINDOW_SECONDS,
                "confirm_windows": 2,
                "actuator": "label" if converts else "dry_run",
            },
        },
        "kvmeta": {"lookup_timeout_ms": 500},
        "transfer": {
            "connector": SHIPPING_CONNECTOR if cast is Cast.SHIPS_PREFIX else "nixl",
            "lease_seconds": 60,
            "layerwise_overlap": True,
        },
        "drain": {"delay_seconds": DRAIN_SECONDS, "grace_seconds": 60},
        "engines": {"blocks": 16_384, "max_model_len": 16_384},
    }


def _describe_cluster(
    name: str,
    kind: str,
    engines: Mapping[str, Address],
    members: tuple[str, ...],
    *,
    convertible: bool,
) -> Document:
    instances = []
    for member in members:
        address = engines[member]
        instances.append(
            {
                "name": member,
                "url": address.url,
                "role": "decode" if member in DECODES else "prefill",
                "kv_events": f"tcp://127.0.0.1:{address.events}",
                "kv_replay": f"tcp://127.0.0.1:{address.replay}",
                **({"convertible": True} if convertible else {}),
            }
        )
    return {"name": name, "kind": kind, "instances": instances}


def _scale(points: tuple[tuple[int, int, float], ...]) -> list[tuple[Tokens, int, Seconds]]:
    return [(tokens // TOKENS, size, seconds) for tokens, size, seconds in points]
