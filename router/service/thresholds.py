"""Solves `auto` thresholds beside the requests, and remembers what it solved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import log1p

from router.control.thresholds import InForce, StepRules, Today, solve_today, step_threshold
from router.domain.errors import NotLeading, StoreAway
from router.domain.topology import Cluster, ClusterKind
from router.domain.units import Seconds, to_gbps
from router.ports import Clock
from router.service.decisions import Document
from router.service.deployments import LiveDeployments
from router.service.fleet import Fleet
from router.service.leadership import Leadership
from router.service.lengths import KeptLengths, OperatingLengths
from router.service.models import ServedModel
from router.service.solutions import (
    KeptSolution,
    KeptSolutions,
    Moment,
    keep_solution,
    restore_solution,
)
from router.service.solved_book import SolvedBook
from router.throughput.curves import OutOfRange
from router.throughput.stages import Deployment
from router.throughput.workloads import WorkloadError

_LOG = logging.getLogger(__name__)

POLL_SECONDS: Seconds = 0.25
"""What is solved is promised everywhere within a second: three looks may be late or lost."""

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


@dataclass(frozen=True, slots=True)
class _Move:
    """What becomes of a pair. `anew` is whether it was solved for what is known now."""

    model: ServedModel
    pd: Cluster
    inputs: _Inputs
    before: InForce | None
    after: InForce
    anew: bool


class ThresholdLoop:
    """Solves t for every profiled model and PD cluster, where something changed, for all processes.

    The leader solves and writes what it found; everybody, the leader too, puts in force what was
    written. Who begins to lead goes on from what was written last.
    """

    def __init__(
        self,
        solved: SolvedThresholds,
        *,
        book: SolvedBook,
        leadership: Leadership,
        fleet: Fleet,
        deployments: LiveDeployments,
        models: Iterable[ServedModel],
        lengths: OperatingLengths,
        clock: Clock,
        rules: StepRules,
        period: Seconds,
    ) -> None:
        self._solved = solved
        self._book = book
        self._leadership = leadership
        self._fleet = fleet
        self._deployments = deployments
        self._models = tuple(models)
        self._lengths = lengths
        self._clock = clock
        self._rules = rules
        self._period = period
        self._inputs: dict[tuple[str, str], _Inputs] = {}
        self._term = 0

    def reconfigure(
        self, models: Iterable[ServedModel], *, rules: StepRules, period: Seconds
    ) -> None:
        """Go on with other models and rules: everything is solved anew, and steps go on."""
        self._models, self._rules, self._period = tuple(models), rules, period
        self._inputs.clear()

    async def begin(self) -> None:
        """Go on from what was solved last, lengths included, if the store says."""
        with suppress(StoreAway):
            await self.refresh()
        for name, kept in self._book.known.lengths.items():
            self._lengths.of(name).restore(kept)

    async def run(self) -> None:
        """Look every period until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._period)

    async def follow(self) -> None:
        """Put in force what a leader elsewhere solved, until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            with suppress(StoreAway):
                await self.refresh()

    async def look(self) -> None:
        """Look once at every model and PD cluster, if this process leads."""
        if not self._leadership.leads:
            return
        with suppress(NotLeading, StoreAway):
            if self._term != self._leadership.term:
                await self.refresh()
                self._term = self._leadership.term
            await self._solve()

    async def refresh(self) -> None:
        """Put in force what the store has, if it is news. Raises StoreAway."""
        before = self._book.known
        if await self._book.refresh():
            self._adopt(before, self._book.known)

    async def _solve(self) -> None:
        moves = [
            move
            for model in self._models
            for pd in self._fleet.clusters
            if pd.kind is ClusterKind.PD
            if (move := self._move(model, pd)) is not None
        ]
        known = self._book.known
        lengths, solutions = self._as_kept(moves)
        said = (solutions == known.solutions and self._book.is_kept) or not solutions
        if not said and not await self._book.write(lengths, solutions):
            await self.refresh()
            return
        for move in moves:
            self._put(move)

    def _move(self, model: ServedModel, pd: Cluster) -> _Move | None:
        """Return what there should be of a pair; None where nothing is known to solve it for."""
        key = (model.name, pd.name)
        before = self._solved.of(*key)
        deployment = self._deployments.around(model, pd)
        lengths = self._lengths.of(model.name)
        workload = lengths.workload()
        if deployment is None or workload is None:
            return None
        inputs = _inputs(deployment, lengths.seen)
        anew = before is None or self._inputs.get(key) != inputs
        solved = (
            solve_today(Today(deployment, workload), self._rules)
            if before is None or anew
            else before.solved
        )
        after = step_threshold(before, solved, self._clock.monotonic(), self._rules)
        return _Move(model, pd, inputs, before, after, anew=anew)

    def _as_kept(
        self, moves: Sequence[_Move]
    ) -> tuple[dict[str, KeptLengths], tuple[KeptSolution, ...]]:
        """Return all that shall be known: what moves, and what cannot be solved now as it was."""
        known, now = self._book.known, self._now()
        present = {(model.name, pd.name) for model in self._models for pd in self._fleet.clusters}
        kept = {
            (each.model, each.pd): each
            for each in known.solutions
            if (each.model, each.pd) in present
        }
        lengths = dict(known.lengths)
        for move in moves:
            key = move.model.name, move.pd.name
            kept[key] = keep_solution(*key, move.after, move.before, kept.get(key), now)
            fresh = self._lengths.of(move.model.name).keep() if move.anew else None
            if fresh is not None:
                lengths[move.model.name] = fresh
        return lengths, tuple(kept[key] for key in sorted(kept))

    def _put(self, move: _Move) -> None:
        self._inputs[move.model.name, move.pd.name] = move.inputs
        self._solved.put(move.model.name, move.pd.name, move.after)
        if move.before is None or move.before.tokens != move.after.tokens:
            _tell(move)

    def _adopt(self, before: KeptSolutions, news: KeptSolutions) -> None:
        """Put in force what another process wrote, where it differs from what was known."""
        models = {model.name: model for model in self._models}
        for kept in news.solutions:
            old = before.of(kept.model, kept.pd)
            lengths = news.lengths.get(kept.model)
            model = models.get(kept.model)
            if old == kept or lengths is None or model is None:
                continue
            try:
                in_force = restore_solution(kept, lengths, model, self._now())
            except (OutOfRange, WorkloadError) as error:
                _LOG.warning("what was solved for %s does not fit here: %s", kept.model, error)
                continue
            if in_force is not None:
                self._solved.put(kept.model, kept.pd, in_force)

    def describe(self) -> Document:
        """Return who solved what is in force, and when; nulls before anything was."""
        return self._book.describe()

    def _now(self) -> Moment:
        return Moment(self._clock.now(), self._clock.monotonic())


def _inputs(deployment: Deployment, seen: int) -> _Inputs:
    pd = deployment.pds[0]
    pools = tuple(
        # Bandwidth in steps of 1 %: telemetry trembles.
        (pool.name, pool.instances, round(100 * log1p(pool.egress)))
        for pool in deployment.remotes
    )
    return _Inputs(pools, pd.prefill, pd.decode, seen // _SEEN_ANEW)


def _tell(move: _Move) -> None:
    today = move.after.solved.today.deployment
    pools = ", ".join(
        f"{pool.name} {pool.instances} on {to_gbps(pool.egress):.4g} Gbit/s"
        for pool in today.remotes
    )
    _LOG.info(
        "threshold of %s in %s: %s -> %d tokens (solved %d for %s; %d prefill, %d decode)",
        move.model.name,
        move.pd.name,
        move.before.tokens if move.before else None,
        move.after.tokens,
        move.after.solved.tokens,
        pools,
        today.pds[0].prefill,
        today.pds[0].decode,
    )
