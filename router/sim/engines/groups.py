"""The rules by kind of KV group: what makes a hit, what is retained, what is let go.

As in vLLM (v1/core/single_type_kv_cache_manager.py and kv_cache_coordinator.py; ENGINE-FACTS 2):

- *full attention* hits the longest run of blocks from the start, keeps all, lets nothing go;
- *sliding window* hits at an aligned L if the blocks of the last `window - 1` tokens before L are
  there, keeps the tails before reachable boundaries, lets blocks go that leave the window;
- *recurrent* hits at an aligned L if the state at exactly L is there, keeps the states at
  reachable boundaries, lets go every state but the latest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvmeta.types import GroupKind
from router.sim.engines.block_pool import NULL_BLOCK, BlockPool
from router.sim.engines.chains import TokenChain
from router.sim.engines.specs import CacheSpec


@dataclass(frozen=True, slots=True)
class GroupSet:
    """Groups of one specification, looked up jointly: a hit needs the block in all of `ids`."""

    kind: GroupKind
    ids: tuple[int, ...]
    block_size: int
    window: int | None

    @property
    def tail_blocks(self) -> int:
        """The contiguous blocks that a sliding-window hit needs before its boundary."""
        return -(-((self.window or 1) - 1) // self.block_size)


@dataclass(frozen=True, slots=True)
class GroupHit:
    """The longest hit of one group set: its tokens, and a block table for each of its groups."""

    tokens: int
    tables: tuple[list[int], ...]


def list_group_sets(spec: CacheSpec) -> tuple[GroupSet, ...]:
    """Number the groups in declaration order and merge equal ones, full attention first."""
    merged: dict[tuple[GroupKind, int, int | None], list[int]] = {}
    next_id = 0
    for group in spec.groups:
        key = (group.kind, group.block_size or spec.hash_unit, group.window)
        merged.setdefault(key, []).extend(range(next_id, next_id + group.count))
        next_id += group.count
    sets = [
        GroupSet(kind, tuple(ids), block_size, window)
        for (kind, block_size, window), ids in merged.items()
    ]
    return tuple(sorted(sets, key=lambda group: group.kind is not GroupKind.FULL_ATTENTION))


def find_hit(
    group: GroupSet, chain: TokenChain, limit: int, alignment: int, pool: BlockPool
) -> GroupHit:
    """Return the longest prefix of at most `limit` tokens that `group` alone could reuse."""
    blocks = min(limit, len(chain.labels) * chain.unit) // group.block_size
    match group.kind:
        case GroupKind.FULL_ATTENTION:
            return _find_run(group, chain, blocks, alignment, pool)
        case GroupKind.SLIDING_WINDOW:
            return _find_tail(group, chain, blocks, alignment, pool)
        case GroupKind.RECURRENT:
            return _find_state(group, chain, blocks, alignment, pool)


def mark_retained(
    group: GroupSet,
    start: int,
    end: int,
    boundaries: Iterable[int],
    alignment: int,
    interval: int | None,
) -> list[bool] | None:
    """Tell which of the blocks [start, end) to keep; None for all of them.

    `boundaries` are the token positions at which a later request could resume; `interval` is the
    retention interval (see `CacheSpec`).
    """
    if group.kind is GroupKind.FULL_ATTENTION:
        return None
    need = 1 if group.kind is GroupKind.RECURRENT else group.tail_blocks
    ends = {boundary // alignment * alignment // group.block_size for boundary in boundaries}
    step = alignment if interval is None else interval
    if step:
        if need >= step // group.block_size:
            return None
        last = end + step // group.block_size
        ends.update(range(0, last + 1, step // group.block_size))
    marks = [False] * (end - start)
    for boundary in ends:
        for index in range(max(start, boundary - need), min(end, boundary)):
            marks[index - start] = True
    return marks


def count_skipped_tokens(group: GroupSet, computed: int) -> int:
    """Return how many leading tokens the next step no longer looks at."""
    match group.kind:
        case GroupKind.FULL_ATTENTION:
            return 0
        case GroupKind.SLIDING_WINDOW:
            return max(0, computed - (group.window or 0) + 1)
        case GroupKind.RECURRENT:
            return max(0, computed - 1)


def _holders(group: GroupSet, chain: TokenChain, index: int, pool: BlockPool) -> list[int] | None:
    label = chain.block_label(index, group.block_size)
    found: list[int] = []
    for group_id in group.ids:
        block = pool.find(group_id, label)
        if block is None:
            return None
        found.append(block)
    return found


def _find_run(
    group: GroupSet, chain: TokenChain, blocks: int, alignment: int, pool: BlockPool
) -> GroupHit:
    rows: list[list[int]] = []
    for index in range(blocks):
        found = _holders(group, chain, index, pool)
        if found is None:
            break
        rows.append(found)
    per_alignment = alignment // group.block_size
    del rows[len(rows) // per_alignment * per_alignment :]
    tables = tuple([row[place] for row in rows] for place in range(len(group.ids)))
    return GroupHit(len(rows) * group.block_size, tables)


def _find_tail(
    group: GroupSet, chain: TokenChain, blocks: int, alignment: int, pool: BlockPool
) -> GroupHit:
    size, need = group.block_size, group.tail_blocks
    run: list[list[int]] = []  # from right to left
    for index in range(blocks - 1, -1, -1):
        found = _holders(group, chain, index, pool)
        if found is None:
            run.clear()
            continue
        if not run and (index + 1) * size % alignment:
            continue
        run.append(found)
        if len(run) >= need:
            return _tail_hit(group, index, run)
    # The run that reaches the very start needs no full window before it.
    per_alignment = alignment // size
    while run and len(run) % per_alignment:
        del run[0]
    return _tail_hit(group, 0, run)


def _tail_hit(group: GroupSet, nulls: int, run: list[list[int]]) -> GroupHit:
    head = [NULL_BLOCK] * nulls
    tables = tuple(
        head + [found[place] for found in reversed(run)] for place in range(len(group.ids))
    )
    return GroupHit((nulls + len(run)) * group.block_size, tables)


def _find_state(
    group: GroupSet, chain: TokenChain, blocks: int, alignment: int, pool: BlockPool
) -> GroupHit:
    per_alignment = alignment // group.block_size
    for index in range(blocks // per_alignment * per_alignment - 1, -1, -per_alignment):
        found = _holders(group, chain, index, pool)
        if found is not None:
            head = [NULL_BLOCK] * index
            return GroupHit(
                (index + 1) * group.block_size, tuple([*head, state] for state in found)
            )
    return GroupHit(0, tuple([] for _ in group.ids))
