"""Small simulated systems: the paper's case study, and queues that have closed forms."""

from __future__ import annotations

import math
from collections.abc import Iterator

from router.domain.decision import ThresholdMode
from router.domain.topology import ClusterKind
from router.domain.units import BytesPerSecond, from_gbps
from router.sim.arrivals import Arrivals, PoissonArrivals
from router.sim.plants import (
    DecodeSpec,
    Incident,
    LinkSpec,
    PlantSpec,
    PoolSpec,
    Reference,
    RuleSpec,
)
from router.sim.records import Record
from router.sim.simulations import Simulation
from router.sim.traffic import Demand, SingleTraffic, draw_demands
from router.throughput.profiles import Profile, ProfilePoint, ProfileSource
from router.throughput.workloads import Atoms, Split, TruncatedLogNormal, Workload

MIB = 2**20
LENGTHS = (1000, 8000, 32000, 128000)
KV_MIB = (190.8, 308.9, 701.3, 2316.3)
FABRIC = from_gbps(800)
CASE = TruncatedLogNormal(9.9, 1.0, 128, 128_000)


def a_profile(seconds: tuple[float, ...]) -> Profile:
    """The paper's lengths and KV bytes (Table 5) with these prefill times."""
    return Profile.from_points(
        [
            ProfilePoint(length, round(mib * MIB), each)
            for length, mib, each in zip(LENGTHS, KV_MIB, seconds, strict=True)
        ],
        source=ProfileSource.QUOTED,
    )


def a_linear_profile(seconds_per_token: float, kv_bytes_per_token: int = 0) -> Profile:
    """A prompt takes its length; the end points are all there is to it."""
    return Profile.from_points(
        [
            ProfilePoint(0, 0, 0.0),
            ProfilePoint(10**6, kv_bytes_per_token * 10**6, seconds_per_token * 10**6),
        ],
        source=ProfileSource.MODELLED,
    )


class Exponential(Atoms):
    """Exponential lengths of the given mean: what the closed forms of M/M/c assume."""

    def __init__(self, mean: float) -> None:
        super().__init__((mean,), (1.0,), (1.0,))

    def split_at(self, local_share: float) -> Split:
        """Return the split at the quantile of `local_share`."""
        return Split(-self.lengths[0] * math.log1p(-local_share))


H200 = a_profile((0.44, 0.72, 1.84, 7.40))
H20 = a_profile((0.551, 1.518, 4.974, 21.496))
"""A fit: the paper does not print the H20 curve."""


def a_case_study(
    *,
    prefills: int = 3,
    decodes: int = 5,
    remote: int = 4,
    gbps: float = 100,
    overlap: bool = True,
    reserved: bool = True,
    cache_blocks: int = 0,
    rule: RuleSpec | None = None,
) -> PlantSpec:
    """The paper's case study: 4 remote instances, 3 prefill, 5 decode, 100 Gb/s."""
    pools = [PoolSpec("pd", ClusterKind.PD, H20, prefills, decodes, cache_blocks)]
    links = []
    if remote:
        pools.append(PoolSpec("prfaas", ClusterKind.PRFAAS, H200, remote, 0, cache_blocks))
        links.append(LinkSpec("wire", "prfaas", from_gbps(gbps), overlap=overlap))
    return PlantSpec(
        tuple(pools),
        tuple(links),
        DecodeSpec(20, 0.025, reserved=reserved),
        rule or RuleSpec(tokens=19_606),
        FABRIC,
    )


def a_queue(profile: Profile, servers: int) -> PlantSpec:
    """Prefill servers in one line, and nothing else that could make anybody wait."""
    return PlantSpec(
        (PoolSpec("pd", ClusterKind.PD, profile, servers, 1),),
        (),
        DecodeSpec(None, 1e-6),
        RuleSpec(mode=ThresholdMode.OFF),
        BytesPerSecond(1e15),
    )


def a_reference(plant: PlantSpec) -> Reference:
    """The promise of a plant's own rule and hardware."""
    remote = [pool for pool in plant.pools if pool.kind is ClusterKind.PRFAAS]
    return Reference(
        plant.rule.tokens,
        plant.pd.profile,
        remote[0].profile if remote else None,
        plant.links[0].rate if plant.links else plant.fabric,
        plant.fabric,
    )


def demands(arrivals: Arrivals, lengths: Workload = CASE, seed: int = 1) -> Iterator[Demand]:
    """Requests that share nothing."""
    return draw_demands(SingleTraffic(arrivals, lengths, 1024), seed)


def simulate(
    plant: PlantSpec,
    rate: float,
    count: int,
    *,
    lengths: Workload = CASE,
    seed: int = 1,
    incidents: tuple[Incident, ...] = (),
) -> list[Record]:
    """Run Poisson traffic through a plant; return the records in the order of arrival."""
    traffic = demands(PoissonArrivals(rate), lengths, seed)
    records = Simulation(plant, traffic, count, a_reference(plant), incidents).run()
    return sorted(records, key=lambda record: record.number)
