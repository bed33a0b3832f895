"""The simulated twin of a scene: the same plant, the same requests, the same incidents. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from bench.live import plants
from bench.live.claims import Outcome, mean_ttft, offload_share
from bench.live.clients import Visit
from router.control.thresholds import StepRules, Today, solve_today
from router.domain.topology import ClusterKind
from router.domain.units import BytesPerSecond, Seconds, Tokens, to_gbps
from router.service.lengths import ModelLengths
from router.sim.plants import (
    DecodeSpec,
    LinkChange,
    LinkSpec,
    PlantSpec,
    PoolSpec,
    Reference,
    RuleSpec,
)
from router.sim.records import Record
from router.sim.simulations import Simulation
from router.sim.traffic import Demand
from router.throughput.workloads import Workload

SPLIT_POINTS = 0.03
TTFT_SHARE = 0.15
"""How far a live run may be from its twin."""

STEPS = StepRules(plants.BOUNDS[0], plants.BOUNDS[1], dwell=plants.DWELL_SECONDS)


def solve_for(gbps: float, workload: Workload) -> Tokens:
    """Return the best threshold of the plant behind a link of so many Gbit/s (equation 7)."""
    return solve_today(Today(plants.make_deployment(gbps), workload), STEPS).tokens


def observe_lengths(uncached: Iterable[Tokens]) -> Workload:
    """Return the lengths as a gateway's histogram has them after these prompts.

    Raises ValueError where they are too few for one.
    """
    lengths = ModelLengths()
    for tokens in uncached:
        lengths.note(uncached=tokens, computed=tokens, offloaded=False)
    workload = lengths.workload()
    if workload is None:
        raise ValueError("a gateway that saw so few prompts solves nothing")
    return workload


def simulate_twin(
    demands: Sequence[Demand], workload: Workload, changes: Iterable[tuple[Seconds, float]] = ()
) -> list[Record]:
    """Return what the simulator makes of the demands, under `auto` as the gateways have it.

    `workload` are the lengths that t is solved for, `changes` the link's Gbit/s from moments on.
    """

    def solve(rates: Mapping[str, BytesPerSecond]) -> Tokens:
        return solve_for(to_gbps(rates[plants.PRFAAS]), workload)

    threshold = solve_for(plants.CAPACITY_GBPS, workload)
    return Simulation(
        build_plant(threshold),
        iter(demands),
        len(demands),
        promise(threshold),
        tuple(LinkChange(at, plants.LINK, plants.link_rate(gbps)) for at, gbps in changes),
        solve,
        steps=STEPS,
    ).run()


def compare_twin(
    outcome: Outcome, visits: Sequence[Visit], records: Sequence[Record], *, binding: bool
) -> None:
    """Compare a live run with its twin in route split and mean time to the first token.

    Where it is not `binding`, for a run too short to judge by, that is told and not claimed.
    """
    live, modelled = offload_share(visits), fmean([each.route == "prfaas" for each in records])
    first, simulated = mean_ttft(visits), fmean([each.ttft for each in records])
    split = f"{live:.1%} against {modelled:.1%}"
    latency = f"{first:.3f} s against {simulated:.3f} s ({first / simulated - 1:+.1%})"
    names = ("offloaded share, live against simulated", "mean TTFT, live against simulated")
    if not binding:
        outcome.figures.extend(zip(names, (split, latency), strict=True))
        return
    outcome.claim(
        names[0],
        f"within {100 * SPLIT_POINTS:.0f} points",
        split,
        holds=abs(live - modelled) <= SPLIT_POINTS,
    )
    outcome.claim(
        names[1],
        f"within {TTFT_SHARE:.0%}",
        latency,
        holds=abs(first / simulated - 1) <= TTFT_SHARE,
    )


def build_plant(threshold: Tokens, budget: Seconds = plants.BUDGET_SECONDS) -> PlantSpec:
    """Return the plant for the simulator, with a threshold to begin with and a link budget."""
    deployment = plants.make_deployment(plants.CAPACITY_GBPS)
    (remote,), (pd,) = deployment.remotes, deployment.pds
    return PlantSpec(
        pools=(
            PoolSpec(plants.PD, ClusterKind.PD, pd.profile, pd.prefill, pd.decode),
            PoolSpec(plants.PRFAAS, ClusterKind.PRFAAS, remote.profile, remote.instances),
        ),
        links=(LinkSpec(plants.LINK, plants.PRFAAS, remote.egress),),
        decode=DecodeSpec(plants.SLOTS, pd.rules.step_seconds),
        rule=RuleSpec(
            tokens=threshold,
            remote_queue_limit=plants.QUEUE_LIMIT,
            link_budget=budget,
        ),
        block_tokens=plants.BLOCK_TOKENS,
        recurrent=False,
    )


def promise(threshold: Tokens) -> Reference:
    """Return what a request is promised: what it would take alone under that threshold."""
    deployment = plants.make_deployment(plants.CAPACITY_GBPS)
    (remote,), (pd,) = deployment.remotes, deployment.pds
    return Reference(
        float(threshold), pd.profile, remote.profile, remote.egress, build_plant(threshold).fabric
    )
