"""The decisions of all workers of one gateway: what was decided, page by page, and decided again.

Every worker keeps its own log. Whichever is asked asks the others, so that operators see one.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final, Protocol

from msgspec import Struct

from router.domain.decision import Reason, Regime, Rule
from router.domain.units import Tokens
from router.planning.redecisions import (
    Alternative,
    Redecided,
    Tally,
    add_redecided,
    merge_redecided,
    nothing_redecided,
)
from router.service.decisions import Cursor, DecisionLog, DecisionQuery, Document

_BATCH: Final = 25
"""Decisions made again before requests have their turn: about two milliseconds."""


class PageOrder(Struct, frozen=True):
    """Which decisions are to be shown, and how many at most."""

    query: DecisionQuery
    limit: int


class ReplayOrder(Struct, frozen=True):
    """Which decisions are to be made again, and with what instead."""

    query: DecisionQuery
    threshold: Tokens | None = None
    regime: Regime | None = None
    rule: Rule | None = None


class Told(Struct, frozen=True):
    """One decision as a worker shows it, with its place in the log."""

    cursor: Cursor
    document: Document


class LogReplay(Struct, frozen=True):
    """One worker's decisions made again, and how far its log reaches back.

    `first` and `last` are when the oldest and the newest of those were made.
    """

    redecided: Redecided
    kept: int
    capacity: int
    oldest: datetime | None = None
    first: datetime | None = None
    last: datetime | None = None


class Colleagues(Protocol):
    """The other workers of the gateway. One that does not answer in time is left out."""

    async def select(self, order: PageOrder) -> Sequence[Sequence[Told]]:
        """Return each worker's decisions, newest first."""
        ...

    async def replay(self, order: ReplayOrder) -> Sequence[LogReplay]:
        """Return each worker's decisions made again."""
        ...


def select_told(log: DecisionLog, order: PageOrder) -> list[Told]:
    """Return what a log has of what is asked for, newest first."""
    records = islice(log.select(order.query), order.limit)
    return [Told(record.cursor, record.document()) for record in records]


async def replay_log(log: DecisionLog, order: ReplayOrder) -> LogReplay:
    """Decide a log's decisions again. Some ten microseconds each, with pauses for requests."""
    alternative = Alternative(order.threshold, order.regime, order.rule)
    records = list(log.select(order.query))
    redecided = nothing_redecided()
    for place, record in enumerate(records, 1):
        late = record.decision.reason is Reason.DECISION_TIMEOUT
        add_redecided(redecided, record.request_id, record.snapshot, alternative, late=late)
        if place % _BATCH == 0:
            await asyncio.sleep(0)
    return LogReplay(
        redecided,
        kept=len(log),
        capacity=log.capacity,
        oldest=log.oldest,
        first=records[-1].at if records else None,
        last=records[0].at if records else None,
    )


@dataclass(frozen=True, slots=True)
class Journal:
    """This worker's log and those of its colleagues."""

    log: DecisionLog
    colleagues: Colleagues

    async def page(self, order: PageOrder) -> Document:
        """Return the decisions asked for, newest first; `next` is None after the last of them."""
        wanted = PageOrder(order.query, order.limit + 1)
        logs = [select_told(self.log, wanted), *await self.colleagues.select(wanted)]
        merged = heapq.merge(*logs, key=lambda told: told.cursor, reverse=True)
        found = list(islice(merged, order.limit + 1))
        shown = found[: order.limit]
        return {
            "decisions": [told.document for told in shown],
            "next": str(shown[-1].cursor) if len(found) > len(shown) else None,
        }

    async def replay(self, order: ReplayOrder) -> Document:
        """Return what the decisions asked for were, and what they had been with the alternative."""
        own, others = await asyncio.gather(
            replay_log(self.log, order), self.colleagues.replay(order)
        )
        return _describe_replay(order, [own, *others])


def _describe_replay(order: ReplayOrder, logs: Sequence[LogReplay]) -> Document:
    together = nothing_redecided()
    for log in logs:
        together = merge_redecided(together, log.redecided)
    firsts = [log.first for log in logs if log.first is not None]
    lasts = [log.last for log in logs if log.last is not None]
    seconds = (max(lasts) - min(firsts)).total_seconds() if firsts else 0.0
    return {
        "supposed": {
            "threshold": order.threshold,
            "regime": order.regime,
            "policy": order.rule,
        },
        "covers": {
            "decisions": together.decisions,
            "undecided": together.undecided,
            "from": min(firsts).isoformat() if firsts else None,
            "to": max(lasts).isoformat() if lasts else None,
            "seconds": seconds,
            "logs": [_describe_log(log) for log in logs],
        },
        "recorded": _describe_tally(together.recorded, seconds),
        "replayed": _describe_tally(together.replayed, seconds),
        "moved": {
            "to_prfaas": together.to_prfaas,
            "to_local": together.to_local,
            "requests": [
                {
                    "request_id": each.request_id,
                    "uncached_tokens": each.uncached_tokens,
                    "recorded": each.before,
                    "replayed": each.after,
                }
                for each in together.moved
            ],
        },
        "ttft_mean_change_seconds": _change(together),
        "notes": list(_notes(order, logs)),
    }


def _describe_log(log: LogReplay) -> Document:
    return {
        "kept": log.kept,
        "capacity": log.capacity,
        "oldest": None if log.oldest is None else log.oldest.isoformat(),
        "decisions": log.redecided.decisions,
    }


def _describe_tally(tally: Tally, seconds: float) -> Document:
    """Return one side. What it would carry and take is modelled; its counts are not."""
    gbps = tally.link_bytes * 8 / seconds / 1e9 if seconds > 0 else None
    return {
        "routes": tally.routes,
        "reasons": tally.reasons,
        "offloaded_tokens": tally.offloaded_tokens,
        "link_bytes": {"value": tally.link_bytes, "source": "modelled"},
        "link_gbps": {"value": gbps, "source": "modelled"},
        "ttft_mean_seconds": {"value": _mean(tally), "source": "modelled"},
    }


def _mean(tally: Tally) -> float | None:
    return tally.ttft_seconds / tally.ttft_known if tally.ttft_known else None


def _change(both: Redecided) -> float | None:
    before, after = _mean(both.recorded), _mean(both.replayed)
    return None if before is None or after is None else after - before


def _notes(order: ReplayOrder, logs: Sequence[LogReplay]) -> list[str]:
    notes = ["queues and links are as recorded: they do not react to what would have moved"]
    since = order.query.since
    for log in logs:
        forgot = log.kept == log.capacity and log.oldest is not None
        if forgot and log.oldest is not None and (since is None or log.oldest > since):
            notes.append(
                f"a log of {log.capacity:,} reaches back to {log.oldest.isoformat()} only:"
                " admin.decision_log_size"
            )
    return notes
