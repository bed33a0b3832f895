"""Documents of the admin API, for its description: what a decision shows (DESIGN 10).

The documents themselves are formed in `service.decisions`; a test compares the two. Further members
may come: readers ignore those that they do not know.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from router.domain.decision import Reason, Regime, Route


class PlaceDocument(BaseModel):
    """Where a leg runs."""

    cluster: str
    instance: str


class PrefillDocument(PlaceDocument):
    """Where a prompt is computed, and what is believed cached there; null is unknown."""

    cached_tokens: int | None


class PrefixTransferDocument(BaseModel):
    """A cached prefix that goes from one cluster to another."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    tokens: int


class LinkUseDocument(BaseModel):
    """The link of a decision, as it was."""

    name: str
    utilization: float | None
    free_bytes: float | None


class DecisionDocument(BaseModel):
    """One decision and what it was made from."""

    request_id: str
    at: datetime
    tenant: str
    model: str
    total_tokens: int
    token_source: str
    cached_tokens: dict[str, int | None]
    cache_state: dict[str, str]
    uncached_tokens: int
    compute_uncached_tokens: int
    threshold: int
    regime: Regime
    route: Route
    reason: Reason
    blocked_by: Reason | None
    home_cluster: str
    prefill: PrefillDocument | None
    decode: PlaceDocument
    prefix_transfer: PrefixTransferDocument | None
    link: LinkUseDocument | None
    kv_bytes: int | None
    queue_seconds: float


class DecisionList(BaseModel):
    """The latest decisions, newest first. `next` is the cursor of those before; null at the end."""

    decisions: list[DecisionDocument]
    next: str | None
