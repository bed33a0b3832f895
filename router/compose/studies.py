"""A scenario file -> what the simulator simulates."""

from __future__ import annotations

import math
from typing import assert_never

from router.compose.models import CompositionError
from router.compose.scenarios import build_scenario, read_trace
from router.control.balance import BalanceRules
from router.control.conversions import ConversionRules
from router.control.slack import SlackRules
from router.domain.topology import Role
from router.domain.units import from_gbps
from router.planning.scenarios import Scenario
from router.settings.scenarios import LoadedScenario, TraceSettings
from router.settings.simulated import (
    GammaSettings,
    MmppSettings,
    PoissonSettings,
    SessionSettings,
    SimulationSettings,
)
from router.sim.arrivals import Arrivals, GammaArrivals, MmppArrivals, PoissonArrivals
from router.sim.long_loops import LongLoopSpec
from router.sim.plants import Conversion, Incident, LinkChange
from router.sim.studies import Study, link_name
from router.sim.traffic import SessionTraffic, SingleTraffic, TraceTraffic, Traffic
from router.throughput.planner import best_allocation, list_allocations, tabulate
from router.throughput.stages import Deployment
from router.throughput.workloads import TruncatedLogNormal

_SHARE_OF_CAPACITY = 0.75
"""Load where the scenario names none: busy, and not yet full."""


def build_study(loaded: LoadedScenario, *, requests: int | None = None) -> Study:
    """Return what is to be simulated; `requests` of a run instead of the scenario's.

    N_p and N_d are the configured ones, else the plan's, and so is the static threshold. Raises
    CompositionError for what no simulation can be made of.
    """
    scenario = build_scenario(loaded)
    told = loaded.settings.simulation
    if len(scenario.deployment.pds) != 1:
        raise CompositionError("only systems with one PD cluster can be simulated")
    table = tabulate(scenario.deployment, scenario.workload)
    best = best_allocation(list_allocations(scenario.deployment, table, form=scenario.form))
    deployment = best.deployment
    threshold = round(best.solution.split.threshold)
    if scenario.configured is not None:
        threshold = scenario.configured.threshold
        deployment = deployment.with_prefill(scenario.configured.prefill)
    count = requests or told.requests
    rate = scenario.rate or _SHARE_OF_CAPACITY * best.solution.rate
    return Study(
        name=scenario.name,
        note=scenario.description,
        deployment=deployment,
        baseline=scenario.baseline,
        traffic=_traffic(loaded, scenario, rate),
        threshold=threshold,
        requests=count,
        warmup=count // 10,
        cooldown=count // 20,
        incidents=tuple(_incidents(told, deployment)),
        caches=told.cache_tokens,
        recurrent=told.recurrent,
        fabric=scenario.local_link,
        slack=SlackRules(aging=told.aging_seconds),
        long_loop=_long_loop(told, loaded.settings.workload.output_tokens),
    )


def _long_loop(told: SimulationSettings, output_tokens: float) -> LongLoopSpec | None:
    """Return the long loop that is asked for, if one is; raises CompositionError."""
    loop = told.long_loop
    if loop is None:
        return None
    if told.conversions:
        raise CompositionError("simulation.long_loop converts by itself: leave out conversions")
    return LongLoopSpec(
        output_tokens,
        loop.period_seconds,
        BalanceRules(loop.confirm_windows, loop.min_gain, loop.dwell_seconds),
        ConversionRules(lease=loop.lease_seconds, verify=math.inf),
        loop.changeover_seconds,
    )


def _traffic(loaded: LoadedScenario, scenario: Scenario, rate: float) -> Traffic:
    told, workload = loaded.settings.simulation, loaded.settings.workload
    output = round(workload.output_tokens)
    if isinstance(workload.lengths, TraceSettings):
        requests = tuple(read_trace(workload.lengths.path))
        if len(requests) < 2 or requests[-1].at <= 0:
            raise CompositionError(f"{workload.lengths.path} tells no rate of arrivals")
        native = (len(requests) - 1) / requests[-1].at
        return TraceTraffic(requests, rate / native if scenario.rate else 1.0)
    arrivals = _arrivals(told, rate)
    if told.sessions is None:
        return SingleTraffic(arrivals, scenario.workload, output)
    return _sessions(told.sessions, arrivals, scenario, output)


def _sessions(
    told: SessionSettings, arrivals: Arrivals, scenario: Scenario, output: int
) -> SessionTraffic:
    step = told.step
    return SessionTraffic(
        arrivals=arrivals,
        first=scenario.workload,
        step=TruncatedLogNormal(step.mu, step.sigma, step.min_tokens, step.max_tokens),
        turns=told.turns,
        pause=told.pause_seconds,
        output=output,
        shared=told.shared_tokens,
        longest=told.longest_tokens,
    )


def _arrivals(told: SimulationSettings, rate: float) -> Arrivals:
    match told.arrivals:
        case PoissonSettings():
            return PoissonArrivals(rate)
        case GammaSettings(cv=cv):
            return GammaArrivals(rate, cv)
        case MmppSettings(surge=surge, calm_seconds=calm, busy_seconds=busy):
            return MmppArrivals(rate, surge, calm, busy)
        case never:
            assert_never(never)


def _incidents(told: SimulationSettings, deployment: Deployment) -> list[Incident]:
    """Return what happens; raises CompositionError for what happens to nothing that is there."""
    remotes = {pool.name for pool in deployment.remotes}
    pd = deployment.pds[0]
    instances = {f"{pd.name}-p{i}" for i in range(pd.prefill)}
    instances |= {f"{pd.name}-d{i}" for i in range(pd.decode)}
    incidents: list[Incident] = []
    for change in told.links:
        if change.source not in remotes:
            raise CompositionError(f"simulation.links: no PrfaaS cluster {change.source!r}")
        name = link_name(change.source, pd.name)
        incidents.append(LinkChange(change.at_seconds, name, from_gbps(change.gbps)))
    for each in told.conversions:
        if each.instance not in instances:
            raise CompositionError(f"simulation.conversions: no instance {each.instance!r}")
        incidents.append(Conversion(each.at_seconds, each.instance, Role(each.role), each.seconds))
    return incidents
