"""What the model says of a running system: one model's prompts in one PD cluster, now or supposed.

A `Situation` is what was read from the live state in one instant. `suppose` changes it, `examine`
evaluates it with the threshold in force and with the best one. Nothing here is put in force.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from router.domain.errors import RouterError
from router.domain.units import BytesPerSecond, Tokens
from router.throughput.curves import OutOfRange
from router.throughput.demands import DemandTable
from router.throughput.planner import solve_whole_threshold, tabulate
from router.throughput.profiles import ProfileSource
from router.throughput.stages import Deployment, OperatingPoint, RemotePool, evaluate
from router.throughput.workloads import Atoms, Split, Workload


class Unsupposable(RouterError):
    """A supposition that does not fit the situation. `field` is the one to change."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class Lack(StrEnum):
    """Why the model has nothing to say."""

    PROFILES = "profiles"
    """The model has no profile of both kinds of cluster."""
    LINKS = "links"
    """No PrfaaS cluster has a link to the PD cluster."""
    REQUESTS = "requests"
    """Too few prompts were seen to know their lengths."""
    RANGE = "range"
    """A profile may not be extrapolated to the lengths."""


@dataclass(frozen=True, slots=True)
class LinkIn:
    """The link of one PrfaaS pool: its name, t in force over it (None: off), how B_out is known."""

    name: str
    threshold: Tokens | None
    source: ProfileSource


@dataclass(frozen=True, slots=True)
class Situation:
    """One model's prompts in one PD cluster. `links` are those of the deployment's remote pools.

    `workload` is None where too few prompts were seen, `offload_share` before the first one.
    `bounds` limit what `auto` may solve. `supposed` names the parts that are no measurements.
    """

    model: str
    pd: str
    deployment: Deployment
    links: tuple[LinkIn, ...]
    workload: Workload | None
    seen: int
    offload_share: float | None
    bounds: tuple[Tokens, Tokens]
    supposed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Suppositions:
    """Changes to a situation; what is absent stays as it is.

    `egress` is by link, `prefill` and `decode` (N_p, N_d) by PD cluster, `remote` by PrfaaS
    cluster. `mean` scales the lengths that were seen, `lengths` replaces them. `threshold` is held
    instead of t in force.
    """

    egress: Mapping[str, BytesPerSecond] = field(default_factory=dict)
    prefill: Mapping[str, int] = field(default_factory=dict)
    decode: Mapping[str, int] = field(default_factory=dict)
    remote: Mapping[str, int] = field(default_factory=dict)
    mean: float | None = None
    lengths: tuple[Tokens, ...] = ()
    threshold: Tokens | None = None


@dataclass(frozen=True, slots=True)
class LivePlan:
    """A situation, evaluated.

    `held` is what is sustained with the threshold in force, or the supposed one, `held_tokens`
    (None: everything stays at home); `best` with the best whole threshold within the bounds,
    `best_tokens`. `local_rate` is Lambda_max with everything at home. `mean` is E[L].
    """

    situation: Situation
    mean: float
    held: OperatingPoint
    held_tokens: Tokens | None
    best: OperatingPoint
    best_tokens: Tokens | None
    local_rate: float
    notes: tuple[str, ...]

    @property
    def gain(self) -> float | None:
        """How much more is sustained as it is held than at home; None where home has nobody."""
        return self.held.rate / self.local_rate if self.local_rate > 0 else None


def suppose(situation: Situation, changes: Suppositions) -> Situation:
    """Return the situation with the changes that concern it.

    Raises Unsupposable where a mean is to scale lengths that nobody saw.
    """
    return replace(
        situation,
        deployment=_suppose_pools(situation, changes),
        links=_suppose_links(situation, changes),
        workload=_suppose_lengths(situation, changes),
        supposed=situation.supposed | frozenset(_supposed(situation, changes)),
    )


def _suppose_pools(situation: Situation, changes: Suppositions) -> Deployment:
    before = situation.deployment
    remotes = tuple(
        replace(
            pool,
            instances=changes.remote.get(pool.name, pool.instances),
            egress=changes.egress.get(link.name, pool.egress),
        )
        for pool, link in zip(before.remotes, situation.links, strict=True)
    )
    pds = tuple(
        replace(
            pd,
            prefill=changes.prefill.get(pd.name, pd.prefill),
            decode=changes.decode.get(pd.name, pd.decode),
        )
        for pd in before.pds
    )
    return replace(before, remotes=remotes, pds=pds)


def _suppose_links(situation: Situation, changes: Suppositions) -> tuple[LinkIn, ...]:
    return tuple(
        replace(
            link,
            threshold=link.threshold if changes.threshold is None else changes.threshold,
            source=ProfileSource.QUOTED if link.name in changes.egress else link.source,
        )
        for link in situation.links
    )


def _suppose_lengths(situation: Situation, changes: Suppositions) -> Workload | None:
    if changes.lengths:
        return Atoms.from_lengths(changes.lengths)
    if changes.mean is None:
        return situation.workload
    if situation.workload is None:
        raise Unsupposable(
            f"the lengths of {situation.model!r} that were seen are too few to be scaled:"
            " give lengths",
            field="mean_tokens",
        )
    return situation.workload.scaled(changes.mean / mean_length(situation.workload))


def _supposed(situation: Situation, changes: Suppositions) -> Iterator[str]:
    """Yield the parts of the situation that are as somebody said, and not as they were read."""
    if changes.lengths or changes.mean is not None:
        yield "lengths"
    if situation.pd in changes.prefill:
        yield "prefill"
    if situation.pd in changes.decode:
        yield "decode"
    yield from changes.remote.keys() & {pool.name for pool in situation.deployment.remotes}


def mean_length(workload: Workload) -> float:
    """Return E[L]."""
    return DemandTable.of(workload, (), ()).sums[-1][0]


def examine(situation: Situation) -> LivePlan | Lack:
    """Return what the model says. Some milliseconds, or `Lack` where it has nothing to say.

    Pools to which the rule sends nothing (no instance alive, no bandwidth, threshold off) are left
    out.
    """
    if not situation.deployment.remotes:
        return Lack.LINKS
    if situation.workload is None:
        return Lack.REQUESTS
    reached, thresholds = _reached(situation)
    deployment = replace(situation.deployment, remotes=reached)
    try:
        table = tabulate(deployment, situation.workload)
    except OutOfRange:
        return Lack.RANGE
    return _evaluate(situation, deployment, table, thresholds)


def _evaluate(
    situation: Situation,
    deployment: Deployment,
    table: DemandTable,
    thresholds: tuple[Tokens, ...],
) -> LivePlan:
    """Evaluate the pools that are reached, over whose links the `thresholds` are in force."""
    home = evaluate(deployment, table.at_share(1.0))
    best, best_tokens = home, None
    held, held_tokens = home, None
    if deployment.remotes:
        solution = solve_whole_threshold(deployment, table, bounds=situation.bounds)
        best, best_tokens = solution.point, round(solution.split.threshold)
        held_tokens = min(thresholds)
        held = evaluate(deployment, table.at(Split(float(held_tokens))))
    return LivePlan(
        situation,
        mean=table.sums[-1][0],
        held=held,
        held_tokens=held_tokens,
        best=best,
        best_tokens=best_tokens,
        local_rate=home.rate,
        notes=tuple(_notes(situation, deployment.remotes, thresholds)),
    )


def _reached(situation: Situation) -> tuple[tuple[RemotePool, ...], tuple[Tokens, ...]]:
    """Return the pools that prefills can go to, and t over the link of each."""
    pairs = [
        (pool, link.threshold)
        for pool, link in zip(situation.deployment.remotes, situation.links, strict=True)
        if link.threshold is not None and pool.instances and pool.egress > 0
    ]
    return tuple(pool for pool, _ in pairs), tuple(tokens for _, tokens in pairs)


def _notes(
    situation: Situation, reached: tuple[RemotePool, ...], thresholds: tuple[Tokens, ...]
) -> Iterator[str]:
    for pool, link in zip(situation.deployment.remotes, situation.links, strict=True):
        if pool in reached:
            continue
        if link.threshold is None:
            yield f"offloading to {pool.name} is off"
        elif not pool.instances:
            yield f"no instance of {pool.name} is ready"
        else:
            yield f"{link.name} carries nothing"
    if len(set(thresholds)) > 1:
        told = ", ".join(f"{tokens:,}" for tokens in sorted(set(thresholds)))
        yield f"thresholds in force differ ({told}): evaluated with the least"
