"""The decision log, and the one document in which a decision is shown (DESIGN 10)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from router.domain.decision import Decision, LinkView, Placement, Snapshot

Document = dict[str, object]
"""A JSON object, ready to be serialised."""


class DecisionRecord(Struct, frozen=True, gc=False):
    """One decision with what it was made from; the snapshot allows to replay it."""

    request_id: str
    at: datetime
    snapshot: Snapshot
    decision: Decision

    def document(self) -> Document:
        """Return the decision as operators see it."""
        request, decision = self.snapshot.request, self.decision
        return {
            "request_id": self.request_id,
            "at": self.at.isoformat(),
            "tenant": request.tenant,
            "model": request.model,
            "total_tokens": request.total_tokens,
            "token_source": request.token_source,
            "cached_tokens": {name: belief.tokens for name, belief in decision.cached},
            "cache_state": {name: belief.state for name, belief in decision.cached},
            "uncached_tokens": decision.uncached_tokens,
            "compute_uncached_tokens": decision.compute_uncached_tokens,
            "threshold": decision.threshold,
            "regime": decision.regime,
            "route": decision.route,
            "reason": decision.reason,
            "blocked_by": decision.blocked_by,
            "home_cluster": decision.home,
            "prefill": _prefill(decision.prefill),
            "decode": {"cluster": decision.decode.cluster, "instance": decision.decode.instance},
            "prefix_transfer": _transfer(decision),
            "link": _link(decision.link),
            "kv_bytes": decision.kv_bytes,
        }


class DecisionLog:
    """The latest decisions, newest first, bounded."""

    def __init__(self, capacity: int = 1000) -> None:
        self._records: deque[DecisionRecord] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: DecisionRecord) -> None:
        """Keep a decision; the oldest one goes when the log is full."""
        self._records.append(record)

    def amend(self, record: DecisionRecord, decision: Decision) -> DecisionRecord:
        """Replace the decision of a request that was planned again after the fact."""
        amended = replace(record, decision=decision)
        for position in range(len(self._records) - 1, -1, -1):
            if self._records[position] is record:
                self._records[position] = amended
                break
        return amended

    def latest(
        self, *, limit: int = 100, route: str | None = None, reason: str | None = None
    ) -> Iterator[DecisionRecord]:
        """Yield up to `limit` records, newest first, of a route or a reason if named."""
        found = 0
        for record in reversed(self._records):
            if found >= limit:
                return
            if route in (None, record.decision.route) and reason in (None, record.decision.reason):
                found += 1
                yield record


def _prefill(placement: Placement | None) -> Document | None:
    if placement is None:
        return None
    return {
        "cluster": placement.cluster,
        "instance": placement.instance,
        "cached_tokens": placement.cached_tokens,
    }


def _transfer(decision: Decision) -> Document | None:
    transfer = decision.prefix_transfer
    if transfer is None:
        return None
    return {"from": transfer.source, "to": transfer.target, "tokens": transfer.tokens}


def _link(link: LinkView | None) -> Document | None:
    if link is None:
        return None
    return {"name": link.name, "utilization": link.utilization, "free_bytes": link.free}
