"""The three stages of a deployment and what they sustain together: equations 2 to 8.

Two producers, PrfaaS (offloaded prefill over a link) and PD-P (local prefill), feed one consumer,
PD-D (decode). Equation numbers are those of the paper (arXiv 2604.15039); equation 1 is
`Profile.kv_rate`. Rates are in requests per second. Where a stage has several pools, their rates
add up: requests of a stage spread over its pools in proportion to what each can take, which is what
choosing the least expected time tends to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from router.domain.units import BytesPerSecond, Seconds
from router.throughput.demands import Demands, RemoteDemand
from router.throughput.profiles import Profile

RequestsPerSecond = float


class Stage(StrEnum):
    """A stage of the pipeline."""

    PRFAAS = "prfaas"
    PD_P = "pd_p"
    PD_D = "pd_d"


class Bound(StrEnum):
    """What limits a PrfaaS pool."""

    COMPUTE = "compute"
    BANDWIDTH = "bandwidth"


@dataclass(frozen=True, slots=True)
class DecodeRules:
    """What decode is held to by the SLO, for one instance.

    `slots` is BS_max, `step_seconds` T_decode for one token, `output_tokens` L_out.
    """

    slots: float
    step_seconds: Seconds
    output_tokens: float


@dataclass(frozen=True, slots=True)
class RemotePool:
    """A PrfaaS cluster: N_prfaas instances behind links with B_out bytes per second in all.

    `share` is the part of the instances' time that this deployment has; other PD clusters have the
    rest.
    """

    name: str
    profile: Profile
    instances: int
    egress: BytesPerSecond
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class PdPool:
    """A PD cluster: N_p prefill and N_d decode instances of one kind of hardware."""

    name: str
    profile: Profile
    prefill: int
    decode: int
    rules: DecodeRules

    @property
    def instances(self) -> int:
        """How many instances may take either role."""
        return self.prefill + self.decode


@dataclass(frozen=True, slots=True)
class Deployment:
    """All pools. `overlap`: KV travels layer by layer while the prefill runs."""

    remotes: tuple[RemotePool, ...]
    pds: tuple[PdPool, ...]
    overlap: bool = True

    def with_prefill(self, counts: Mapping[str, int]) -> Deployment:
        """Return the deployment with N_p of the named PD pools changed, their size kept."""
        pds = tuple(
            replace(pd, prefill=counts[pd.name], decode=pd.instances - counts[pd.name])
            if pd.name in counts
            else pd
            for pd in self.pds
        )
        return replace(self, pds=pds)

    def with_egress(self, factor: float) -> Deployment:
        """Return the deployment with every link's bandwidth multiplied."""
        remotes = tuple(
            replace(pool, egress=BytesPerSecond(pool.egress * factor)) for pool in self.remotes
        )
        return replace(self, remotes=remotes)

    @property
    def egress(self) -> BytesPerSecond:
        """B_out of all PrfaaS pools together."""
        return BytesPerSecond(sum(pool.egress for pool in self.remotes))


@dataclass(frozen=True, slots=True)
class RemoteRate:
    """Equation 3 for one pool: the rate it sustains, and both terms of the minimum."""

    name: str
    rate: RequestsPerSecond
    compute: RequestsPerSecond
    bandwidth: RequestsPerSecond

    @property
    def bound(self) -> Bound:
        """Which term limits the pool."""
        return Bound.COMPUTE if self.compute <= self.bandwidth else Bound.BANDWIDTH


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What a deployment sustains under one split.

    `theta` is Theta of each stage, None where no request goes there; `ceilings` are the arrival
    rates that each stage alone would bear (Theta / p, Theta / (1 - p), Theta), infinite for a stage
    without requests. `rate` is Lambda_max. `egress` is what crosses all links at that rate.
    """

    demands: Demands
    theta: Mapping[Stage, RequestsPerSecond | None]
    ceilings: Mapping[Stage, RequestsPerSecond]
    rate: RequestsPerSecond
    binding: Stage
    remotes: tuple[RemoteRate, ...]
    egress: BytesPerSecond

    @property
    def threshold_residual(self) -> float | None:
        """Equation 7 as (left - right) / (left + right); None where a side is unused."""
        return _residual(self.ceilings[Stage.PRFAAS], self.ceilings[Stage.PD_P])

    @property
    def balance_residual(self) -> float | None:
        """Equation 8 as (producers - consumer) / (producers + consumer), in [-1, 1].

        Whole instances cannot bring it to 0; it tells which side has too much.
        """
        producers = (self.theta[Stage.PRFAAS] or 0.0) + (self.theta[Stage.PD_P] or 0.0)
        return _residual(producers, self.theta[Stage.PD_D] or 0.0)


def egress_demand(
    instances: float, mean_kv_bytes: float, mean_prefill_seconds: Seconds
) -> BytesPerSecond:
    """Return the bandwidth that busy prefill instances fill: equation 2, (N/P) E[S] / E[T]."""
    return BytesPerSecond(instances * mean_kv_bytes / mean_prefill_seconds)


def remote_rate(pool: RemotePool, demand: RemoteDemand, *, overlap: bool) -> RemoteRate:
    """Return what a PrfaaS pool sustains: equation 3, min(N / T, B_out / S).

    Without overlap each request occupies compute, then the link: 1 / (T / N + S / B_out).
    """
    compute = _rate(pool.instances * pool.share, demand.seconds)
    bandwidth = _rate(pool.egress, demand.kv_bytes)
    if overlap:
        rate = min(compute, bandwidth)
    elif compute == 0 or bandwidth == 0:
        rate = 0.0
    else:
        rate = 1 / (1 / compute + 1 / bandwidth)
    return RemoteRate(pool.name, rate, compute, bandwidth)


def local_rate(pool: PdPool, seconds: Seconds) -> RequestsPerSecond:
    """Return what local prefill sustains: equation 4, N_p / T. RDMA is no bottleneck there."""
    return _rate(pool.prefill, seconds)


def decode_rate(pool: PdPool) -> RequestsPerSecond:
    """Return what decode sustains: equation 5, N_d BS_max / (T_decode L_out)."""
    rules = pool.rules
    return _rate(pool.decode * rules.slots, rules.step_seconds * rules.output_tokens)


def prefill_ceilings(
    deployment: Deployment, demands: Demands
) -> tuple[RequestsPerSecond, RequestsPerSecond]:
    """Return both sides of equation 7, Theta_prfaas / p and Theta_pd-p / (1 - p)."""
    remote = local = math.inf
    if demands.remote is not None:
        rates = _remote_rates(deployment, demands.remote)
        remote = sum(each.rate for each in rates) / demands.offload_share
    if demands.local is not None:
        local = _local_theta(deployment, demands.local) / (1 - demands.offload_share)
    return remote, local


def evaluate(deployment: Deployment, demands: Demands) -> OperatingPoint:
    """Return the operating point: equation 6, the least of the three ceilings.

    The earlier stage is named where ceilings are equal.
    """
    remotes: tuple[RemoteRate, ...] = ()
    theta: dict[Stage, RequestsPerSecond | None] = {Stage.PRFAAS: None, Stage.PD_P: None}
    if demands.remote is not None:
        remotes = _remote_rates(deployment, demands.remote)
        theta[Stage.PRFAAS] = sum((each.rate for each in remotes), 0.0)
    if demands.local is not None:
        theta[Stage.PD_P] = _local_theta(deployment, demands.local)
    decode = sum((decode_rate(pd) for pd in deployment.pds), 0.0)
    theta[Stage.PD_D] = decode
    remote, local = prefill_ceilings(deployment, demands)
    ceilings = {Stage.PRFAAS: remote, Stage.PD_P: local, Stage.PD_D: decode}
    binding = min(ceilings, key=lambda stage: ceilings[stage])
    rate = ceilings[binding]
    return OperatingPoint(
        demands=demands,
        theta=theta,
        ceilings=ceilings,
        rate=rate,
        binding=binding,
        remotes=remotes,
        egress=_egress(rate, demands, remotes),
    )


def _remote_rates(
    deployment: Deployment, demands: Sequence[RemoteDemand]
) -> tuple[RemoteRate, ...]:
    return tuple(
        remote_rate(pool, demand, overlap=deployment.overlap)
        for pool, demand in zip(deployment.remotes, demands, strict=True)
    )


def _local_theta(deployment: Deployment, seconds: Sequence[Seconds]) -> RequestsPerSecond:
    pairs = zip(deployment.pds, seconds, strict=True)
    return sum((local_rate(pd, each) for pd, each in pairs), 0.0)


def _egress(
    rate: RequestsPerSecond, demands: Demands, remotes: Sequence[RemoteRate]
) -> BytesPerSecond:
    """Return p Lambda S, each pool with its share of the offloaded requests."""
    together = sum(each.rate for each in remotes)
    if demands.remote is None or not 0 < together < math.inf:
        return BytesPerSecond(0.0)
    offloaded = demands.offload_share * rate
    return BytesPerSecond(
        sum(
            offloaded * each.rate / together * demand.kv_bytes
            for each, demand in zip(remotes, demands.remote, strict=True)
        )
    )


def _rate(supply: float, cost: float) -> float:
    if supply == 0:
        return 0.0
    return supply / cost if cost > 0 else math.inf


def _residual(left: float, right: float) -> float | None:
    if math.isinf(left) or math.isinf(right) or left + right == 0:
        return None
    return (left - right) / (left + right)
