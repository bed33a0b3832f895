"""A study: one deployment and its traffic, served by several contestants on the same requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import assert_never

from router.control.slack import SlackRules
from router.domain.decision import Rule, ThresholdMode
from router.domain.topology import ClusterKind
from router.domain.units import BytesPerSecond, Seconds, Tokens
from router.sim.long_loops import LongLoop, LongLoopSpec
from router.sim.plants import (
    DecodeSpec,
    Incident,
    LinkSpec,
    PlantFault,
    PlantSpec,
    PoolSpec,
    Reference,
    RuleSpec,
)
from router.sim.records import Record
from router.sim.replay.traces import BLOCK_TOKENS
from router.sim.simulations import Simulation, Solver
from router.sim.statistics import Figures, measure_run
from router.sim.traffic import SingleTraffic, Traffic, draw_demands
from router.throughput.demands import DemandTable
from router.throughput.planner import (
    plan_homogeneous,
    plan_naive,
    solve_whole_threshold,
    tabulate,
)
from router.throughput.stages import Deployment, PdPool
from router.throughput.workloads import Atoms, Workload

_BLOCK = BLOCK_TOKENS
_SAMPLE = 20_000
"""Requests from which a workload that has no closed form is taken."""


class Contestant(StrEnum):
    """What serves the traffic."""

    HOMOGENEOUS = "homogeneous"
    """One PD cluster of as many instances, divided at its best; no link."""
    NAIVE = "naive"
    """Every prefill in the PrfaaS clusters, every PD instance decodes."""
    PAPER = "paper"
    """The paper's rule with its static threshold."""
    TUNED = "tuned"
    """The paper's rule with t solved by the exact form, and again when a link changes."""
    TOTAL = "total"
    """The tuned threshold compared with all of a prompt's tokens: the classic mistake."""
    EXPECTED = "expected"
    """Least expected completion, the tuned t as prior."""
    SLACK = "slack"
    """Waiting at the gateway in order of slack, bound late, the tuned t as prior."""


@dataclass(frozen=True, slots=True)
class Study:
    """What is simulated.

    `deployment` is the PrfaaS-PD system with N_p and N_d as they are; `baseline` the homogeneous
    pool. `threshold` is the static t. `caches` are an instance's cached tokens by cluster, the
    baseline's under its own name. The first `warmup` and last `cooldown` of `requests` are left
    out of the figures. With `long_loop` the contestants with a link convert instances.
    """

    name: str
    deployment: Deployment
    baseline: PdPool
    traffic: Traffic
    threshold: Tokens
    requests: int
    warmup: int
    cooldown: int
    incidents: tuple[Incident, ...] = ()
    caches: Mapping[str, Tokens] | None = None
    recurrent: bool = True
    reserved: bool = True
    fabric: BytesPerSecond = BytesPerSecond(100e9)  # noqa: RUF009 - a number with its unit
    slack: SlackRules = SlackRules()
    note: str = ""
    long_loop: LongLoopSpec | None = None

    def __post_init__(self) -> None:
        if len(self.deployment.pds) != 1:
            raise PlantFault("a simulated system has exactly one PD cluster")
        if self.warmup + self.cooldown >= self.requests:
            raise PlantFault("warm-up and cool-down leave no request to count")


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant that is ready to run: the plant, how t follows the links, who is converted."""

    plant: PlantSpec
    solve: Solver | None
    incidents: tuple[Incident, ...]
    long_loop: LongLoopSpec | None = None


def prepare(study: Study, contestant: Contestant, workload: Workload) -> Entry:
    """Return a contestant of a study whose uncached lengths are `workload`."""
    deployment = study.deployment
    table = tabulate(deployment, workload)
    solve = partial(_solve, deployment, table)
    tuned = solve({pool.name: pool.egress for pool in deployment.remotes})
    match contestant:
        case Contestant.HOMOGENEOUS:
            alone = plan_homogeneous(study.baseline, workload).deployment
            rule = RuleSpec(mode=ThresholdMode.OFF)
            return Entry(_build(study, alone, rule), None, ())
        case Contestant.NAIVE:
            naive = plan_naive(deployment, table).deployment
            # Nobody is at home to spill to, so nothing is turned back by a queue or a budget.
            rule = RuleSpec(tokens=0, remote_queue_limit=1 << 30, link_budget=1e9)
            return Entry(_build(study, naive, rule), None, study.incidents)
        case Contestant.PAPER:
            rule = RuleSpec(tokens=study.threshold)
            loop = None if study.long_loop is None else replace(study.long_loop, threshold=None)
            return Entry(_build(study, deployment, rule), None, study.incidents, loop)
        case Contestant.TUNED:
            rule = RuleSpec(tokens=tuned)
        case Contestant.TOTAL:
            rule = RuleSpec(tokens=tuned, by_total=True)
        case Contestant.EXPECTED:
            rule = RuleSpec(rule=Rule.EXPECTED, tokens=tuned)
        case Contestant.SLACK:
            rule = RuleSpec(rule=Rule.SLACK, tokens=tuned, slack=study.slack)
        case _:
            assert_never(contestant)
    return Entry(_build(study, deployment, rule), solve, study.incidents, study.long_loop)


def find_workload(study: Study) -> Workload:
    """Return the distribution of uncached lengths that t is solved for.

    Where it has no closed form it is what a cache without bounds leaves of a sample.
    """
    if isinstance(study.traffic, SingleTraffic):
        return study.traffic.lengths
    sample = islice(draw_demands(study.traffic, 0), _SAMPLE)
    return Atoms.from_lengths(demand.fresh for demand in sample)


def simulate_once(study: Study, contestant: Contestant, seed: int) -> list[Record]:
    """Run one contestant on the requests of one seed."""
    workload = find_workload(study)
    entry = prepare(study, contestant, workload)
    return Simulation(
        entry.plant,
        draw_demands(study.traffic, seed),
        study.requests,
        _promise(study, workload),
        entry.incidents,
        entry.solve,
        None if entry.long_loop is None else LongLoop(entry.long_loop),
    ).run()


def measure_once(study: Study, contestant: Contestant, seed: int) -> Figures:
    """Run one contestant on the requests of one seed; return the figures."""
    records = simulate_once(study, contestant, seed)
    return measure_run(records, warmup=study.warmup, cooldown=study.cooldown)


def with_aging(study: Study, aging: Seconds) -> Study:
    """Return the study with another bound on the tail of `slack`."""
    return replace(study, slack=replace(study.slack, aging=aging))


def link_name(source: str, target: str) -> str:
    """Return the name of a study's link."""
    return f"{source}-{target}"


def _promise(study: Study, workload: Workload) -> Reference:
    """Return what requests are promised: the unloaded TTFT under the tuned threshold."""
    deployment = study.deployment
    first = deployment.remotes[0] if deployment.remotes else None
    rates = {pool.name: pool.egress for pool in deployment.remotes}
    return Reference(
        threshold=_solve(deployment, tabulate(deployment, workload), rates),
        local=deployment.pds[0].profile,
        remote=first.profile if first else None,
        link=first.egress if first else study.fabric,
        fabric=study.fabric,
        overlap=deployment.overlap,
    )


def _solve(
    deployment: Deployment, table: DemandTable, rates: Mapping[str, BytesPerSecond]
) -> Tokens:
    remotes = tuple(replace(pool, egress=rates[pool.name]) for pool in deployment.remotes)
    solution = solve_whole_threshold(replace(deployment, remotes=remotes), table)
    return round(solution.split.threshold)


def _build(study: Study, deployment: Deployment, rule: RuleSpec) -> PlantSpec:
    blocks = {name: tokens // _BLOCK for name, tokens in (study.caches or {}).items()}
    pd = deployment.pds[0]
    home = PoolSpec(
        name=pd.name,
        kind=ClusterKind.PD,
        profile=pd.profile,
        prefills=pd.prefill,
        decodes=pd.decode,
        cache_blocks=blocks.get(pd.name, 0),
    )
    remote = [
        PoolSpec(
            name=pool.name,
            kind=ClusterKind.PRFAAS,
            profile=pool.profile,
            prefills=pool.instances,
            cache_blocks=blocks.get(pool.name, 0),
        )
        for pool in deployment.remotes
    ]
    return PlantSpec(
        pools=(home, *remote),
        links=tuple(
            LinkSpec(link_name(pool.name, pd.name), pool.name, pool.egress, deployment.overlap)
            for pool in deployment.remotes
        ),
        decode=DecodeSpec(round(pd.rules.slots), pd.rules.step_seconds, study.reserved),
        rule=rule,
        fabric=study.fabric,
        block_tokens=_BLOCK,
        recurrent=study.recurrent,
    )
