"""The stand-in's cache against an oracle that knows nothing but the events it told."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmeta.types import GroupKind
from router.sim.engines.block_cache import BlockCache, Holding
from router.sim.engines.chains import TokenChain
from router.sim.engines.kv_events import AllCleared, BlockRemoved, BlocksStored
from router.sim.engines.specs import CacheSpec, GroupSpec

UNIT = 4
FULL = GroupSpec(GroupKind.FULL_ATTENTION)
STATE = GroupSpec(GroupKind.RECURRENT, 2)
LAYOUTS = {
    "full": (FULL,),
    "hybrid": (STATE, FULL),
    "window": (GroupSpec(GroupKind.SLIDING_WINDOW, 2, window=10), FULL),
    "window, coarse full": (
        GroupSpec(GroupKind.SLIDING_WINDOW, window=7),
        GroupSpec(GroupKind.FULL_ATTENTION, block_size=2 * UNIT),
    ),
    "all kinds": (FULL, GroupSpec(GroupKind.SLIDING_WINDOW, window=10), STATE),
}


@dataclass
class Oracle:
    """Counts blocks from events and tries every length, longest first."""

    spec: CacheSpec
    held: Counter[tuple[int, int]] = field(default_factory=Counter)

    def hear(self, cache: BlockCache) -> None:
        for event in cache.take_events():
            match event:
                case BlocksStored():
                    self.held.update((event.group, label) for label in event.labels)
                case BlockRemoved(group, label):
                    self.held[group, label] -= 1
                    assert self.held[group, label] >= 0, "a block was removed that nobody had"
                case AllCleared():
                    self.held.clear()

    def longest(self, chain: TokenChain, limit: int) -> int:
        step = self.spec.alignment
        for length in range(limit // step * step, 0, -step):
            if self._serves(chain, length):
                return length
        return 0

    def _serves(self, chain: TokenChain, length: int) -> bool:
        group_id = 0
        for group in self.spec.groups:
            size = group.block_size or self.spec.hash_unit
            last = length // size
            match group.kind:
                case GroupKind.FULL_ATTENTION:
                    first = 0
                case GroupKind.SLIDING_WINDOW:
                    first = max(0, last - -(-((group.window or 0) - 1) // size))
                case GroupKind.RECURRENT:
                    first = last - 1
            for _ in range(group.count):
                blocks = range(first, last)
                if any(self.held[group_id, chain.block_label(b, size)] <= 0 for b in blocks):
                    return False
                group_id += 1
        return True


@dataclass
class Sequence:
    """One request under way."""

    holding: Holding
    goal: int


def start(cache: BlockCache, oracle: Oracle, rng: random.Random) -> Sequence | None:
    stem = [rng.randrange(2)] * rng.choice([8, 16, 24])
    prompt = stem + [rng.randrange(3) for _ in range(rng.randrange(1, 20))]
    output = rng.randrange(1, 9)
    chain = cache.chain(prompt, salt=rng.choice([None, None, "a"]))
    hit = cache.look_up(chain, len(prompt) - 1)
    assert hit.tokens == oracle.longest(chain, len(prompt) - 1)
    if not cache.can_admit(hit, len(prompt) + output):
        return None
    holding = cache.admit(chain, hit, prompt_tokens=len(prompt), total_tokens=len(prompt) + output)
    return Sequence(holding, len(prompt) + output)


def advance(cache: BlockCache, sequence: Sequence, rng: random.Random) -> None:
    holding = sequence.holding
    if holding.computed < holding.prompt_tokens:
        end = cache.next_stop(holding, rng.choice([4, 8, 13, 100]))
    else:
        holding.chain.extend([rng.randrange(3)])
        end = len(holding.chain.tokens)
    cache.allocate(holding, end)
    cache.commit(holding, end)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("retention", [0, None, 4 * UNIT])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_look_ups_equal_the_events_told(layout: str, retention: int | None, seed: int) -> None:
    """Whatever runs, aborts and is evicted, a look-up finds exactly what the events imply."""
    rng = random.Random(seed)
    spec = CacheSpec(
        hash_unit=UNIT,
        blocks=rng.randrange(80, 160),
        groups=LAYOUTS[layout],
        retention_interval=retention,
    )
    cache, oracle = BlockCache(spec), Oracle(spec)
    running: list[Sequence] = []
    for _ in range(80):
        if rng.random() < 0.25 and (begun := start(cache, oracle, rng)) is not None:
            running.append(begun)
        elif running:
            place = rng.randrange(len(running))
            if running[place].holding.computed >= running[place].goal or rng.random() < 0.05:
                cache.release(running.pop(place).holding)
            else:
                advance(cache, running[place], rng)
        elif rng.random() < 0.1:
            assert cache.reset()
        oracle.hear(cache)
    for sequence in running:
        cache.release(sequence.holding)
    assert cache.pool.used == 0
    assert cache.reset()
    assert cache.pool.named == 0
