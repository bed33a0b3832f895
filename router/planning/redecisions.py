"""Decisions made again from their own inputs: what another threshold, regime or rule had done.

Both sides of the comparison are decided anew by the same `decide`, so that what differs follows
from the alternative alone. Everything else is as it was recorded: queues, links and what gates saw
of the traffic do not react to the requests that go elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from router.domain.decision import (
    Decision,
    InstanceView,
    NoRoute,
    PairView,
    Reason,
    Regime,
    Route,
    Rule,
    Snapshot,
    ThresholdMode,
    ThresholdView,
)
from router.domain.units import Seconds, Tokens
from router.policy.completion import arrive_seconds
from router.policy.route import decide, decide_local
from router.policy.select import expected_seconds

MOVED_SHOWN: Final = 100
"""Requests that are named of those that would have gone elsewhere."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """What is decided with instead; None leaves it. A threshold holds where t was off, too."""

    threshold: Tokens | None = None
    regime: Regime | None = None
    rule: Rule | None = None


class Tally(Struct):
    """What decisions came to. `ttft_seconds` sums the expected TTFT of `ttft_known` of them."""

    routes: dict[str, int]
    reasons: dict[str, int]
    offloaded_tokens: int = 0
    link_bytes: int = 0
    ttft_seconds: Seconds = 0.0
    ttft_known: int = 0


class Moved(Struct, frozen=True):
    """A request that would have gone elsewhere."""

    request_id: str
    uncached_tokens: Tokens
    before: Route
    after: Route


class Redecided(Struct):
    """Both sides of the comparison, over the same decisions.

    `undecided` are those for which nobody was alive; they are on neither side.
    """

    recorded: Tally
    replayed: Tally
    decisions: int = 0
    to_prfaas: int = 0
    to_local: int = 0
    undecided: int = 0
    moved: list[Moved] = []


def nothing_redecided() -> Redecided:
    """Return the comparison of no decision."""
    return Redecided(Tally({}, {}), Tally({}, {}))


def add_redecided(
    so_far: Redecided,
    request_id: str,
    snapshot: Snapshot,
    alternative: Alternative,
    *,
    late: bool = False,
) -> None:
    """Decide once more as it was and with the alternative, and count both.

    A decision that was out of time (`late`) stays local whatever the alternative.
    """
    before = _decide(snapshot, late=late)
    after = _decide(alter(snapshot, alternative), late=late)
    if isinstance(before, NoRoute) or isinstance(after, NoRoute):
        so_far.undecided += 1
        return
    so_far.decisions += 1
    _count(so_far.recorded, snapshot, before)
    _count(so_far.replayed, snapshot, after)
    if before.route is after.route:
        return
    if after.route is Route.PRFAAS:
        so_far.to_prfaas += 1
    else:
        so_far.to_local += 1
    if len(so_far.moved) < MOVED_SHOWN:
        moved = Moved(request_id, after.uncached_tokens, before.route, after.route)
        so_far.moved.append(moved)


def merge_redecided(one: Redecided, other: Redecided) -> Redecided:
    """Return the comparison over the decisions of both."""
    return Redecided(
        recorded=_merge(one.recorded, other.recorded),
        replayed=_merge(one.replayed, other.replayed),
        decisions=one.decisions + other.decisions,
        to_prfaas=one.to_prfaas + other.to_prfaas,
        to_local=one.to_local + other.to_local,
        undecided=one.undecided + other.undecided,
        moved=[*one.moved, *other.moved][:MOVED_SHOWN],
    )


def alter(snapshot: Snapshot, alternative: Alternative) -> Snapshot:
    """Return the snapshot with the alternative's threshold, regime and rule in it."""
    pairs = tuple(_alter_pair(pair, alternative) for pair in snapshot.pairs)
    default = snapshot.default_threshold
    if alternative.threshold is not None:
        default = ThresholdView(ThresholdMode.MANUAL, alternative.threshold)
    rule = alternative.rule or snapshot.rule
    return replace(snapshot, pairs=pairs, default_threshold=default, rule=rule)


def _alter_pair(pair: PairView, alternative: Alternative) -> PairView:
    threshold, link = pair.threshold, pair.link
    if alternative.threshold is not None:
        threshold = ThresholdView(ThresholdMode.MANUAL, alternative.threshold)
    if alternative.regime is not None:
        link = replace(link, regime=alternative.regime)
    return replace(pair, threshold=threshold, link=link)


def _decide(snapshot: Snapshot, *, late: bool) -> Decision | NoRoute:
    return decide_local(snapshot, Reason.DECISION_TIMEOUT) if late else decide(snapshot)


def _count(tally: Tally, snapshot: Snapshot, decision: Decision) -> None:
    tally.routes[decision.route] = tally.routes.get(decision.route, 0) + 1
    tally.reasons[decision.reason] = tally.reasons.get(decision.reason, 0) + 1
    if decision.route is Route.PRFAAS:
        tally.offloaded_tokens += decision.uncached_tokens
        tally.link_bytes += decision.kv_bytes or 0
    elif decision.prefix_transfer is not None:
        tally.link_bytes += decision.prefix_transfer.bytes
    seconds = expected_ttft(snapshot, decision)
    if seconds is not None:
        tally.ttft_seconds += seconds
        tally.ttft_known += 1


def expected_ttft(snapshot: Snapshot, decision: Decision) -> Seconds | None:
    """Return when the KV would be where it is decoded: queue ahead, prefill, and the link.

    None for an unprofiled model, whose prefill times are no seconds, and where the link carries
    nothing.
    """
    if snapshot.sizing.total is None:
        return None
    computing = decision.prefill or decision.decode
    view = _find(snapshot, computing.instance)
    if view is None:
        return None
    if decision.route is Route.LOCAL or decision.link is None:
        return expected_seconds(view)
    seconds = arrive_seconds(view, decision.link, decision.kv_bytes)
    return None if seconds == float("inf") else seconds


def _find(snapshot: Snapshot, name: str) -> InstanceView | None:
    views = (view for cluster in snapshot.clusters for view in cluster.instances)
    return next((view for view in views if view.name == name), None)


def _merge(one: Tally, other: Tally) -> Tally:
    return Tally(
        routes=_add(one.routes, other.routes),
        reasons=_add(one.reasons, other.reasons),
        offloaded_tokens=one.offloaded_tokens + other.offloaded_tokens,
        link_bytes=one.link_bytes + other.link_bytes,
        ttft_seconds=one.ttft_seconds + other.ttft_seconds,
        ttft_known=one.ttft_known + other.ttft_known,
    )


def _add(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in one | other}
