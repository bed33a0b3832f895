"""Builds the frozen snapshot that the rule decides on from everything that is live."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvmeta.types import CacheBelief, SourceId, SourceState
from router.domain.decision import (
    ClusterView,
    GateView,
    InstanceView,
    LinkView,
    PairView,
    Regime,
    RequestView,
    Rule,
    Snapshot,
    ThresholdMode,
    ThresholdView,
    UnknownMetadata,
)
from router.domain.topology import Cluster, ClusterKind, Instance
from router.domain.units import Seconds, Tokens
from router.ports import Clock
from router.service.fleet import Fleet
from router.service.lengths import OperatingLengths
from router.service.links import LinkBoard
from router.service.members import Member
from router.service.models import ServedModel
from router.service.operator import Operator

_LOG = logging.getLogger(__name__)

Beliefs = Mapping[SourceId, CacheBelief]
"""What the index answered, by source; a source that is missing is unknown."""


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """The configured parts of the rule. `ships_prefix` is what the connector can do."""

    on_unknown: UnknownMetadata = UnknownMetadata.TOTAL
    remote_queue_limit: int = 16
    ships_prefix: bool = False


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Changes to live state for a dry run; None leaves what is."""

    threshold: Tokens | None = None
    regime: Regime | None = None


_UNKNOWN: Final = CacheBelief.unknown()

_ANY_LENGTH: Tokens = 2**62
"""Longer than any prompt."""


class _Seat(Struct, frozen=True, gc=False):
    """One member at its place, and what of its view follows from what it is.

    `source` is its one source; None where it has several ranks.
    """

    member: Member
    instance: Instance
    takes_handoff: bool
    source: SourceId | None


class _Outline:
    """What follows from who belongs to the fleet: drawn once, not for every request.

    `pairs` are (PrfaaS cluster, PD cluster); `sources` are by model, `seats` by cluster and model.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.generation = fleet.generation
        self.clusters = tuple(fleet.clusters)
        self.pairs = [
            (prfaas.name, pd.name)
            for prfaas in self.clusters
            if prfaas.kind is ClusterKind.PRFAAS
            for pd in self.clusters
            if pd.kind is ClusterKind.PD
        ]
        self.sources: dict[str, list[SourceId]] = {}
        self.seats: dict[tuple[str, str], list[_Seat]] = {}


class SnapshotBuilder:
    """Reads the fleet, the links and the operator's orders into one snapshot."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        links: LinkBoard,
        operator: Operator,
        rules: PolicyRules,
        lengths: OperatingLengths,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._fleet = fleet
        self._links = links
        self._operator = operator
        self._rules = rules
        self._lengths = lengths
        self._outline = _Outline(fleet)
        self._warned: set[str] = set()

    def sources(self, model: ServedModel) -> Sequence[SourceId]:
        """Return every source that could hold the model's blocks, with events or without."""
        sources = self._trace().sources
        found = sources.get(model.name)
        if found is None:
            found = sources[model.name] = [
                SourceId(member.instance.name, rank)
                for member in self._fleet.members
                if member.instance.model in (None, model.name)
                for rank in range(member.instance.ranks)
            ]
        return found

    def _trace(self) -> _Outline:
        """Return the fleet's outline, drawn anew where it has changed."""
        if self._outline.generation != self._fleet.generation:
            self._outline = _Outline(self._fleet)
        return self._outline

    def _seats(self, cluster: str, model: str) -> list[_Seat]:
        """Return the members of a cluster that serve a model, with what does not change of them."""
        seats = self._outline.seats
        found = seats.get((cluster, model))
        if found is None:
            found = seats[cluster, model] = [
                _Seat(
                    member,
                    member.instance,
                    member.instance.takes_handoff,
                    SourceId(member.instance.name, 0) if member.instance.ranks == 1 else None,
                )
                for member in self._fleet.members_of(cluster, model)
            ]
        return found

    def all_but(self, instance: str) -> frozenset[str]:
        """Return the names of every other instance."""
        names = frozenset(member.instance.name for member in self._fleet.members)
        return names - {instance}

    def local_up_to(self, model: ServedModel, tenant: str) -> Tokens:
        """Return the length up to which a prompt stays local, whatever is cached of it.

        0 where more than its length decides: an override, or another rule than the paper's.
        """
        if self._operator.policy is not Rule.PAPER or self._operator.override(model.name, tenant):
            return 0
        thresholds = [
            self._operator.threshold(model.name, prfaas, pd) for prfaas, pd in self._trace().pairs
        ]
        known = [each.tokens for each in thresholds if each.mode is not ThresholdMode.OFF]
        return min(known, default=_ANY_LENGTH)

    def binds_late(self, model: ServedModel) -> bool:
        """Tell whether prompts wait for an instance: the rule is `slack`, and all is profiled."""
        if self._operator.policy is not Rule.SLACK:
            return False
        missing = self._unprofiled(model)
        if missing and model.name not in self._warned:
            self._warned.add(model.name)
            _LOG.warning(
                "policy slack: %s has no profile for %s: its prompts go by `paper`",
                model.name,
                ", ".join(missing),
            )
        return not missing

    def _unprofiled(self, model: ServedModel) -> list[str]:
        """Return the kinds of clusters that a model has instances in and no profile for."""
        kinds = {
            cluster.kind
            for cluster in self._trace().clusters
            if self._fleet.members_of(cluster.name, model.name)
        }
        return sorted(kinds - model.profiles.keys())

    def suppose_beliefs(self, cached: Mapping[str, Tokens | None]) -> Beliefs:
        """Return beliefs in which what is supposed of a cluster is true where it may prefill.

        Decode-only instances do not count for what a cluster holds (DESIGN 5).
        """
        return {
            SourceId(member.instance.name, rank): CacheBelief(tokens, SourceState.SYNCED)
            for member in self._fleet.members
            if member.instance.can_prefill
            for rank in range(member.instance.ranks)
            if (tokens := cached.get(member.instance.cluster)) is not None
        }

    def build(
        self,
        model: ServedModel,
        request: RequestView,
        beliefs: Beliefs,
        what_if: WhatIf | None = None,
    ) -> Snapshot:
        """Return the snapshot for one request at this instant."""
        now, outline = self._clock.monotonic(), self._trace()
        clusters = [
            self._view_cluster(cluster, model, request.total_tokens, beliefs, now)
            for cluster in outline.clusters
        ]
        pairs: list[PairView] = []
        for prfaas, pd in outline.pairs:
            link = self._links.between(prfaas, pd)
            if link is not None:
                pairs.append(self._view_pair(prfaas, pd, link, model, request, what_if))
        rules = self._operator.rules
        threshold = ThresholdView(rules.mode, rules.tokens)
        return Snapshot(
            request=request,
            clusters=tuple(clusters),
            pairs=tuple(pairs),
            sizing=model.sizing(request.total_tokens),
            default_threshold=threshold if what_if is None else _supposed(threshold, what_if),
            override=self._operator.override(request.model, request.tenant),
            on_unknown=self._rules.on_unknown,
            remote_queue_limit=self._rules.remote_queue_limit,
            rule=self._operator.policy,
        )

    def _view_cluster(
        self,
        cluster: Cluster,
        model: ServedModel,
        total: Tokens,
        beliefs: Beliefs,
        now: Seconds,
    ) -> ClusterView:
        views: list[InstanceView] = []
        seconds: dict[Tokens, Seconds] = {}
        mean: Seconds | None = None  # of prefills that nobody told of, where there are any
        for seat in self._seats(cluster.name, model.name):
            member, instance, rank = seat.member, seat.instance, None
            if member.unexplained and mean is None:
                mean = self._mean_prefill(model, cluster.kind)
            load = self._fleet.load(member, now, mean or 0.0)
            if seat.source is not None:
                belief = beliefs.get(seat.source, _UNKNOWN)
            else:
                belief, rank = _believe_ranks(instance, beliefs)
            uncached = max(1, total - (belief.tokens or 0))
            prefill = seconds.get(uncached)
            if prefill is None:
                prefill = seconds[uncached] = model.prefill_seconds(cluster.kind, uncached)
            views.append(
                InstanceView(
                    instance.name,
                    instance.cluster,
                    instance.role,
                    load.ready,
                    seat.takes_handoff,
                    instance.compatibility,
                    belief,
                    load.ahead,
                    prefill,
                    load.queue_depth,
                    load.inflight,
                    model.decode_slots,
                    rank,
                )
            )
        return ClusterView(cluster.name, cluster.kind, tuple(views))

    def _mean_prefill(self, model: ServedModel, kind: ClusterKind) -> Seconds:
        computed = self._lengths.of(model.name).computed or 0
        return model.prefill_seconds(kind, round(computed))

    def _view_pair(
        self,
        prfaas: str,
        pd: str,
        link: LinkView,
        model: ServedModel,
        request: RequestView,
        what_if: WhatIf | None,
    ) -> PairView:
        threshold = self._operator.threshold(model.name, prfaas, pd)
        if what_if is not None:
            threshold = _supposed(threshold, what_if)
        regime = None if what_if is None else what_if.regime
        return PairView(
            prfaas=prfaas,
            pd=pd,
            link=link if regime is None else replace(link, regime=regime),
            threshold=threshold,
            gates=self._view_gates(model, link, threshold, request, pd),
            ships_to_pd=self._rules.ships_prefix,
            ships_to_prfaas=self._rules.ships_prefix,
            back_link=self._links.between(pd, prfaas),
        )

    def _view_gates(
        self,
        model: ServedModel,
        link: LinkView,
        threshold: ThresholdView,
        request: RequestView,
        pd: str,
    ) -> GateView:
        """Return what the gates see; before anything was offloaded, at this request's length."""
        lengths = self._lengths.of(model.name)
        workload = None
        if model.gate_limits.ask_workload:
            workload = lengths.against(threshold.tokens)
            solved = self._operator.solved.of(model.name, pd)
            if workload is not None and solved is not None:
                workload = replace(workload, gain=solved.solved.gain)
        return GateView(
            kv_rate=model.kv_rate(lengths.offloaded or request.total_tokens),
            limits=model.gate_limits,
            link_rate=link.capacity,
            workload=workload,
        )


def _believe_ranks(instance: Instance, beliefs: Beliefs) -> tuple[CacheBelief, int | None]:
    """Return the belief of an instance of several ranks, and the data-parallel rank to pin.

    Of several ranks the one with the longest prefix is pinned if it beats the others; otherwise
    the engine chooses, and only what every rank holds counts (DESIGN 5).
    """
    each: Sequence[CacheBelief] = [
        beliefs.get(SourceId(instance.name, rank), _UNKNOWN) for rank in range(instance.ranks)
    ]
    best = max(range(len(each)), key=lambda rank: each[rank].tokens or 0)
    if (each[best].tokens or 0) > min(belief.tokens or 0 for belief in each):
        return each[best], best
    unknown = [belief for belief in each if belief.tokens is None]
    return (unknown or each)[0], None


def _supposed(threshold: ThresholdView, what_if: WhatIf) -> ThresholdView:
    if what_if.threshold is None:
        return threshold
    return ThresholdView(ThresholdMode.MANUAL, what_if.threshold)
