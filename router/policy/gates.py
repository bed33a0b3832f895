"""What keeps an offload from happening although the prompt is long enough.

Each function answers one question of DESIGN 5 with yes or no; `first_block` asks them in the
order of the reasons.
"""

from __future__ import annotations

from router.domain.decision import (
    InstanceView,
    LinkView,
    PairView,
    Reason,
    Snapshot,
    ThresholdMode,
    UnknownMetadata,
)
from router.domain.units import Bytes


def link_is_stale(link: LinkView) -> bool:
    """Whether telemetry is required of this link and the latest is missing or too old."""
    if not link.telemetry_required:
        return False
    return link.telemetry_age is None or link.telemetry_age > link.telemetry_max_age


def link_carries(link: LinkView, size: Bytes | None) -> bool:
    """Whether `size` more bytes may be booked on this link now."""
    if not link.up or link_is_stale(link):
        return False
    return size is None or link.free is None or size <= link.free


def model_gate_refuses(pair: PairView) -> bool:
    """Whether this model makes too much KV per second of prefill for a link.

    Phi_kv at the operating length over its limit. An unprofiled model is the operator's own risk
    in `manual` mode, and refused in `auto`, where nobody vouched for it.
    """
    rate, limit = pair.gates.kv_rate, pair.gates.kv_rate_limit
    if rate is None:
        return pair.threshold.mode is ThresholdMode.AUTO
    return limit is not None and rate > limit


def scheduler_gate_refuses(snapshot: Snapshot, local_cached_known: bool) -> bool:  # noqa: FBT001 - one fact, named
    """Whether the operator wants no offload while it is unknown what the home cluster holds."""
    return snapshot.on_unknown is UnknownMetadata.LOCAL and not local_cached_known


def queue_is_full(instance: InstanceView, limit: int) -> bool:
    """Whether `limit` requests already wait there.

    An old reading is unknown, neither 0 nor full: our own dispatches stand in for it.
    """
    depth = instance.inflight if instance.queue_depth is None else instance.queue_depth
    return depth >= limit


def first_block(
    snapshot: Snapshot,
    pair: PairView,
    candidate: InstanceView | None,
    handoff: Bytes | None,
    *,
    local_cached_known: bool,
) -> Reason | None:
    """Return the first reason that keeps this pair from taking the request, None if none does.

    `candidate` is the PrfaaS instance chosen, None when no compatible one lives; `handoff` the
    bytes to book.
    """
    if not pair.link.up:
        return Reason.LINK_DOWN
    if link_is_stale(pair.link):
        return Reason.LINK_STALE
    if model_gate_refuses(pair):
        return Reason.GATE_MODEL
    if pair.gates.workload is False:
        return Reason.GATE_WORKLOAD
    if scheduler_gate_refuses(snapshot, local_cached_known):
        return Reason.GATE_SCHEDULER
    if candidate is None:
        return Reason.REMOTE_UNAVAILABLE
    if queue_is_full(candidate, snapshot.remote_queue_limit):
        return Reason.REMOTE_QUEUE_FULL
    if not link_carries(pair.link, handoff):
        return Reason.LINK_CONGESTED
    return None
