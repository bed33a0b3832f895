"""The decision log: filters, pages over several workers, and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from router.domain.decision import Decision, Reason, Route
from router.policy.route import decide
from router.service.decisions import Cursor, DecisionLog, DecisionQuery, DecisionRecord
from router.service.journals import (
    Journal,
    LogReplay,
    PageOrder,
    ReplayOrder,
    Told,
    replay_log,
    select_told,
)
from tests.fakes.snapshots import a_link, a_pair, a_snapshot

NOON = datetime(2026, 4, 16, 12, 0, tzinfo=UTC)


def record(place: int, total: int = 100, **changes: object) -> DecisionRecord:
    """The decision of a prompt of `total` tokens, `place` seconds after noon."""
    snapshot = a_snapshot(total, **changes)  # type: ignore[arg-type]
    decision = decide(snapshot)
    assert isinstance(decision, Decision)
    return DecisionRecord(f"r{place:03}", NOON + timedelta(seconds=place), snapshot, decision)


class OtherLogs:
    """Colleagues whose logs are here."""

    def __init__(self, *logs: DecisionLog) -> None:
        self._logs = logs

    async def select(self, order: PageOrder) -> Sequence[Sequence[Told]]:
        """Ask each log."""
        return [select_told(log, order) for log in self._logs]

    async def replay(self, order: ReplayOrder) -> Sequence[LogReplay]:
        """Ask each log."""
        return [await replay_log(log, order) for log in self._logs]


def filled(places: range, capacity: int = 100) -> DecisionLog:
    log = DecisionLog(capacity)
    for place in places:
        log.add(record(place, 15_000))
    return log


def ids(log: DecisionLog, query: DecisionQuery) -> list[str]:
    return [each.request_id for each in log.select(query)]


def test_each_filter_keeps_what_it_names() -> None:
    """Route, reason, obstacle, model, tenant and time, alone and together."""
    log = DecisionLog(10)
    log.add(record(0, 100))
    log.add(record(1, 50_000))
    log.add(record(2, 50_000, pair=a_pair(link=a_link(up=False))))
    other = record(3, 100)
    request = replace(other.snapshot.request, tenant="acme", model="other")
    log.add(replace(other, snapshot=replace(other.snapshot, request=request)))
    blocked = record(4, 100)
    decision = replace(blocked.decision, blocked_by=Reason.LINK_DOWN)
    log.add(replace(blocked, decision=decision))
    assert ids(log, DecisionQuery()) == ["r004", "r003", "r002", "r001", "r000"]
    assert ids(log, DecisionQuery(route=Route.PRFAAS)) == ["r001"]
    assert ids(log, DecisionQuery(reason=Reason.LINK_DOWN)) == ["r002"]
    assert ids(log, DecisionQuery(blocked_by=Reason.LINK_DOWN)) == ["r004"]
    assert ids(log, DecisionQuery(tenant="acme")) == ["r003"]
    assert ids(log, DecisionQuery(model="other")) == ["r003"]
    since = NOON + timedelta(seconds=1)
    assert ids(log, DecisionQuery(since=since, until=NOON + timedelta(seconds=3))) == [
        "r002",
        "r001",
    ]
    assert ids(log, DecisionQuery(since=since, route=Route.LOCAL, tenant="acme")) == ["r003"]


def test_the_log_is_bounded_and_can_be_resized() -> None:
    """The oldest decision goes first; a smaller log keeps the newest."""
    log = filled(range(5), capacity=3)
    assert ids(log, DecisionQuery()) == ["r004", "r003", "r002"]
    assert log.oldest == NOON + timedelta(seconds=2)
    log.resize(2)
    assert (len(log), log.capacity) == (2, 2)
    log.resize(50)
    log.add(record(9))
    assert ids(log, DecisionQuery()) == ["r009", "r004", "r003"]


async def test_pages_of_all_workers_are_one_list() -> None:
    """Page by page every decision of every worker is shown once, newest first."""
    evens, odds = filled(range(0, 20, 2)), filled(range(1, 20, 2))
    journal = Journal(evens, OtherLogs(odds, DecisionLog(5)))
    seen: list[str] = []
    query = DecisionQuery()
    for size in (7, 7, 6):
        page: dict[str, Any] = await journal.page(PageOrder(query, size))
        assert len(page["decisions"]) == size
        seen += [each["request_id"] for each in page["decisions"]]
        if len(seen) < 20:
            query = DecisionQuery(before=Cursor.parse(page["next"]))
    assert page["next"] is None
    assert seen == [f"r{place:03}" for place in reversed(range(20))]


@pytest.mark.parametrize("text", ["", "x", "2026-01-01T00:00:00~r", "2026-01-01T00:00:00+00:00"])
def test_a_cursor_is_read_as_it_was_written(text: str) -> None:
    """What no page wrote is refused; any request id may be part of a cursor."""
    with pytest.raises(ValueError, match=r"."):
        Cursor.parse(text)
    place = Cursor(NOON, "a~b ü")
    assert Cursor.parse(str(place)) == place


async def test_a_replay_covers_all_workers_and_says_how_far_back() -> None:
    """Counts add up over workers; a log that has forgotten part of what was asked for says so."""
    journal = Journal(filled(range(30), capacity=10), OtherLogs(filled(range(30))))
    replay: dict[str, Any] = await journal.replay(ReplayOrder(DecisionQuery(), threshold=12_000))
    assert replay["covers"]["decisions"] == 40
    assert [each["kept"] for each in replay["covers"]["logs"]] == [10, 30]
    assert replay["covers"]["seconds"] == 29
    assert replay["recorded"]["routes"] == {"local": 40}
    assert replay["replayed"]["routes"] == {"prfaas": 40}
    assert replay["moved"]["to_prfaas"] == 40
    assert replay["replayed"]["link_gbps"]["value"] > 0
    assert any("reaches back to 2026-04-16T12:00:20" in note for note in replay["notes"])
    recent = DecisionQuery(since=NOON + timedelta(seconds=25))
    replay = await journal.replay(ReplayOrder(recent, threshold=12_000))
    assert replay["covers"]["decisions"] == 10
    assert not any("reaches back" in note for note in replay["notes"])


async def test_a_replay_of_nothing_is_empty() -> None:
    """Without decisions there are no rates, and no failure."""
    replay: dict[str, Any] = await Journal(DecisionLog(5), OtherLogs()).replay(
        ReplayOrder(DecisionQuery(), threshold=0)
    )
    assert replay["covers"]["decisions"] == 0
    assert replay["recorded"]["link_gbps"]["value"] is None
    assert replay["ttft_mean_change_seconds"] is None
