"""The model's view of the running system, and of what it would be: `GET plan`, `POST plan:solve`.

The state is read in one instant on the event loop; what takes milliseconds is computed on these
frozen values in a thread, one at a time, so that requests do not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from router.control.links import BandwidthSource, LinkState, bandwidth_source
from router.domain.decision import ThresholdMode
from router.domain.errors import BadRequest, NotFound, Overloaded
from router.domain.topology import Cluster, ClusterKind
from router.domain.units import Seconds, Tokens
from router.planning.live_documents import describe_lack, describe_live_plan
from router.planning.live_plans import (
    Lack,
    LinkIn,
    LivePlan,
    Situation,
    Suppositions,
    Unsupposable,
    examine,
    suppose,
)
from router.service.decisions import Document
from router.service.deployments import LiveDeployments
from router.service.lengths import OperatingLengths
from router.service.models import ModelCatalog, ServedModel
from router.service.operator import Operator
from router.throughput.profiles import ProfileSource
from router.throughput.workloads import WorkloadError

_PATIENCE: Final[Seconds] = 5.0
"""How long an operator waits for others' plans: ctl gives up at ten seconds."""

_NO_CHANGE: Final = Suppositions()

_MEASURED: Final = frozenset({BandwidthSource.TELEMETRY, BandwidthSource.INFERRED})


@dataclass(frozen=True, slots=True)
class _Unprofiled:
    """A model in a PD cluster of which the model has nothing to work with."""

    model: str
    pd: str
    lack: Lack


_View = Situation | _Unprofiled


@dataclass(frozen=True, slots=True)
class LivePlans:
    """Reads live state, and asks the model about it."""

    deployments: LiveDeployments
    catalog: ModelCatalog
    operator: Operator
    lengths: OperatingLengths
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def now(self, *, model: str | None = None, pd: str | None = None) -> list[Document]:
        """Return what the model says of every model and PD cluster, or of those that are named.

        Raises NotFound for an unknown name, Overloaded where others' plans take too long.
        """
        views = list(self._read(model, pd))
        plans = await self._examine_all(views, _NO_CHANGE)
        return [_describe(view, plan) for view, plan in zip(views, plans, strict=True)]

    async def solve(
        self, changes: Suppositions, *, model: str | None = None, pd: str | None = None
    ) -> list[Document]:
        """Return what the model says now and with changes; nothing is put in force.

        Raises as `now`, and BadRequest for a supposition that names nothing or cannot be made.
        """
        self._check_names(changes)
        views = list(self._read(model, pd))
        now = await self._examine_all(views, _NO_CHANGE)
        then = await self._examine_all(views, changes)
        return [
            {
                "model": view.model,
                "pd": view.pd,
                "now": _describe(view, before),
                "supposed": _describe(view, after),
                "lambda_ratio": _ratios(before, after),
            }
            for view, before, after in zip(views, now, then, strict=True)
        ]

    async def _examine_all(
        self, views: Sequence[_View], changes: Suppositions
    ) -> list[LivePlan | Lack]:
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._turn.acquire()
        except TimeoutError:
            raise Overloaded("other plans are being solved", retry_after=_PATIENCE) from None
        try:
            return await asyncio.to_thread(_examine_supposed, views, changes)
        except Unsupposable as error:
            raise BadRequest(f"{error.field}: {error}", param=error.field) from error
        except WorkloadError as error:
            raise BadRequest(f"the model cannot say: {error}") from error
        finally:
            self._turn.release()

    def _read(self, model: str | None, pd: str | None) -> Iterator[_View]:
        models = self.catalog.models if model is None else [self.catalog.resolve(model).model]
        clusters = [
            cluster
            for cluster in self.deployments.fleet.clusters
            if cluster.kind is ClusterKind.PD and pd in (None, cluster.name)
        ]
        if pd is not None and not clusters:
            raise NotFound(f"no PD cluster {pd!r}")
        for each in models:
            for cluster in clusters:
                yield self._view(each, cluster)

    def _view(self, model: ServedModel, pd: Cluster) -> _View:
        deployment = self.deployments.around(model, pd)
        if deployment is None:
            profiled = {ClusterKind.PD, ClusterKind.PRFAAS} <= model.profiles.keys()
            return _Unprofiled(model.name, pd.name, Lack.LINKS if profiled else Lack.PROFILES)
        seen = self.lengths.of(model.name)
        rules = self.operator.rules
        return Situation(
            model=model.name,
            pd=pd.name,
            deployment=deployment,
            links=tuple(
                self._link(state, model, pd) for state in self.deployments.links_to(pd.name)
            ),
            workload=seen.workload(),
            seen=seen.seen,
            offload_share=seen.offload_share,
            bounds=(rules.low, rules.high),
        )

    def _link(self, state: LinkState, model: ServedModel, pd: Cluster) -> LinkIn:
        threshold = self.operator.threshold(model.name, state.link.source, pd.name)
        tokens: Tokens | None = threshold.tokens
        if threshold.mode is ThresholdMode.OFF:
            tokens = None
        told = bandwidth_source(state, self.deployments.clock.monotonic())
        source = ProfileSource.MEASURED if told in _MEASURED else ProfileSource.QUOTED
        return LinkIn(state.link.name, tokens, source)

    def _check_names(self, changes: Suppositions) -> None:
        fleet = self.deployments.fleet
        kinds = {
            kind: {cluster.name for cluster in fleet.clusters if cluster.kind is kind}
            for kind in ClusterKind
        }
        links = {state.link.name for state in self.deployments.links.states}
        _require("bandwidth_gbps", "link", changes.egress, links)
        _require("prefill_instances", "PD cluster", changes.prefill, kinds[ClusterKind.PD])
        _require("decode_instances", "PD cluster", changes.decode, kinds[ClusterKind.PD])
        _require("prfaas_instances", "PrfaaS cluster", changes.remote, kinds[ClusterKind.PRFAAS])


def _require(field_name: str, what: str, given: Mapping[str, object], known: set[str]) -> None:
    unknown = sorted(given.keys() - known)
    if unknown:
        raise BadRequest(f"{field_name}: no {what} {unknown[0]!r}", param=field_name)


def _examine_supposed(views: Sequence[_View], changes: Suppositions) -> list[LivePlan | Lack]:
    return [
        view.lack if isinstance(view, _Unprofiled) else examine(suppose(view, changes))
        for view in views
    ]


def _describe(view: _View, plan: LivePlan | Lack) -> Document:
    if isinstance(plan, Lack):
        return describe_lack(view.model, view.pd, plan)
    return describe_live_plan(plan)


def _ratios(before: LivePlan | Lack, after: LivePlan | Lack) -> Document | None:
    """Return Lambda_max with the changes over that of now: t as it is in force, and the best t."""
    if isinstance(before, Lack) or isinstance(after, Lack):
        return None
    return {
        "in_force": _ratio(after.held.rate, before.held.rate),
        "best": _ratio(after.best.rate, before.best.rate),
    }


def _ratio(one: float, other: float) -> float | None:
    return one / other if other > 0 else None
