"""Which instance would do a leg: least expected time, ties by name (DESIGN 5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from router.domain.decision import ClusterView, InstanceView, Snapshot
from router.domain.topology import ClusterKind, Role
from router.domain.units import Seconds
from router.policy.gates import queue_is_full


def expected_seconds(instance: InstanceView) -> Seconds:
    """Return when this instance would have the prompt's KV, counted from now."""
    return instance.ahead + instance.prefill


def find_decoders(cluster: ClusterView) -> list[InstanceView]:
    """Return the live instances of `cluster` that may decode KV computed elsewhere."""
    return [
        view
        for view in cluster.instances
        if view.ready and view.takes_handoff and view.role is not Role.PREFILL
    ]


def choose_partner(decoders: Sequence[InstanceView], prefill: InstanceView) -> InstanceView | None:
    """Return which of the `decoders` takes KV computed by `prefill`.

    Never across differing compatibility, and never the instance itself.
    """
    kind, name = prefill.compatibility, prefill.name
    return choose_decode(
        [view for view in decoders if view.compatibility == kind and view.name != name]
    )


def choose_decode(candidates: Iterable[InstanceView]) -> InstanceView | None:
    """Return the least loaded one; among equals the one that holds the longest prefix."""
    best: InstanceView | None = None
    least: tuple[float, int, str] | None = None
    for view in candidates:
        rank = (view.inflight / (view.slots or 1), -(view.belief.tokens or 0), view.name)
        if least is None or rank < least:
            best, least = view, rank
    return best


def choose_local_prefill(
    home: ClusterView, decoders: Sequence[InstanceView]
) -> InstanceView | None:
    """Return the instance of `home` that would have the KV first; `decoders` are those there.

    An aggregated instance is a candidate by itself, a prefill instance only with a decode partner.
    """
    best: InstanceView | None = None
    least: tuple[Seconds, str] | None = None
    for view in home.instances:
        if not view.ready or view.role is Role.DECODE:
            continue
        if view.role is Role.PREFILL and not _has_partner(decoders, view):
            continue
        rank = (view.ahead + view.prefill, view.name)
        if least is None or rank < least:
            best, least = view, rank
    return best


def choose_remote_prefill(
    cluster: ClusterView, decoders: Sequence[InstanceView], queue_limit: int
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


def _has_partner(decoders: Sequence[InstanceView], prefill: InstanceView) -> bool:
    for view in decoders:  # a loop costs half of `any` over so few
        if view.compatibility == prefill.compatibility and view.name != prefill.name:
            return True
    return False


def _can_answer(cluster: ClusterView) -> bool:
    for view in cluster.instances:  # noqa: SIM110 - as above
        if view.ready and view.role is not Role.PREFILL:
            return True
    return False


def _load(cluster: ClusterView) -> float:
    live = [view for view in cluster.instances if view.ready]
    return sum(view.inflight for view in live) / len(live) if live else 0.0
