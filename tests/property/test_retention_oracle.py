"""What is foreseen of a computed prompt against the cache of an engine that computed it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmeta.hashing import prompt_blocks
from kvmeta.retention import keep_prompt
from kvmeta.types import CacheLayout, GroupKind, KvGroup
from router.sim.engines.block_cache import BlockCache
from router.sim.engines.specs import CacheSpec, GroupSpec

UNIT = 4
FULL = GroupSpec(GroupKind.FULL_ATTENTION)
LAYOUTS = {
    "full": (FULL,),
    "hybrid": (GroupSpec(GroupKind.RECURRENT, 2), FULL),
    "window": (GroupSpec(GroupKind.SLIDING_WINDOW, 2, window=10), FULL),
    "coarse": (GroupSpec(GroupKind.FULL_ATTENTION, block_size=2 * UNIT),),
    "all kinds": (
        FULL,
        GroupSpec(GroupKind.SLIDING_WINDOW, window=10),
        GroupSpec(GroupKind.RECURRENT, 2),
    ),
}


def compute(cache: BlockCache, tokens: list[int]) -> None:
    """Run a prefill leg: the whole prompt, in steps, without an answer."""
    chain = cache.chain(tokens)
    hit = cache.look_up(chain, len(tokens) - 1)
    holding = cache.admit(chain, hit, prompt_tokens=len(tokens), total_tokens=len(tokens))
    while holding.computed < len(tokens):
        end = cache.next_stop(holding, 11)
        cache.allocate(holding, end)
        cache.commit(holding, end)
    cache.release(holding)


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), cut=st.integers(0, 1))
def test_no_more_is_foreseen_than_the_engine_keeps(name: str, seed: int, cut: int) -> None:
    """A cold engine computes one prompt; any other finds at least what was foreseen of it.

    With full attention alone it finds exactly that. `cut` is what a connector takes off the leg.
    """
    rng = random.Random(seed)
    groups = LAYOUTS[name]
    layout = CacheLayout(
        "m@1", UNIT, groups=tuple(KvGroup(g.kind, g.window, g.count, g.block_size) for g in groups)
    )
    first = [rng.randrange(3) for _ in range(rng.randrange(2, 70))]
    kept = keep_prompt(layout, prompt_blocks(layout, first, limit=len(first) - 1 - cut))
    cache = BlockCache(CacheSpec(hash_unit=UNIT, blocks=400, groups=groups))
    compute(cache, first[: len(first) - cut])
    for _ in range(8):
        shared = rng.randrange(len(first) + 1)
        second = first[:shared] + [rng.randrange(3, 6) for _ in range(rng.randrange(1, 20))]
        foreseen = kept.reusable(prompt_blocks(layout, second)) if kept else 0
        found = cache.look_up(cache.chain(second), len(second) - 1).tokens
        assert foreseen <= found
        if name in ("full", "coarse"):
            assert foreseen == found


def test_an_extension_of_a_hybrid_prompt_is_foreseen_and_a_sibling_is_not() -> None:
    """A recurrent state is kept at the replay boundary: there, and nowhere before it."""
    groups = (KvGroup(GroupKind.FULL_ATTENTION), KvGroup(GroupKind.RECURRENT))
    layout = CacheLayout("m@1", UNIT, groups=groups)
    first = list(range(30))
    kept = keep_prompt(layout, prompt_blocks(layout, first))
    assert kept is not None
    assert kept.reusable(prompt_blocks(layout, [*first, 1, 2, 3])) == 28
    assert kept.reusable(prompt_blocks(layout, [*first[:20], 1, 2, 3])) == 0


@pytest.mark.parametrize("groups", [LAYOUTS["full"], LAYOUTS["hybrid"]])
def test_eagle_heads_cost_a_block(groups: tuple[GroupSpec, ...]) -> None:
    """With EAGLE a dense prompt is a block shorter, and of a sparse one nothing is sure."""
    layout = CacheLayout(
        "m@1", UNIT, groups=tuple(KvGroup(group.kind) for group in groups), eagle=True
    )
    kept = keep_prompt(layout, prompt_blocks(layout, list(range(20))))
    if len(groups) > 1:
        assert kept is None
    else:
        assert kept is not None
        assert kept.reusable(prompt_blocks(layout, list(range(40)))) == 16
