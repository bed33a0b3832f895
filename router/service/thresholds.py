"""Solves `auto` thresholds beside the requests, and remembers what it solved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from math import log1p

from router.control.thresholds import InForce, StepRules, Today, solve_today, step_threshold
from router.domain.topology import Cluster, ClusterKind
from router.domain.units import Seconds, Tokens, to_gbps
from router.ports import Clock
from router.service.deployments import LiveDeployments
from router.service.fleet import Fleet
from router.service.lengths import OperatingLengths
from router.service.models import ServedModel
from router.throughput.stages import Deployment

_LOG = logging.getLogger(__name__)

_SEEN_ANEW = 32
"""Prompts after which lengths are worth solving for again: a thirtieth of what shares look at."""


class SolvedThresholds:
    """What is solved, by model and PD cluster. Nothing is, until the loop has seen enough."""

    def __init__(self) -> None:
        self._in_force: dict[tuple[str, str], InForce] = {}

    def of(self, model: str, pd: str) -> InForce | None:
        """Return what was solved for a model's prompts in a PD cluster."""
        return self._in_force.get((model, pd))

    def items(self) -> Iterable[tuple[str, str, InForce]]:
        """Return everything that is solved: model, PD cluster, solution."""
        return [(model, pd, each) for (model, pd), each in self._in_force.items()]

    def put(self, model: str, pd: str, in_force: InForce) -> None:
        """Remember what was solved."""
        self._in_force[model, pd] = in_force


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a solve depends on, coarse enough to be equal while nothing worth it changes."""

    pools: tuple[tuple[str, int, int], ...]
    prefill: int
    decode: int
    seen: int


class ThresholdLoop:
    """Solves t for every profiled model and PD cluster, where something changed."""

    def __init__(
        self,
        solved: SolvedThresholds,
        *,
        fleet: Fleet,
        deployments: LiveDeployments,
        models: Iterable[ServedModel],
        lengths: OperatingLengths,
        clock: Clock,
        rules: StepRules,
        period: Seconds,
    ) -> None:
        self._solved = solved
        self._fleet = fleet
        self._deployments = deployments
        self._models = tuple(models)
        self._lengths = lengths
        self._clock = clock
        self._rules = rules
        self._period = period
        self._inputs: dict[tuple[str, str], _Inputs] = {}

    def reconfigure(
        self, models: Iterable[ServedModel], *, rules: StepRules, period: Seconds
    ) -> None:
        """Go on with other models and rules: everything is solved anew, and steps go on."""
        self._models, self._rules, self._period = tuple(models), rules, period
        self._inputs.clear()

    async def run(self) -> None:
        """Look every period until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(self._period)

    def look(self) -> None:
        """Look once at every model and PD cluster."""
        for model in self._models:
            for cluster in self._fleet.clusters:
                if cluster.kind is ClusterKind.PD:
                    self._look_at(model, cluster)

    def _look_at(self, model: ServedModel, pd: Cluster) -> None:
        before = self._solved.of(model.name, pd.name)
        deployment = self._deployments.around(model, pd)
        lengths = self._lengths.of(model.name)
        workload = lengths.workload()
        if deployment is None or workload is None:
            return
        inputs = _inputs(deployment, lengths.seen)
        if before is not None and self._inputs.get((model.name, pd.name)) == inputs:
            solved = before.solved
        else:
            solved = solve_today(Today(deployment, workload), self._rules)
        self._inputs[model.name, pd.name] = inputs
        after = step_threshold(before, solved, self._clock.monotonic(), self._rules)
        self._solved.put(model.name, pd.name, after)
        if before is None or before.tokens != after.tokens:
            _tell(model, pd, before.tokens if before else None, after, deployment)


def _inputs(deployment: Deployment, seen: int) -> _Inputs:
    pd = deployment.pds[0]
    pools = tuple(
        # Bandwidth in steps of 1 %: telemetry trembles.
        (pool.name, pool.instances, round(100 * log1p(pool.egress)))
        for pool in deployment.remotes
    )
    return _Inputs(pools, pd.prefill, pd.decode, seen // _SEEN_ANEW)


def _tell(
    model: ServedModel, pd: Cluster, before: Tokens | None, after: InForce, today: Deployment
) -> None:
    pools = ", ".join(
        f"{pool.name} {pool.instances} on {to_gbps(pool.egress):.4g} Gbit/s"
        for pool in today.remotes
    )
    _LOG.info(
        "threshold of %s in %s: %s -> %d tokens (solved %d for %s; %d prefill, %d decode)",
        model.name,
        pd.name,
        before,
        after.tokens,
        after.solved.tokens,
        pools,
        today.pds[0].prefill,
        today.pds[0].decode,
    )
