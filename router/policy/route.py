"""The rule of PrfaaS: offload a prefill when its uncached tokens exceed a threshold.

`decide` is total: every snapshot gets a `Decision`, or `NoRoute` when nobody lives who could
decode. In the paper's terms (arXiv 2604.15039, section 3.3) a request of l uncached tokens goes to
the PrfaaS cluster iff l > t. With a scarce link each cluster counts its own prefix; with an
abundant one the better of both counts, provided that somebody delivers it. Under the rule
`expected` the queues of the moment may correct that side (`router.policy.completion`).

While a link starves t is high, and long prompts stay at home. So that short ones do not wait behind
them, one of the home's instances is left to prompts of at most `SHORT_PART` of t.

The order of the questions is the order of `Reason`; the first answer wins. After the fact only
`decide_local` changes a route: a failed remote prefill or a decision out of time goes local.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from kvmeta.types import CacheBelief
from router.domain.decision import (
    ClusterView,
    Decision,
    InstanceView,
    LinkView,
    NoRoute,
    PairView,
    Placement,
    PrefixTransfer,
    Reason,
    Regime,
    Route,
    Rule,
    Snapshot,
    ThresholdMode,
)
from router.domain.topology import Role
from router.domain.units import NO_BYTES, Bytes, Tokens
from router.policy.completion import correct_side
from router.policy.gates import first_block, link_carries, link_starves
from router.policy.kv_sizes import size_handoff, size_prefix
from router.policy.select import (
    Decoders,
    choose_guest_prefill,
    choose_home,
    choose_local_prefill,
    choose_partner,
    choose_remote_prefill,
    choose_whole,
    expected_seconds,
    find_decoders,
)

_ORDER = {reason: position for position, reason in enumerate(Reason)}
_UNKNOWN = CacheBelief.unknown()
_TAKES = (Reason.ABOVE_THRESHOLD, Reason.SOONER_REMOTE)


SHORT_PART: Final = 0.5
"""The part of t up to which a prompt is short while a link starves.

With half of t the mean of all prompts stays nearly as it was in the case study at 5 Gbit/s, with a
third it does not (ADR 25).
"""


class _Offer(Struct, frozen=True, gc=False):
    """One pair of clusters, examined; `takes` tells whether it takes the request, `reason` why."""

    pair: PairView
    candidate: InstanceView | None
    decode: InstanceView | None
    uncached: Tokens
    shipped: Tokens
    handoff: Bytes | None
    reason: Reason
    takes: bool


class _Home(Struct, frozen=True, gc=False):
    """The PD cluster of the request and who would compute the prompt: there, and over each pair.

    `decoders` are those there that may decode what others computed. `belief` is what the candidate
    there is believed to hold, `held` what of that counts. `clusters` are all, by name.
    """

    clusters: dict[str, ClusterView]
    cluster: ClusterView
    decoders: Decoders
    candidate: InstanceView | None
    others: list[tuple[PairView, InstanceView | None]]
    belief: CacheBelief
    held: Tokens


def decide(snapshot: Snapshot) -> Decision | NoRoute:
    """Return where this request runs, and why.

    Never raises. Cost: linear in the instances that serve the model.
    """
    cluster = choose_home(snapshot)
    if cluster is None:
        return NoRoute(snapshot.request.model)
    home = _look_around(snapshot, cluster)
    every = _examine_all(snapshot, home)
    offers = _open_offers(every)
    if _is_off(snapshot, every, offers):
        return _local(snapshot, home, Reason.DISABLED, _nearest(every))
    reported = _nearest(offers)
    if snapshot.override is not None:
        return _follow_override(snapshot, home, offers, snapshot.override.route)
    if not snapshot.request.disaggregable:
        return _whole(snapshot, home, Reason.NOT_DISAGGREGABLE, reported)
    if reported is not None and reported.takes:
        return _remote(snapshot, home, reported, reported.reason)
    reason = reported.reason if reported else _reason_without_pairs(snapshot, home)
    return _local(snapshot, home, reason, reported)


def decide_local(snapshot: Snapshot, reason: Reason) -> Decision | NoRoute:
    """Return the local decision for `reason`, whatever the lengths: after a failure or a time-out.

    Exclude instances that failed with `without` first.
    """
    cluster = choose_home(snapshot)
    if cluster is None:
        return NoRoute(snapshot.request.model)
    home = _look_around(snapshot, cluster)
    reported = _nearest(_examine_all(snapshot, home))
    if reported is not None:
        reported = replace(reported, shipped=0)  # no time for a prefix to travel
    if not snapshot.request.disaggregable:
        return _whole(snapshot, home, reason, reported)
    return _local(snapshot, home, reason, reported)


def decide_bound(snapshot: Snapshot, bound: str) -> Decision | NoRoute:
    """Return the decision that prefills at `bound`, an instance that `router.control.slack` chose.

    Where t is of another opinion the reason is `sooner_…`. Whoever cannot be bound to, since it is
    not ready or has no decode partner, leaves the choice to `decide`.
    """
    cluster = choose_home(snapshot)
    if cluster is None:
        return NoRoute(snapshot.request.model)
    shown = without(snapshot, _rivals(snapshot, bound))
    home = _look_around(shown, _named(shown, cluster.name))
    every = _examine_all(shown, home)
    offers = _open_offers(every)
    for offer in offers:
        if offer.candidate is not None and offer.candidate.name == bound:
            above = offer.uncached > offer.pair.threshold.tokens
            reason = Reason.ABOVE_THRESHOLD if above else Reason.SOONER_REMOTE
            return _remote(shown, home, offer, reason)
    if home.candidate is None or home.candidate.name != bound:
        return decide(snapshot)
    if _is_off(shown, every, offers):
        return _local(shown, home, Reason.DISABLED, _nearest(every))
    reported = _nearest(offers)
    if reported is None:
        return _local(shown, home, _reason_without_pairs(shown, home), None)
    reason = Reason.SOONER_LOCAL if reported.takes else reported.reason
    return _local(shown, home, reason, reported)


def _rivals(snapshot: Snapshot, bound: str) -> frozenset[str]:
    """Return who else in the instance's cluster could prefill."""
    for cluster in snapshot.clusters:
        names = {view.name for view in cluster.instances if view.role is not Role.DECODE}
        if bound in names:
            return frozenset(names - {bound})
    return frozenset()


def _named(snapshot: Snapshot, name: str) -> ClusterView:
    return next(cluster for cluster in snapshot.clusters if cluster.name == name)


def without(snapshot: Snapshot, excluded: frozenset[str]) -> Snapshot:
    """Return the snapshot with the named instances not ready."""
    if not excluded:
        return snapshot
    clusters = tuple(
        replace(
            cluster,
            instances=tuple(
                replace(view, ready=view.ready and view.name not in excluded)
                for view in cluster.instances
            ),
        )
        for cluster in snapshot.clusters
    )
    return replace(snapshot, clusters=clusters)


def fill_links(snapshot: Snapshot, full: Collection[str]) -> Snapshot:
    """Return the snapshot with no byte free on the links that are `full`."""
    if not full:
        return snapshot
    pairs = tuple(
        replace(
            pair,
            link=_fill(pair.link, full),
            back_link=pair.back_link and _fill(pair.back_link, full),
        )
        for pair in snapshot.pairs
    )
    return replace(snapshot, pairs=pairs)


def _fill(link: LinkView, full: Collection[str]) -> LinkView:
    return replace(link, free=NO_BYTES) if link.name in full else link


def usable_tokens(belief: CacheBelief, total: Tokens) -> Tokens:
    """Return what a belief counts for: unknown counts 0, never more than total - 1.

    Engines recompute the last token, so a whole prompt is never cached.
    """
    return max(0, min(belief.tokens, total - 1)) if belief.tokens else 0


def _look_around(snapshot: Snapshot, cluster: ClusterView) -> _Home:
    """Choose who would compute the prompt in each cluster."""
    clusters = {each.name: each for each in snapshot.clusters}
    decoders, limit = find_decoders(cluster), snapshot.remote_queue_limit
    others: list[tuple[PairView, InstanceView | None]] = []
    for pair in snapshot.pairs:
        if pair.pd == cluster.name:
            far = clusters.get(pair.prfaas)
            candidate = None if far is None else choose_remote_prefill(far, decoders, limit)
            others.append((pair, candidate))
    candidate = choose_local_prefill(cluster, decoders)
    belief = _UNKNOWN if candidate is None else candidate.belief
    held = usable_tokens(belief, snapshot.request.total_tokens)
    return _Home(clusters, cluster, decoders, candidate, others, belief, held)


def _examine_all(snapshot: Snapshot, home: _Home) -> list[_Offer]:
    return [_examine(snapshot, home, pair, candidate) for pair, candidate in home.others]


def _nearest(offers: list[_Offer]) -> _Offer | None:
    """Return the offer that is taken, or that came nearest to it."""
    return offers[0] if len(offers) == 1 else min(offers, key=_distance, default=None)


def _examine(
    snapshot: Snapshot, home: _Home, pair: PairView, candidate: InstanceView | None
) -> _Offer:
    total = snapshot.request.total_tokens
    decode = choose_partner(home.decoders, candidate) if candidate else None
    held = usable_tokens(decode.belief, total) if decode else 0
    handoff = size_handoff(snapshot.sizing, held)
    shipped = _shippable_to_home(snapshot, home, pair, candidate)
    uncached = total - max(home.held, shipped)
    reason = _choose_side(snapshot, home, pair, candidate, handoff, uncached)
    takes = reason in _TAKES
    if takes:
        known = home.belief.tokens is not None
        block = first_block(snapshot, pair, candidate, handoff, local_cached_known=known)
        reason, takes = block or reason, block is None
    return _Offer(pair, candidate, decode, uncached, shipped, handoff, reason, takes)


def _choose_side(
    snapshot: Snapshot,
    home: _Home,
    pair: PairView,
    candidate: InstanceView | None,
    handoff: Bytes | None,
    uncached: Tokens,
) -> Reason:
    """Return the reason of the side that this pair would give the prompt, if nothing blocks it."""
    threshold = pair.threshold.tokens
    match snapshot.rule:
        case Rule.PAPER | Rule.SLACK:
            above = uncached > threshold
            return Reason.ABOVE_THRESHOLD if above else Reason.BELOW_THRESHOLD
        case Rule.EXPECTED:
            return correct_side(uncached, threshold, home.candidate, candidate, pair.link, handoff)
        case _:
            assert_never(snapshot.rule)


def _shippable_to_home(
    snapshot: Snapshot, home: _Home, pair: PairView, candidate: InstanceView | None
) -> Tokens:
    """Return the length of the remote prefix that a local prefill would be sent; 0 if none.

    Counted only in the abundant regime, where connector and model can ship it, the home cluster
    has somebody to receive it, it is strictly longer than what is there, and the link carries it.
    """
    if (
        pair.link.regime is not Regime.ABUNDANT
        or not pair.ships_to_pd
        or candidate is None
        or home.candidate is None
    ):
        return 0
    theirs, ours = usable_tokens(candidate.belief, snapshot.request.total_tokens), home.held
    if theirs <= ours or not link_carries(pair.link, size_prefix(snapshot.sizing, theirs, ours)):
        return 0
    return theirs


def _distance(offer: _Offer) -> tuple[int, float, str]:
    """Order offers by how near they are to being taken, then the quickest, then by name."""
    seconds = expected_seconds(offer.candidate) if offer.candidate else float("inf")
    return (-_ORDER[offer.reason], seconds, offer.candidate.name if offer.candidate else "")


def _open_offers(every: list[_Offer]) -> list[_Offer]:
    """Return the offers of pairs that are not switched off."""
    return [offer for offer in every if offer.pair.threshold.mode is not ThresholdMode.OFF]


def _is_off(snapshot: Snapshot, every: list[_Offer], offers: list[_Offer]) -> bool:
    """Whether every pair is switched off, of which `offers` are open; without pairs the default."""
    return not offers if every else snapshot.default_threshold.mode is ThresholdMode.OFF


def _reason_without_pairs(snapshot: Snapshot, home: _Home) -> Reason:
    uncached = snapshot.request.total_tokens - home.held
    if uncached <= snapshot.default_threshold.tokens:
        return Reason.BELOW_THRESHOLD
    return Reason.REMOTE_UNAVAILABLE


def _follow_override(
    snapshot: Snapshot, home: _Home, offers: list[_Offer], route: Route
) -> Decision:
    """Do as the operator says, save on a path that is dead; then tell what blocks it."""
    reported = _nearest(offers)
    if not snapshot.request.disaggregable:
        blocked = Reason.NOT_DISAGGREGABLE if route is Route.PRFAAS else None
        return _whole(snapshot, home, Reason.OVERRIDE, reported, blocked)
    if route is Route.LOCAL:
        return _local(snapshot, home, Reason.OVERRIDE, reported)
    alive = [offer for offer in offers if offer.candidate is not None and offer.pair.link.up]
    if alive:
        quickest = min(alive, key=lambda offer: (not offer.takes, *_quickness(offer)))
        return _remote(snapshot, home, quickest, Reason.OVERRIDE)
    down = any(not offer.pair.link.up for offer in offers)
    blocked = Reason.LINK_DOWN if down else Reason.REMOTE_UNAVAILABLE
    return _local(snapshot, home, Reason.OVERRIDE, reported, blocked)


def _quickness(offer: _Offer) -> tuple[float, str]:
    assert offer.candidate is not None  # noqa: S101 - the caller filtered
    return (expected_seconds(offer.candidate), offer.candidate.name)


def _remote(snapshot: Snapshot, home: _Home, offer: _Offer, reason: Reason) -> Decision:
    candidate, decode = offer.candidate, offer.decode
    assert candidate is not None and decode is not None  # noqa: S101, PT018 - an offer that takes has both
    total = snapshot.request.total_tokens
    own = usable_tokens(candidate.belief, total)
    transfer = _transfer_to_prfaas(snapshot, home, offer.pair, own)
    return Decision(
        route=Route.PRFAAS,
        reason=reason,
        blocked_by=None,
        home=home.cluster.name,
        prefill=_place(candidate),
        decode=_place(decode),
        uncached_tokens=offer.uncached,
        compute_uncached_tokens=total - (transfer.tokens if transfer else own),
        threshold=offer.pair.threshold.tokens,
        regime=offer.pair.link.regime,
        cached=_beliefs(home),
        link=offer.pair.link,
        kv_bytes=offer.handoff,
        prefix_transfer=transfer,
    )


def _transfer_to_prfaas(
    snapshot: Snapshot, home: _Home, pair: PairView, own: Tokens
) -> PrefixTransfer | None:
    """Return the shipment of a longer home prefix to the PrfaaS side, where it can be made."""
    ours = home.held
    back = pair.back_link
    if (
        pair.link.regime is not Regime.ABUNDANT
        or not pair.ships_to_prfaas
        or back is None
        or ours <= own
    ):
        return None
    size = size_prefix(snapshot.sizing, ours, own)
    if not link_carries(back, size):
        return None
    return PrefixTransfer(pair.pd, pair.prfaas, ours, back.name, size)


def _local(
    snapshot: Snapshot,
    home: _Home,
    reason: Reason,
    offer: _Offer | None,
    blocked_by: Reason | None = None,
) -> Decision:
    if offer is not None and link_starves(offer.pair.link) and _is_long(offer):
        home = _as_guest(snapshot, home)
    candidate = home.candidate
    if candidate is None:
        # Nobody here prefills: the decode instance computes the prompt itself.
        if reason is not Reason.OVERRIDE:
            reason, blocked_by = Reason.LOCAL_PREFILL_UNAVAILABLE, reason
        else:
            blocked_by = blocked_by or Reason.LOCAL_PREFILL_UNAVAILABLE
        return _whole(snapshot, home, reason, offer, blocked_by)
    if candidate.role is Role.BOTH:
        decode: InstanceView | None = candidate
    else:
        decode = choose_partner(home.decoders, candidate)
    assert decode is not None  # noqa: S101 - a local candidate has a partner by construction
    total = snapshot.request.total_tokens
    held = usable_tokens(decode.belief, total)
    return _stay(
        snapshot,
        home,
        offer,
        reason,
        blocked_by,
        prefill=candidate,
        decode=decode,
        transfer=_transfer_to_home(snapshot, offer, home.held),
        kv_bytes=Bytes(0) if decode is candidate else size_handoff(snapshot.sizing, held),
    )


def _is_long(offer: _Offer) -> bool:
    return offer.uncached > SHORT_PART * offer.pair.threshold.tokens


def _as_guest(snapshot: Snapshot, home: _Home) -> _Home:
    """Return the home as a long prompt sees it while the link starves."""
    candidate = choose_guest_prefill(home.cluster, home.decoders)
    belief = _UNKNOWN if candidate is None else candidate.belief
    held = usable_tokens(belief, snapshot.request.total_tokens)
    return replace(home, candidate=candidate, belief=belief, held=held)


def _transfer_to_home(
    snapshot: Snapshot, offer: _Offer | None, own: Tokens
) -> PrefixTransfer | None:
    if offer is None or offer.shipped <= own:
        return None
    pair = offer.pair
    size = size_prefix(snapshot.sizing, offer.shipped, own)
    return PrefixTransfer(pair.prfaas, pair.pd, offer.shipped, pair.link.name, size)


def _whole(
    snapshot: Snapshot,
    home: _Home,
    reason: Reason,
    offer: _Offer | None,
    blocked_by: Reason | None = None,
) -> Decision:
    """One instance does it all: an aggregated one, else a decode instance by itself."""
    chosen = choose_whole(home.cluster)
    assert chosen is not None  # noqa: S101 - a home cluster has one by construction
    return _stay(
        snapshot,
        home,
        offer,
        reason,
        blocked_by,
        prefill=chosen if chosen.role is Role.BOTH else None,
        decode=chosen,
        transfer=None,
        kv_bytes=Bytes(0),
    )


def _stay(
    snapshot: Snapshot,
    home: _Home,
    offer: _Offer | None,
    reason: Reason,
    blocked_by: Reason | None,
    *,
    prefill: InstanceView | None,
    decode: InstanceView,
    transfer: PrefixTransfer | None,
    kv_bytes: Bytes | None,
) -> Decision:
    """Return the local decision; what was compared is told by the pair that came nearest."""
    total = snapshot.request.total_tokens
    threshold = offer.pair.threshold if offer else snapshot.default_threshold
    link = offer.pair.link if offer else None
    own = usable_tokens((prefill or decode).belief, total)
    return Decision(
        route=Route.LOCAL,
        reason=reason,
        blocked_by=blocked_by,
        home=home.cluster.name,
        prefill=_place(prefill) if prefill else None,
        decode=_place(decode),
        uncached_tokens=offer.uncached if offer else total - home.held,
        compute_uncached_tokens=total - (transfer.tokens if transfer else own),
        threshold=threshold.tokens,
        regime=link.regime if link else Regime.SCARCE,
        cached=_beliefs(home),
        link=link,
        kv_bytes=kv_bytes,
        prefix_transfer=transfer,
    )


def _beliefs(home: _Home) -> tuple[tuple[str, CacheBelief], ...]:
    """Return cached(c) of every candidate cluster: the home and all that could prefill for it."""
    beliefs = {home.cluster.name: home.belief}
    for pair, candidate in home.others:
        if pair.prfaas in home.clusters and pair.prfaas not in beliefs:
            beliefs[pair.prfaas] = candidate.belief if candidate else _UNKNOWN
    return tuple(beliefs.items())


def _place(view: InstanceView) -> Placement:
    return Placement(view.cluster, view.name, view.belief.tokens, view.rank, view.belief.state)
