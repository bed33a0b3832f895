"""How declarations and announcements become what the match needs."""

from __future__ import annotations

from dataclasses import replace

from kvmeta.match import AnnouncedGroup, MaskRuns, MatchPlan, longest_prefix, plan_match
from kvmeta.types import CacheLayout, GroupKind, KvGroup

FULL, WINDOW, STATE = GroupKind.FULL_ATTENTION, GroupKind.SLIDING_WINDOW, GroupKind.RECURRENT
PLAIN = CacheLayout("f", 4)


def plan_of(layout: CacheLayout, *announced: AnnouncedGroup) -> MatchPlan:
    plan = plan_match(layout, announced)
    assert plan is not None
    return plan


def test_one_attention_group_is_the_plain_plan() -> None:
    """The common case is told apart, since it has the shortest way."""
    plan = plan_of(PLAIN, AnnouncedGroup(FULL, 0b1, block_size=4))
    assert plan.is_plain
    assert not plan_of(replace(PLAIN, eagle=True), AnnouncedGroup(FULL, 0b1)).is_plain
    assert not plan_of(replace(PLAIN, alignment=8), AnnouncedGroup(FULL, 0b1)).is_plain
    assert not plan_of(PLAIN, AnnouncedGroup(FULL, 0b1), AnnouncedGroup(FULL, 0b10)).is_plain


def test_the_alignment_is_the_least_common_multiple_unless_declared() -> None:
    """VLLM's scheduler block size; in hash units here."""
    groups = (AnnouncedGroup(FULL, 1, block_size=8), AnnouncedGroup(STATE, 2, block_size=12))
    layout = replace(PLAIN, groups=(KvGroup(FULL), KvGroup(STATE)))
    assert plan_of(layout, *groups).alignment == 6
    assert plan_of(replace(layout, alignment=4), *groups).alignment == 1


def test_a_declared_block_size_wins_over_a_learned_one() -> None:
    """The operator knows before any event told."""
    layout = replace(PLAIN, groups=(KvGroup(FULL, block_size=16),))
    assert plan_of(layout, AnnouncedGroup(FULL, 1, block_size=4)).requirements[0].block == 4


def test_groups_of_one_shape_are_one_requirement() -> None:
    """Recurrent groups of a hybrid are looked up together."""
    layout = replace(PLAIN, groups=(KvGroup(FULL), KvGroup(STATE, count=3)))
    states = [AnnouncedGroup(STATE, 1 << at) for at in range(3)]
    plan = plan_of(layout, *states, AnnouncedGroup(FULL, 1 << 3))
    assert [requirement.present for requirement in plan.requirements] == [(8,), (1, 2, 4)]


def test_windows_of_different_length_are_told_apart() -> None:
    """Two declared windows: each speaks of the groups that announce it."""
    layout = replace(PLAIN, groups=(KvGroup(WINDOW, window=9), KvGroup(WINDOW, window=17)))
    narrow, wide = AnnouncedGroup(WINDOW, 1, window=9), AnnouncedGroup(WINDOW, 2, window=17)
    plan = plan_of(layout, narrow, wide)
    assert sorted(requirement.tail for requirement in plan.requirements) == [2, 4]
    assert plan_match(layout, [narrow]) is None


def test_a_window_declared_and_announced_differently_takes_the_longer() -> None:
    """Too long costs hits; too short would invent them."""
    layout = replace(PLAIN, groups=(KvGroup(WINDOW, window=9),))
    plan = plan_of(layout, AnnouncedGroup(WINDOW, 1, window=17))
    assert plan.requirements[0].tail == 4


def test_a_window_of_unknown_length_needs_everything() -> None:
    """As long as nobody says how much is enough."""
    layout = replace(PLAIN, groups=(KvGroup(WINDOW),))
    assert plan_of(layout, AnnouncedGroup(WINDOW, 1)).requirements[0].kind is FULL


def test_no_group_at_all_means_nothing_reusable() -> None:
    """Neither declared nor announced: there is no rule to satisfy."""
    assert plan_match(replace(PLAIN, groups=()), []) is None


def test_a_limit_beyond_the_hashes_is_cut_to_them() -> None:
    """A prompt has no more blocks than hashes."""
    plan = plan_of(PLAIN, AnnouncedGroup(FULL, 1))
    assert longest_prefix(plan, MaskRuns([1, 1, 1]), 100) == 3
    assert longest_prefix(plan, MaskRuns([]), 100) == 0


def test_slots_may_take_turns_along_a_prefix() -> None:
    """Block by block another tier: the conjunction alone would see a hole."""
    plan = plan_of(PLAIN, AnnouncedGroup(FULL, 0b11))
    assert longest_prefix(plan, MaskRuns([1, 2, 1, 3, 2, 4]), 6) == 5
