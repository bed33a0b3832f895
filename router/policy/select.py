"""Which instance would do a leg: least expected time, ties by name (DESIGN 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from router.domain.decision import ClusterView, InstanceView, Snapshot
from router.domain.topology import ClusterKind, Role
from router.domain.units import Seconds
from router.policy.gates import queue_is_full

_FEWEST_WITH_ONE_KEPT: Final = 3


def expected_seconds(instance: InstanceView) -> Seconds:
    """Return when this instance would have the prompt's KV, counted from now."""
    return instance.ahead + instance.prefill


Decoders = Mapping[str, list[InstanceView]]
"""A cluster's instances that may decode KV computed elsewhere, by compatibility."""


def find_decoders(cluster: ClusterView) -> Decoders:
    """Return the live instances of `cluster` that may decode KV computed elsewhere."""
    found: dict[str, list[InstanceView]] = {}
    for view in cluster.instances:
        if view.ready and view.takes_handoff and view.role is not Role.PREFILL:
            alike = found.get(view.compatibility)
            if alike is None:
                found[view.compatibility] = [view]
            else:
                alike.append(view)
    return found


def choose_partner(decoders: Decoders, prefill: InstanceView) -> InstanceView | None:
    """Return which of the `decoders` takes KV computed by `prefill`.

    Never across differing compatibility, and never the instance itself.
    """
    return choose_decode(decoders.get(prefill.compatibility, ()), but=prefill.name)


def choose_decode(
    candidates: Iterable[InstanceView], *, but: str | None = None
) -> InstanceView | None:
    """Return the least loaded one; among equals the one that holds the longest prefix.

    `but` names one that does not count.
    """
    best: InstanceView | None = None
    least: tuple[float, int, str] | None = None
    for view in candidates:
        if view.name == but:
            continue
        rank = (view.inflight / (view.slots or 1), -(view.belief.tokens or 0), view.name)
        if least is None or rank < least:
            best, least = view, rank
    return best


def choose_local_prefill(home: ClusterView, decoders: Decoders) -> InstanceView | None:
    """Return the instance of `home` that would have the KV first; `decoders` are those there.

    An aggregated instance is a candidate by itself, a prefill instance only with a decode partner.
    """
    best: InstanceView | None = None
    least: tuple[Seconds, str] | None = None
    for view in home.instances:
        if not view.ready or view.role is Role.DECODE:
            continue
        if view.role is Role.PREFILL and view.compatibility not in decoders:
            continue
        rank = (view.ahead + view.prefill, view.name)
        if least is None or rank < least:
            best, least = view, rank
    return best


def choose_guest_prefill(home: ClusterView, decoders: Decoders) -> InstanceView | None:
    """Return who of `home` computes a prompt that would be elsewhere if the link did not starve.

    As `choose_local_prefill`, save that the first by name is left to others. Where fewer than three
    could do it nobody is: half of the home is too much to keep.
    """
    able = [
        view
        for view in home.instances
        if view.ready
        and view.role is not Role.DECODE
        and (view.role is not Role.PREFILL or view.compatibility in decoders)
    ]
    if len(able) >= _FEWEST_WITH_ONE_KEPT:
        able.remove(min(able, key=lambda view: view.name))
    return min(able, key=lambda view: (expected_seconds(view), view.name), default=None)


def choose_remote_prefill(
    cluster: ClusterView, decoders: Decoders, queue_limit: int
) -> InstanceView | None:
    """Return the PrfaaS instance that would have the KV first and whose KV `decoders` can take.

    Instances with room in their queue come before full ones.
    """
    best: InstanceView | None = None
    least: tuple[bool, Seconds, str] | None = None
    for view in cluster.instances:
        if not view.ready or view.role is Role.DECODE or not _has_partner(decoders, view):
            continue
        rank = (queue_is_full(view, queue_limit), view.ahead + view.prefill, view.name)
        if least is None or rank < least:
            best, least = view, rank
    return best


def choose_whole(home: ClusterView) -> InstanceView | None:
    """Return the instance that does a whole request by itself: an aggregated one, else a decode."""
    both = [view for view in home.instances if view.ready and view.role is Role.BOTH]
    if both:
        return min(both, key=lambda view: (expected_seconds(view), view.name))
    return choose_decode(v for v in home.instances if v.ready and v.role is Role.DECODE)


def choose_home(snapshot: Snapshot) -> ClusterView | None:
    """Return the PD cluster that decodes: the one asked for if it lives, else the least loaded."""
    alive = [
        cluster
        for cluster in snapshot.clusters
        if cluster.kind is ClusterKind.PD and _can_answer(cluster)
    ]
    if len(alive) == 1:
        return alive[0]
    asked = [cluster for cluster in alive if cluster.name == snapshot.request.home]
    return min(asked or alive, key=lambda cluster: (_load(cluster), cluster.name), default=None)


def _has_partner(decoders: Decoders, prefill: InstanceView) -> bool:
    alike = decoders.get(prefill.compatibility)
    return alike is not None and (len(alike) > 1 or alike[0].name != prefill.name)


def _can_answer(cluster: ClusterView) -> bool:
    for view in cluster.instances:  # noqa: SIM110 - a loop costs half of `any` over so few
        if view.ready and view.role is not Role.PREFILL:
            return True
    return False


def _load(cluster: ClusterView) -> float:
    live = [view for view in cluster.instances if view.ready]
    return sum(view.inflight for view in live) / len(live) if live else 0.0
