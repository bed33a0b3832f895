"""What is planned: pools, traffic, limits and prices, and how certain each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from router.domain.decision import GateLimits
from router.domain.units import BytesPerSecond, Seconds, Tokens, from_gbps
from router.throughput.demands import Form
from router.throughput.prices import Prices
from router.throughput.profiles import KvLine, ProfileSource
from router.throughput.stages import Deployment, PdPool
from router.throughput.workloads import Workload

RDMA: Final = from_gbps(800)
"""The fabric of one instance inside a PD cluster, as in the paper's case study."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What the scheduler would know in production."""

    metadata: bool = True
    telemetry: bool = True


@dataclass(frozen=True, slots=True)
class Configured:
    """What is in force today: t, and N_p by PD pool where it is fixed."""

    threshold: Tokens
    prefill: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrefixSet:
    """What the prefix caches should hold, and the model's KV as a line."""

    prefixes: int
    tokens: Tokens
    line: KvLine


@dataclass(frozen=True, slots=True)
class Basis:
    """One thing that a plan rests on, and how it is known."""

    name: str
    source: ProfileSource
    note: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a plan is made from.

    `deployment` says how many instances each PD pool has; how they are divided is the plan's to
    find. `workload` are uncached lengths, `cache_hit_ratio` the part of prompts that was taken off
    them. `baseline` is the homogeneous pool to compare with. `rate` is the arrival rate to bear,
    None where only the most is asked for.
    """

    name: str
    description: str
    model: str
    deployment: Deployment
    workload: Workload
    baseline: PdPool
    limits: GateLimits
    rests_on: tuple[Basis, ...]
    knowledge: Knowledge = Knowledge()
    form: Form = Form.EXACT
    local_link: BytesPerSecond = RDMA
    cache_hit_ratio: float = 0.0
    rate: float | None = None
    ttft_slo: Seconds | None = None
    prices: Prices | None = None
    configured: Configured | None = None
    prefix_set: PrefixSet | None = None
