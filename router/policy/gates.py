"""What keeps an offload from happening although the prompt is long enough.

The three gates of the paper's setting judge numbers and name their doubts, so that the planner and
the admission of a request ask the same: does the model make little enough KV (`judge_model`), has
the traffic enough long prompts (`judge_workload`), does the scheduler know enough
(`judge_scheduler`). The other functions answer one question of DESIGN 5 with yes or no;
`first_block` asks all in the order of the reasons.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from router.domain.decision import (
    GateLimits,
    InstanceView,
    LinkView,
    PairView,
    Reason,
    Snapshot,
    ThresholdMode,
    UnknownMetadata,
    WorkloadView,
)
from router.domain.units import Bytes, BytesPerSecond


class Doubt(StrEnum):
    """Why a gate refuses."""

    UNPROFILED = "unprofiled"
    KV_RATE_OVER_LIMIT = "kv_rate_over_limit"
    KV_RATE_OVER_LINK = "kv_rate_over_link"
    FEW_LONG_PROMPTS = "few_long_prompts"
    LONG_PROMPTS_TOO_SHORT = "long_prompts_too_short"
    TOO_LITTLE_GAIN = "too_little_gain"
    METADATA_UNKNOWN = "metadata_unknown"
    TELEMETRY_STALE = "telemetry_stale"
    THRESHOLD_UNSOLVED = "threshold_unsolved"


def judge_model(
    kv_rate: BytesPerSecond | None,
    limits: GateLimits,
    link_rate: BytesPerSecond | None,
    *,
    profile_required: bool,
) -> tuple[Doubt, ...]:
    """Return what speaks against a model: its KV per second of prefill, Phi_kv.

    `kv_rate` is that of one instance at the operating length, the mean offloaded length. It must be
    within the operator's limit and within `link_rate`: a link that one instance fills by itself
    leaves the others idle. None is an unprofiled model.
    """
    if kv_rate is None:
        return (Doubt.UNPROFILED,) if profile_required else ()
    doubts = []
    if limits.kv_rate is not None and kv_rate > limits.kv_rate:
        doubts.append(Doubt.KV_RATE_OVER_LIMIT)
    if link_rate is not None and kv_rate > link_rate:
        doubts.append(Doubt.KV_RATE_OVER_LINK)
    return tuple(doubts)


def judge_workload(workload: WorkloadView | None, limits: GateLimits) -> tuple[Doubt, ...]:
    """Return what speaks against the traffic; nothing where it is not known yet.

    Few or short long prompts leave a remote pool idle; a gain that nobody computed is no doubt.
    """
    if workload is None:
        return ()
    doubts = []
    if limits.long_share is not None and workload.long_share < limits.long_share:
        doubts.append(Doubt.FEW_LONG_PROMPTS)
    if limits.long_tokens is not None and (workload.long_tokens or 0.0) < limits.long_tokens:
        doubts.append(Doubt.LONG_PROMPTS_TOO_SHORT)
    if limits.gain is not None and workload.gain is not None and workload.gain < limits.gain:
        doubts.append(Doubt.TOO_LITTLE_GAIN)
    return tuple(doubts)


def judge_scheduler(
    *, metadata_trusted: bool, telemetry_fresh: bool, threshold_solved: bool
) -> tuple[Doubt, ...]:
    """Return what the scheduler does not know well enough to route by."""
    facts = (
        (metadata_trusted, Doubt.METADATA_UNKNOWN),
        (telemetry_fresh, Doubt.TELEMETRY_STALE),
        (threshold_solved, Doubt.THRESHOLD_UNSOLVED),
    )
    return tuple(doubt for known, doubt in facts if not known)


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


STARVED_BELOW: Final = 0.5
"""The part of its capacity below which a link starves: congestion alone costs it less."""


def link_starves(link: LinkView) -> bool:
    """Whether a link carries so little that prompts which it was built for stay at home."""
    if link.rate is None or link.capacity is None:
        return False
    return link.rate < STARVED_BELOW * link.capacity


def model_gate_refuses(pair: PairView) -> bool:
    """Whether this model makes too much KV per second of prefill for a link.

    An unprofiled model is the operator's own risk in `manual` mode, and refused in `auto`, where
    nobody vouched for it.
    """
    gates = pair.gates
    auto = pair.threshold.mode is ThresholdMode.AUTO
    return bool(judge_model(gates.kv_rate, gates.limits, gates.link_rate, profile_required=auto))


def workload_gate_refuses(pair: PairView) -> bool:
    """Whether the traffic of late is not worth a remote pool."""
    return bool(judge_workload(pair.gates.workload, pair.gates.limits))


def scheduler_gate_refuses(snapshot: Snapshot, pair: PairView, *, local_cached_known: bool) -> bool:
    """Whether too little is known to route by.

    Metadata counts where the operator wants no offload while it is unknown what the home cluster
    holds. A threshold is always in force: `auto` uses the configured one until it is solved.
    """
    doubts = judge_scheduler(
        metadata_trusted=snapshot.on_unknown is UnknownMetadata.TOTAL or local_cached_known,
        telemetry_fresh=not link_is_stale(pair.link),
        threshold_solved=True,
    )
    return bool(doubts)


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
    if workload_gate_refuses(pair):
        return Reason.GATE_WORKLOAD
    if scheduler_gate_refuses(snapshot, pair, local_cached_known=local_cached_known):
        return Reason.GATE_SCHEDULER
    if candidate is None:
        return Reason.REMOTE_UNAVAILABLE
    if queue_is_full(candidate, snapshot.remote_queue_limit):
        return Reason.REMOTE_QUEUE_FULL
    if not link_carries(pair.link, handoff):
        return Reason.LINK_CONGESTED
    return None
