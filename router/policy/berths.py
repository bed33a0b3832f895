"""Where a prompt that waits may be prefilled, and whose lane it waits in. Pure.

What `router.control.slack` orders is found here: for the gateway from a snapshot, and the choice of
the lane for the simulator as well. A *berth* is an instance that may take the prompt once it is
free. What lasts is judged here: roles, compatibility, gates, orders; what changes from moment to
moment (who lives and is free, what the link carries) is asked when one is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from router.domain.decision import (
    ClusterView,
    Decision,
    NoRoute,
    PairView,
    Snapshot,
    ThresholdMode,
    UnknownMetadata,
)
from router.domain.topology import ClusterKind, Role
from router.domain.units import Bytes, Seconds
from router.policy.gates import model_gate_refuses, workload_gate_refuses
from router.policy.kv_sizes import size_handoff
from router.policy.route import decide, usable_tokens
from router.policy.select import choose_partner, find_decoders

HOLDS_A_GOOD_PART: Final = 1.5
"""A prompt waits for the instance that holds its prefix where that saves a third of its prefill."""


class Berth(Struct, frozen=True, gc=False):
    """An instance that may prefill a prompt, in `work` seconds.

    `handoff` bytes then cross `link`; None within the home cluster.
    """

    instance: str
    cluster: str
    work: Seconds
    link: str | None = None
    handoff: Bytes | None = None


class Berths(Struct, frozen=True):
    """Where a prompt may be prefilled, by instance.

    It waits in `lane` (a cluster's or an instance's), where its prefill takes `work`. `unloaded` is
    its TTFT on its side of t if nobody else were there. `home` is where it will decode.
    """

    home: str
    lane: str
    work: Seconds
    unloaded: Seconds
    by_instance: Mapping[str, Berth]


def choose_lane(
    side: str, whole: Seconds, works: Iterable[tuple[str, Seconds]]
) -> tuple[str, Seconds]:
    """Return the lane of a prompt on one side of t, and its prefill time there.

    `side` is the cluster, which would take `whole` with nothing cached; `works` are its instances'
    prefill times with what they hold.
    """
    lane, work = side, whole
    for instance, seconds in works:
        if seconds * HOLDS_A_GOOD_PART < whole and seconds < work:
            lane, work = instance, seconds
    return lane, work


def find_berths(snapshot: Snapshot, whole: Callable[[ClusterKind], Seconds]) -> Berths | None:
    """Return where a prompt may wait to be prefilled; None where it should not wait.

    `whole` is its prefill time in a kind of cluster with nothing cached. By the rule, at once, goes
    what an operator's override routes, what one instance does in one call, and what nobody could
    decode or prefill elsewhere.
    """
    decision = decide(snapshot)
    if isinstance(decision, NoRoute) or decision.single_call or snapshot.override is not None:
        return None
    clusters = {cluster.name: cluster for cluster in snapshot.clusters}
    home = clusters[decision.home]
    berths = {berth.instance: berth for berth in _at_home(home)}
    for pair in snapshot.pairs:
        if pair.pd == home.name and pair.prfaas in clusters:
            remote = _over(snapshot, pair, clusters[pair.prfaas], home, decision)
            berths.update((berth.instance, berth) for berth in remote)
    if not berths:
        return None
    side = clusters[_choose_side(snapshot, decision, berths)]
    there = [berth for berth in berths.values() if berth.cluster == side.name]
    works = [(berth.instance, berth.work) for berth in there]
    lane, work = choose_lane(side.name, whole(side.kind), works)
    return Berths(home.name, lane, work, _unloaded(snapshot, there), berths)


def _at_home(home: ClusterView) -> Iterator[Berth]:
    decoders = find_decoders(home)
    for view in home.instances:
        if view.role is Role.PREFILL and choose_partner(decoders, view) is not None:
            yield Berth(view.name, home.name, view.prefill)


def _over(
    snapshot: Snapshot,
    pair: PairView,
    cluster: ClusterView,
    home: ClusterView,
    decision: Decision,
) -> Iterator[Berth]:
    """Yield the berths of a PrfaaS cluster, unless something that lasts keeps prompts from it."""
    unsure = snapshot.on_unknown is UnknownMetadata.LOCAL and not _home_is_known(decision)
    if (
        unsure
        or pair.threshold.mode is ThresholdMode.OFF
        or model_gate_refuses(pair)
        or workload_gate_refuses(pair)
    ):
        return
    total, decoders = snapshot.request.total_tokens, find_decoders(home)
    for view in cluster.instances:
        decode = choose_partner(decoders, view)
        if view.role is Role.PREFILL and decode is not None:
            handoff = size_handoff(snapshot.sizing, usable_tokens(decode.belief, total))
            yield Berth(view.name, cluster.name, view.prefill, pair.link.name, handoff)


def _home_is_known(decision: Decision) -> bool:
    return any(
        name == decision.home and belief.tokens is not None for name, belief in decision.cached
    )


def _choose_side(snapshot: Snapshot, decision: Decision, berths: Mapping[str, Berth]) -> str:
    """Return the cluster on the prompt's side of t; where nobody there may take it, another."""
    side = decision.home
    if decision.uncached_tokens > decision.threshold and decision.link is not None:
        link = decision.link.name
        side = next((pair.prfaas for pair in snapshot.pairs if pair.link.name == link), side)
    offered = [berth.cluster for berth in berths.values()]
    return side if side in offered else offered[0]


def _unloaded(snapshot: Snapshot, there: list[Berth]) -> Seconds:
    """Return the TTFT that the best of these berths would give a prompt that is alone."""
    best = min(there, key=lambda berth: (berth.work, berth.instance))
    links = {pair.link.name: pair.link for pair in snapshot.pairs}
    link = links.get(best.link) if best.link is not None else None
    if link is None or not link.capacity or best.handoff is None:
        return best.work
    return max(best.work, best.handoff / link.capacity)
