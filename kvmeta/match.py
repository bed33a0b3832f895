"""The reuse rule: how much of a prompt could a source serve from its cache?

An engine with several KV groups can reuse a prefix of L tokens only if *every* group can
(vllm/v1/core/kv_cache_coordinator.py, HybridKVCacheCoordinator.find_longest_cache_hit):

    full attention   every block of [0, L)
    sliding window   ceil((window - 1) / block) contiguous blocks that end at L; a run that reaches
                     block 0 may be shorter
    recurrent        one state stored at exactly L

L is a multiple of the alignment and at most the prompt's limit. EAGLE heads need one attention
block beyond L as well, so what is reusable is a block shorter than what is stored. Each rule maps a
candidate L to the largest L' <= L that it allows; applying them in turn until none shrinks L gives
the largest L that all allow, since no rule ever passes over a common solution.

Data. A back end gives, per prefix hash of the prompt, one integer: bit s says that *slot* s holds
the block. A slot is one (source, epoch, medium, group), numbered by the back end. So one fetch a
prompt serves every source, and a source that forgets everything merely gets new slots. Sources
that share a prompt's history agree over long stretches, hence the masks are run-length encoded once
and every source is matched against the runs: the cost is one pass over the prompt and then
O(sources x runs), where runs are about as many as sources, not as blocks.

Lengths in this module are in hash units (`CacheLayout.block_size` tokens) unless named otherwise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, count, islice
from math import lcm
from operator import ne
from typing import Final

from kvmeta.types import CacheLayout, GroupKind, KvGroup

_FEW: Final = 32
"""Blocks that are looked at one by one in the time in which runs would be found in them."""

Run = tuple[int, int]
"""(start, mask): from `start` to the next run's start, blocks are in the same slots."""


@dataclass(frozen=True, slots=True)
class AnnouncedGroup:
    """One KV group as a source's events describe it.

    `block_size` (tokens) is the largest seen, None while only placeholders were. `present` has the
    bits of the slots that count: this group's, in every counted medium.
    """

    kind: GroupKind
    present: int
    window: int | None = None
    block_size: int | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """What groups of one shape demand together; `present` has one mask of slots a group.

    `block` is the groups' block, `tail` how many blocks before L must be there (sliding window).
    """

    kind: GroupKind
    block: int
    tail: int
    present: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MatchPlan:
    """Everything about one source that the match needs, fixed between changes of its groups."""

    requirements: tuple[Requirement, ...]
    alignment: int
    eagle: bool
    is_plain: bool
    """One full-attention group, hits at its block boundaries: what most models are."""
    plain: int = 0
    """The slots of a plain plan's one group."""


class MaskRuns:
    """The masks of one prompt, run-length encoded at every stride asked for.

    Stride k looks at the ends of k-unit blocks only: a block of several units is named by the hash
    of its last one.
    """

    def __init__(self, masks: Sequence[int]) -> None:
        self.masks = masks
        self._runs: dict[int, list[Run]] = {}
        self._shared: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self.masks)

    def may_match(self, plan: MatchPlan) -> bool:
        """Whether more than nothing may be reusable, at one look: cheaper than a match that fails.

        A plain plan needs block 0.
        """
        stride = plan.alignment
        if not plan.is_plain:
            return True
        return len(self.masks) >= stride and bool(self.masks[stride - 1] & plan.plain)

    def every(self, stride: int) -> list[Run]:
        """Return the runs over masks[stride-1], masks[2*stride-1], …; computed once a stride."""
        runs = self._runs.get(stride)
        if runs is None:
            masks = self.masks if stride == 1 else self.masks[stride - 1 :: stride]
            runs = self._runs[stride] = list(_encode_runs(masks))
        return runs

    def depth(self, stride: int, present: int) -> int:
        """Return how many stride-blocks from block 0 on are in one of the slots of `present`.

        Some slot usually has the whole stretch alone: that one is found by bisection over the
        running conjunction of the masks. Where slots take turns (tiers), the rest is walked. Of a
        short prompt all is.
        """
        if len(self.masks) <= _FEW * stride:
            depth = 0
            for mask in self.masks[stride - 1 :: stride]:
                if not mask & present:
                    break
                depth += 1
            return depth
        runs = self.every(stride)
        shared = self._shared.get(stride)
        if shared is None:
            shared = [mask for _, mask in accumulate(runs, lambda a, b: (0, a[1] & b[1]))]
            self._shared[stride] = shared
        at = bisect_left(shared, 1, key=lambda mask: 0 if mask & present else 1)
        while at < len(runs) and runs[at][1] & present:
            at += 1
        return runs[at][0] if at < len(runs) else len(self.masks) // stride


def _encode_runs(masks: Sequence[int]) -> Iterator[Run]:
    """Yield (start, mask) of each run; the search for boundaries stays in C."""
    if not masks:
        return
    yield 0, masks[0]
    for at in compress(count(1), map(ne, masks, islice(masks, 1, None))):
        yield at, masks[at]


def plan_match(layout: CacheLayout, announced: Iterable[AnnouncedGroup]) -> MatchPlan | None:
    """Combine what was declared with what was announced; None: nothing can be reusable.

    A declared group that announced nothing, or fewer groups than its `count`, means that nothing
    is. An announced group of an undeclared kind is required as well: the engine has it, whatever
    the operator wrote.
    """
    groups = list(announced)
    shapes: dict[tuple[GroupKind, int, int], list[int]] = {}
    covered: set[int] = set()
    for declared in layout.groups:
        own = [at for at, group in enumerate(groups) if _covers(layout, declared, group)]
        if len(own) < (declared.count or 1):
            return None
        for at in own:
            _add_shape(shapes, layout, groups[at], declared)
        covered.update(own)
    for at, group in enumerate(groups):
        if at not in covered:
            _add_shape(shapes, layout, group, None)
    if not shapes:
        return None
    unit = layout.block_size
    requirements = tuple(
        Requirement(kind, block, tail, tuple(present))
        for (kind, block, tail), present in sorted(shapes.items())
    )
    alignment = (
        layout.alignment // unit
        if layout.alignment is not None
        else lcm(*(requirement.block for requirement in requirements))
    )
    alignment = max(1, alignment)
    first = requirements[0]
    plain = first.kind is GroupKind.FULL_ATTENTION and first.block == alignment
    is_plain = plain and len(groups) == 1 and not layout.eagle
    present = first.present[0] if is_plain else 0
    return MatchPlan(requirements, alignment, layout.eagle, is_plain, present)


def _covers(layout: CacheLayout, declared: KvGroup, group: AnnouncedGroup) -> bool:
    """Whether `declared` speaks of `group`: by kind, and by window where several share the kind."""
    if declared.kind is not group.kind:
        return False
    rivals = sum(1 for other in layout.groups if other.kind is declared.kind)
    return rivals == 1 or None in (declared.window, group.window) or declared.window == group.window


def _add_shape(
    shapes: dict[tuple[GroupKind, int, int], list[int]],
    layout: CacheLayout,
    group: AnnouncedGroup,
    declared: KvGroup | None,
) -> None:
    tokens = (declared and declared.block_size) or group.block_size or layout.block_size
    block = max(1, tokens // layout.block_size)
    kind = group.kind
    tail = 0
    if kind is GroupKind.SLIDING_WINDOW:
        window = max(group.window or 0, (declared and declared.window) or 0)
        if window:
            tail = -(-(window - 1) // (block * layout.block_size))
        else:
            kind = (
                GroupKind.FULL_ATTENTION
            )  # a window that nobody told may be as long as the prompt
    shapes.setdefault((kind, block, tail), []).append(group.present)


def longest_prefix(plan: MatchPlan, runs: MaskRuns, limit: int) -> int:
    """Return the longest reusable prefix, in units, at most `limit`; 0 is always reusable.

    Terminates since each turn of the loop shrinks the candidate; scans start at the candidate, so
    all turns together read each run about once.
    """
    limit = min(limit, len(runs))
    if plan.is_plain:
        stride = plan.alignment
        return min(limit // stride, runs.depth(stride, plan.requirements[0].present[0])) * stride
    rules = [_Rule(requirement, plan, runs) for requirement in plan.requirements]
    length = limit - limit % plan.alignment
    while length > 0:
        candidate = length
        for rule in rules:
            candidate = rule.allow(candidate, limit)
            if candidate <= 0:
                return 0
        if candidate == length:
            return length
        length = candidate
    return 0


class _Rule:
    """One requirement against one prompt: maps L to the largest L' <= L that it allows."""

    def __init__(self, requirement: Requirement, plan: MatchPlan, runs: MaskRuns) -> None:
        self._requirement = requirement
        self._present = requirement.present
        self._alignment = plan.alignment
        self._masks = runs.masks
        recurrent = requirement.kind is GroupKind.RECURRENT
        self._stride = plan.alignment if recurrent else requirement.block
        self._beyond = requirement.block if plan.eagle and not recurrent else 0
        self._runs = runs.every(self._stride)
        self._depth = 0
        self._spans: list[tuple[int, int]] = []
        if requirement.kind is GroupKind.FULL_ATTENTION:
            self._depth = self._stride * min(
                runs.depth(self._stride, group) for group in requirement.present
            )
        elif requirement.kind is GroupKind.SLIDING_WINDOW:
            self._spans = _spans(self._runs, len(runs) // self._stride, self._present)

    def allow(self, length: int, limit: int) -> int:
        match self._requirement.kind:
            case GroupKind.FULL_ATTENTION:
                return self._allow_full(min(length, limit - self._beyond))
            case GroupKind.SLIDING_WINDOW:
                return self._allow_window(min(length, limit - self._beyond))
            case GroupKind.RECURRENT:
                return self._allow_state(length)

    def _allow_full(self, length: int) -> int:
        """Blocks of [0, L) are there; L inside a block needs the partial block that ends there."""
        block, step = self._stride, self._alignment
        length = min(length, self._depth + block - 1 - self._beyond)
        length -= length % step
        while length > 0:
            end = length + self._beyond
            if end % block == 0 and end <= self._depth:
                return length
            if (
                end % block
                and end - end % block <= self._depth
                and _in_all(self._masks[end - 1], self._present)
            ):
                return length
            length -= step
        return 0

    def _allow_window(self, length: int) -> int:
        """A span of present blocks that ends at L, long enough or reaching block 0."""
        block = self._stride
        step = lcm(block, self._alignment)
        ahead = self._beyond // block
        tail = self._requirement.tail + ahead
        length -= length % step
        if tail == 0:
            return max(0, length)
        while length > 0:
            end = length // block + ahead  # in blocks: [.., end) must be there
            at = bisect_left(self._spans, (end, 0)) - 1
            if at < 0:
                return 0
            start, stop = self._spans[at]
            if end <= stop and (start == 0 or end - start >= tail):
                return length
            # Jump: to this span's end if it was passed over, else before its start.
            reach = min(end - 1, stop) if end > stop else start
            below = (reach - ahead) * block
            length = min(length - step, below - below % step)
        return 0

    def _allow_state(self, length: int) -> int:
        """The last state stored at an aligned boundary <= L."""
        end = length // self._stride
        at = bisect_left(self._runs, (end, 0)) - 1  # the run of the block that ends at L
        while at >= 0:
            start, mask = self._runs[at]
            if _in_all(mask, self._present):
                return end * self._stride
            end = start
            at -= 1
        return 0


def _in_all(mask: int, present: tuple[int, ...]) -> bool:
    """Whether every group has the block; a plain loop, since a generator costs twice as much."""
    for group in present:  # noqa: SIM110  # see above
        if not mask & group:
            return False
    return True


def _spans(runs: Sequence[Run], total: int, present: tuple[int, ...]) -> list[tuple[int, int]]:
    """The half-open stretches of blocks that every group has, ascending, never touching."""
    spans: list[tuple[int, int]] = []
    since: int | None = None
    for start, mask in runs:
        if _in_all(mask, present):
            since = start if since is None else since
        elif since is not None:
            spans.append((since, start))
            since = None
    if since is not None:
        spans.append((since, total))
    return spans
