"""The reuse rule against a slow oracle that reads like the rule's definition."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from kvmeta.match import AnnouncedGroup, MaskRuns, longest_prefix, plan_match
from kvmeta.types import CacheLayout, GroupKind, KvGroup

UNIT = 4


@dataclass(frozen=True)
class Scene:
    """A layout, the groups announced under it, one mask a hash unit and a limit in units."""

    layout: CacheLayout
    announced: tuple[AnnouncedGroup, ...]
    masks: tuple[int, ...]
    limit: int


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Models with one to four groups over at most a dozen slots, mostly present blocks."""
    announced = []
    slots = 0
    for _ in range(draw(st.integers(1, 4))):
        width = draw(st.integers(1, 2))  # media
        kind = draw(st.sampled_from(GroupKind))
        announced.append(
            AnnouncedGroup(
                kind=kind,
                present=((1 << width) - 1) << slots,
                window=draw(st.sampled_from([None, 1, 2, 9, 17, 40])),
                block_size=draw(st.sampled_from([None, UNIT, 2 * UNIT, 3 * UNIT])),
            )
        )
        slots += width
    kinds = draw(st.sets(st.sampled_from(GroupKind), max_size=3))
    declared = tuple(
        KvGroup(
            kind,
            count=draw(st.sampled_from([None, None, 1, 2])),
            window=draw(st.sampled_from([None, 9])) if kind is GroupKind.SLIDING_WINDOW else None,
        )
        for kind in sorted(kinds)
    )
    layout = CacheLayout(
        "f",
        UNIT,
        groups=declared,
        alignment=draw(st.sampled_from([None, None, UNIT, 2 * UNIT, 3 * UNIT])),
        eagle=draw(st.booleans()),
    )
    full = (1 << slots) - 1
    mask = st.one_of(st.just(full), st.integers(0, full), st.just(full))
    masks = tuple(draw(st.lists(mask, max_size=30)))
    return Scene(layout, tuple(announced), masks, draw(st.integers(0, 34)))


def satisfied(scene: Scene, group: AnnouncedGroup, window: int | None, length: int) -> bool:
    """Whether `group` alone lets the first `length` units be reused."""
    block = (group.block_size or UNIT) // UNIT
    beyond = block if scene.layout.eagle else 0

    def has(end: int) -> bool:
        return 0 < end <= len(scene.masks) and bool(scene.masks[end - 1] & group.present)

    if group.kind is GroupKind.RECURRENT:
        return has(length)
    end = length + beyond
    if end > min(scene.limit, len(scene.masks)):
        return False
    if group.kind is GroupKind.SLIDING_WINDOW and window is not None:
        if length % block:
            return False
        needed = -(-(window - 1) // (block * UNIT)) + beyond // block
        last = end // block
        return all(has(at * block) for at in range(max(1, last - needed + 1), last + 1))
    whole = all(has(at * block) for at in range(1, end // block + 1))
    return whole and (end % block == 0 or has(end))


def oracle(scene: Scene) -> int:
    """The longest length that every group allows, by trying them all from the top."""
    layout = scene.layout
    for declared in layout.groups:
        own = [group for group in scene.announced if group.kind is declared.kind]
        if len(own) < (declared.count or 1):
            return 0
    blocks = [(group.block_size or UNIT) // UNIT for group in scene.announced]
    step = layout.alignment // UNIT if layout.alignment else 1
    if not layout.alignment:
        while any(step % block for block in blocks):
            step += 1
    windows = {group.kind: group.window for group in layout.groups}

    def window_of(group: AnnouncedGroup) -> int | None:
        return max(group.window or 0, windows.get(group.kind) or 0) or None

    for length in range(min(scene.limit, len(scene.masks)), 0, -1):
        if length % step == 0 and all(
            satisfied(scene, group, window_of(group), length) for group in scene.announced
        ):
            return length
    return 0


def answer(scene: Scene) -> int:
    plan = plan_match(scene.layout, scene.announced)
    return 0 if plan is None else longest_prefix(plan, MaskRuns(scene.masks), scene.limit)


@settings(max_examples=800, deadline=None)
@given(scenes())
def test_match_equals_trying_every_length(scene: Scene) -> None:
    """The match finds exactly the longest length that every group allows."""
    assert answer(scene) == oracle(scene)


@settings(max_examples=300, deadline=None)
@given(scenes(), st.data())
def test_losing_a_block_never_lengthens_the_match(scene: Scene, data: st.DataObject) -> None:
    """Clearing bits can only shorten what is reusable, and it never passes the limit."""
    keep = data.draw(st.lists(st.integers(0, 255), min_size=30, max_size=30))
    fewer = tuple(mask & some for mask, some in zip(scene.masks, keep, strict=False))
    poorer = Scene(scene.layout, scene.announced, fewer, scene.limit)
    assert answer(poorer) <= answer(scene) <= scene.limit


@settings(max_examples=300, deadline=None)
@given(scenes(), st.lists(st.integers(0, 255), max_size=8))
def test_a_longer_prompt_never_matches_less(scene: Scene, more: list[int]) -> None:
    """Extending the prompt keeps every prefix reusable that was."""
    longer = Scene(scene.layout, scene.announced, (*scene.masks, *more), scene.limit + len(more))
    assert answer(longer) >= answer(scene)
