"""The decision log, and the one document in which a decision is shown (DESIGN 10)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from router.domain.decision import Decision, LinkView, Placement, Reason, Route, Snapshot
from router.domain.units import Seconds

Document = dict[str, object]
"""A JSON object, ready to be serialised."""


class DecisionRecord(Struct, frozen=True, gc=False):
    """One decision with what it was made from; the snapshot allows to replay it.

    `waited` is how long the request waited at the gateway before it was decided.
    """

    request_id: str
    at: datetime
    snapshot: Snapshot
    decision: Decision
    waited: Seconds = 0.0

    @property
    def cursor(self) -> Cursor:
        """Where it is in the log."""
        return Cursor(self.at, self.request_id)

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
            "queue_seconds": self.waited,
        }


class Cursor(Struct, frozen=True, order=True):
    """A place in the log: everything older than one decision."""

    at: datetime
    request_id: str

    def __str__(self) -> str:
        return f"{self.at.isoformat()}~{self.request_id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote. Raises ValueError."""
        at, tilde, request_id = text.partition("~")
        moment = datetime.fromisoformat(at)
        if not tilde or moment.tzinfo is None:
            raise ValueError("no place in the log")
        return cls(moment, request_id)


class DecisionQuery(Struct, frozen=True):
    """Which decisions; what is None is any. `since` is included, `until` and `before` are not."""

    route: Route | None = None
    reason: Reason | None = None
    blocked_by: Reason | None = None
    model: str | None = None
    tenant: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: Cursor | None = None

    def matches(self, record: DecisionRecord) -> bool:
        """Whether a decision is one of those asked for."""
        decision, request = record.decision, record.snapshot.request
        return (
            self.route in (None, decision.route)
            and self.reason in (None, decision.reason)
            and self.blocked_by in (None, decision.blocked_by)
            and self.model in (None, request.model)
            and self.tenant in (None, request.tenant)
            and (self.since is None or record.at >= self.since)
            and (self.until is None or record.at < self.until)
            and (self.before is None or record.cursor < self.before)
        )


class DecisionLog:
    """The latest decisions, newest first, bounded."""

    def __init__(self, capacity: int = 4096) -> None:
        self._records: deque[DecisionRecord] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def capacity(self) -> int:
        """How many decisions it keeps at most."""
        return self._records.maxlen or 0

    @property
    def oldest(self) -> datetime | None:
        """When the oldest decision was made that is kept; None without any."""
        return self._records[0].at if self._records else None

    def resize(self, capacity: int) -> None:
        """Keep so many from now on; the oldest ones go where there are more."""
        if capacity != self.capacity:
            self._records = deque(self._records, maxlen=capacity)

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

    def select(self, query: DecisionQuery) -> Iterator[DecisionRecord]:
        """Yield the decisions that are asked for, newest first, of those kept now."""
        return (record for record in reversed(tuple(self._records)) if query.matches(record))


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
