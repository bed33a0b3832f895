"""Decisions made again from their own snapshots."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from router.domain.decision import (
    Decision,
    Regime,
    Route,
    Rule,
    Snapshot,
    ThresholdMode,
    ThresholdView,
)
from router.domain.topology import Role
from router.domain.units import BytesPerSecond
from router.planning.redecisions import (
    MOVED_SHOWN,
    Alternative,
    Moved,
    add_redecided,
    expected_ttft,
    merge_redecided,
    nothing_redecided,
)
from router.policy.route import decide
from tests.fakes.snapshots import WEST, a_link, a_pair, a_snapshot, an_instance


def decided(snapshot: Snapshot) -> Decision:
    """The decision on a snapshot in which somebody is alive."""
    decision = decide(snapshot)
    assert isinstance(decision, Decision)
    return decision


def test_another_threshold_moves_what_lies_between() -> None:
    """Prompts between both thresholds go the other way; what moved, and its bytes, are counted."""
    both = nothing_redecided()
    for total in (5_000, 15_000, 25_000):
        add_redecided(both, f"r{total}", a_snapshot(total), Alternative(threshold=12_000))
    assert both.decisions == 3
    assert both.recorded.routes == {"local": 2, "prfaas": 1}
    assert both.replayed.routes == {"local": 1, "prfaas": 2}
    assert both.recorded.reasons == {"below_threshold": 2, "above_threshold": 1}
    assert (both.to_prfaas, both.to_local) == (1, 0)
    assert both.moved == [Moved("r15000", 15_000, Route.LOCAL, Route.PRFAAS)]
    assert both.recorded.offloaded_tokens == 25_000
    assert both.replayed.offloaded_tokens == 40_000
    assert both.replayed.link_bytes == 2 * both.recorded.link_bytes > 0


def test_without_a_change_nothing_moves() -> None:
    """Both sides are decided by the same rule: the alternative alone can make a difference."""
    both = nothing_redecided()
    off = a_pair(threshold=ThresholdView(ThresholdMode.OFF, 19_400))
    for snapshot in (a_snapshot(50_000), a_snapshot(100), a_snapshot(50_000, pair=off)):
        add_redecided(both, "r", snapshot, Alternative(rule=snapshot.rule))
    assert both.recorded == both.replayed
    assert both.moved == []
    add_redecided(both, "r", a_snapshot(50_000, pair=off), Alternative(threshold=19_400))
    assert both.to_prfaas == 1


def test_what_was_out_of_time_stays_local() -> None:
    """No threshold makes a count come sooner."""
    both = nothing_redecided()
    add_redecided(both, "r", a_snapshot(50_000), Alternative(threshold=0), late=True)
    assert both.recorded.reasons == both.replayed.reasons == {"decision_timeout": 1}


def test_nobody_alive_is_on_neither_side() -> None:
    """A snapshot without anybody to decode is told apart."""
    both = nothing_redecided()
    dead = (an_instance("d", Role.DECODE, ready=False),)
    add_redecided(both, "r", a_snapshot(home=dead), Alternative(threshold=0))
    assert (both.decisions, both.undecided) == (0, 1)


def test_the_regime_and_the_rule_can_be_supposed() -> None:
    """Another regime counts prefixes otherwise, another rule looks at queues."""
    both = nothing_redecided()
    pair = a_pair(ships_to_pd=True)
    cached_there = a_snapshot(30_000, remote=20_000, pair=pair)
    add_redecided(both, "r", cached_there, Alternative(regime=Regime.ABUNDANT))
    assert both.to_local == 1
    assert both.replayed.link_bytes > 0  # the prefix that travels
    home = (
        an_instance("p", Role.PREFILL, ahead=100.0, prefill=1.0),
        an_instance("d", Role.DECODE),
    )
    waiting = a_snapshot(10_000, home=home)
    add_redecided(both, "r", waiting, Alternative(rule=Rule.EXPECTED))
    assert both.replayed.reasons["sooner_remote"] == 1


def test_expected_ttft_is_queue_prefill_and_link() -> None:
    """At home the queue and the prefill count, away the link as well; unprofiled is unknown."""
    home = (
        an_instance("p", Role.PREFILL, ahead=1.0, prefill=2.0),
        an_instance("d", Role.DECODE),
    )
    west = (an_instance("f", Role.PREFILL, cluster=WEST, ahead=0.5, prefill=1.0),)
    local = a_snapshot(100, home=home, west=west)
    assert expected_ttft(local, decided(local)) == 3.0
    slow = a_pair(link=a_link(rate=BytesPerSecond(1e8)))
    remote = a_snapshot(30_000, home=home, west=west, pair=slow)
    assert expected_ttft(remote, decided(remote)) == pytest.approx(10.0, rel=0.2)
    unprofiled = replace(remote, sizing=replace(remote.sizing, total=None))
    assert expected_ttft(unprofiled, decided(unprofiled)) is None


def test_comparisons_add_up() -> None:
    """Two workers' logs are one comparison; of what moved a bounded number is named."""
    one, other = nothing_redecided(), nothing_redecided()
    for place in range(MOVED_SHOWN):
        for part in (one, other):
            add_redecided(part, f"r{place}", a_snapshot(15_000), Alternative(threshold=0))
    both = merge_redecided(one, other)
    assert both.decisions == both.to_prfaas == 2 * MOVED_SHOWN
    assert len(both.moved) == MOVED_SHOWN
    assert both.replayed.routes == {"prfaas": 2 * MOVED_SHOWN}
