"""A decision in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from router.domain.decision import Reason, Route

Document = Mapping[str, object]

REASONS: Final[Mapping[str, str]] = {
    Reason.DISABLED: "offloading is switched off",
    Reason.OVERRIDE: "an operator ordered this route",
    Reason.NOT_DISAGGREGABLE: "one instance must do the whole request",
    Reason.BELOW_THRESHOLD: "not more uncached tokens than the threshold",
    Reason.SOONER_LOCAL: "the home cluster would be done sooner, whatever the threshold says",
    Reason.LINK_DOWN: "the link is down",
    Reason.LINK_STALE: "the link's telemetry is too old",
    Reason.GATE_MODEL: "the model's KV is too large for its gate",
    Reason.GATE_WORKLOAD: "the workload is too small to offload",
    Reason.GATE_SCHEDULER: "nobody knows what is cached",
    Reason.REMOTE_UNAVAILABLE: "no live PrfaaS instance fits",
    Reason.REMOTE_QUEUE_FULL: "the PrfaaS instances have long queues",
    Reason.LINK_CONGESTED: "the link has no budget for the bytes",
    Reason.ABOVE_THRESHOLD: "more uncached tokens than the threshold",
    Reason.SOONER_REMOTE: "PrfaaS would be done sooner, whatever the threshold says",
    Reason.LOCAL_PREFILL_UNAVAILABLE: "no local prefill instance is alive",
    Reason.REMOTE_PREFILL_FAILED: "the remote prefill failed",
    Reason.DECISION_TIMEOUT: "deciding took too long",
}


def describe_decision(document: Document) -> Iterator[str]:
    """Yield the sentences that tell a decision document (DESIGN 10) to a person."""
    reason = str(document.get("reason"))
    yield f"{_route_words(document)}: {REASONS.get(reason, reason)} ({reason})."
    yield _comparison(document)
    yield _placement(document)
    blocked = document.get("blocked_by")
    if blocked:
        yield f"Otherwise asked for, but {REASONS.get(str(blocked), blocked)} ({blocked})."
    cached = _cached_words(document)
    if cached:
        yield f"Cached: {cached}."
    yield from _link_words(document)


def _route_words(document: Document) -> str:
    route = document.get("route")
    return {"prfaas": "PrfaaS", "local": "Local"}.get(str(route), str(route))


def _comparison(document: Document) -> str:
    source = document.get("token_source")
    counted = f", counted by {source}" if source else ""
    regime = document.get("regime")
    return (
        f"{_number(document.get('uncached_tokens'))} of "
        f"{_number(document.get('total_tokens'))} prompt tokens are uncached{counted}; "
        f"the threshold is {_number(document.get('threshold'))} ({regime} bandwidth)."
    )


def _placement(document: Document) -> str:
    prefill, decode = _part(document, "prefill"), _part(document, "decode")
    computes = f"{_number(document.get('compute_uncached_tokens'))} tokens"
    where = f"{decode.get('instance')} in {decode.get('cluster')}"
    if not prefill:
        return f"{where} computes {computes} itself and decodes."
    if prefill.get("instance") == decode.get("instance"):
        return f"{where} does everything and computes {computes}."
    return (
        f"Prefill on {prefill.get('instance')} in {prefill.get('cluster')}, which computes "
        f"{computes}; decode on {where}."
    )


def _cached_words(document: Document) -> str:
    states = _part(document, "cache_state")
    parts = []
    for cluster, tokens in _part(document, "cached_tokens").items():
        state = states.get(cluster)
        known = "unknown" if tokens is None else f"{_number(tokens)} tokens"
        parts.append(f"{cluster} {known}" + (f" ({state})" if state and tokens is not None else ""))
    return ", ".join(parts)


def _link_words(document: Document) -> Iterator[str]:
    transfer = _part(document, "prefix_transfer")
    if transfer:
        yield (
            f"A prefix of {_number(transfer.get('tokens'))} tokens travels from "
            f"{transfer.get('from')} to {transfer.get('to')}."
        )
    link = _part(document, "link")
    size = document.get("kv_bytes")
    load = link.get("utilization")
    used = f"{load:.0%} used" if isinstance(load, int | float) else "load unknown"
    if link and document.get("route") == Route.PRFAAS:
        carried = f"{_size(size)} of KV go" if isinstance(size, int | float) else "KV goes"
        yield f"{carried} over {link.get('name')} ({used})."
        return
    if isinstance(size, int | float) and size > 0:
        yield f"{_size(size)} of KV are handed off."
    if link:
        yield f"Nothing of it goes over {link.get('name')} ({used})."


def _part(document: Document, name: str) -> Document:
    value = document.get(name)
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else "an unknown number"


def _size(size: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"
