"""Prompts on their way: seen at once, never longer than they are true or their time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvmeta.backends.memory import MemoryIndex
from kvmeta.events import AllBlocksCleared
from kvmeta.hashing import prompt_blocks
from kvmeta.speculation import Speculation, SpeculativeIndex
from kvmeta.types import CacheBelief, CacheLayout, SourceId, SourceState
from tests.fakes.clocks import FakeClock
from tests.fakes.kv_events import Engine, batch, removed

A, B = SourceId("a"), SourceId("b")
LAYOUT = CacheLayout("m@1", 4)
X = list(range(100, 120))  # five blocks
SYNCED, APPROXIMATE = SourceState.SYNCED, SourceState.APPROXIMATE


class Scene:
    """An index with A and B attached, and what is being computed there."""

    def __init__(self, ttl_seconds: float = 2.0, **bounds: int) -> None:
        self.clock = FakeClock()
        self.speculation = Speculation(
            clock=self.clock.monotonic, ttl_seconds=ttl_seconds, **bounds
        )
        inner = MemoryIndex(clock=self.clock.monotonic)
        self.index = SpeculativeIndex(inner, self.speculation)

    async def attach(self) -> Scene:
        for source in (A, B):
            await self.index.register(source, LAYOUT)
            await self.index.begin_epoch(source, SYNCED)
        return self

    def computing(self, tokens: Sequence[int], source: SourceId = A, salt: str | None = None):  # noqa: ANN201 - a context
        return self.speculation.computing(source, LAYOUT, prompt_blocks(LAYOUT, tokens, salt=salt))

    async def belief(
        self, tokens: Sequence[int], source: SourceId = A, salt: str | None = None
    ) -> CacheBelief:
        prompt = prompt_blocks(LAYOUT, tokens, salt=salt)
        return (await self.index.look_up(prompt, [A, B]))[source]


@pytest.fixture
async def scene() -> Scene:
    return await Scene().attach()


async def test_a_burst_of_one_prefix_sees_itself(scene: Scene) -> None:
    """While a prompt is computed its prefix counts where it is computed, and there alone."""
    with scene.computing(X):
        assert await scene.belief([*X[:12], 1, 2]) == CacheBelief(12, APPROXIMATE)
        assert await scene.belief(X) == CacheBelief(16, APPROXIMATE)
        assert await scene.belief(X, B) == CacheBelief(0, SYNCED)
    assert await scene.belief(X) == CacheBelief(0, SYNCED)


async def test_a_leg_that_fails_leaves_nothing(scene: Scene) -> None:
    """However a leg ends, nothing is expected of it any more."""
    with pytest.raises(RuntimeError), scene.computing(X):
        raise RuntimeError
    assert await scene.belief(X) == CacheBelief(0, SYNCED)
    assert len(scene.speculation) == 0


async def test_it_counts_no_longer_than_its_time(scene: Scene) -> None:
    """A prompt that waits longer than the time to live is not taken for cached."""
    with scene.computing(X):
        scene.clock.advance(1.9)
        assert (await scene.belief(X)).tokens == 16
        scene.clock.advance(0.1)
        assert await scene.belief(X) == CacheBelief(0, SYNCED)


async def test_zero_seconds_switch_it_off() -> None:
    """With a time to live of 0 nothing is ever expected."""
    scene = await Scene(ttl_seconds=0).attach()
    with scene.computing(X):
        assert await scene.belief(X) == CacheBelief(0, SYNCED)


async def test_events_that_confirm_it_take_over(scene: Scene) -> None:
    """Once the events told all of it they alone count, an eviction included."""
    engine = Engine()
    with scene.computing(X):
        assert await scene.index.apply(A, 0, batch(engine.stored(X)))
        assert await scene.belief([*X, 1]) == CacheBelief(20, SYNCED)
        assert await scene.index.apply(A, 1, batch(removed(engine.labels(X)[2:])))
        assert await scene.belief([*X, 1]) == CacheBelief(8, SYNCED)


async def test_a_longer_truth_is_left_alone(scene: Scene) -> None:
    """What the index knows is never lowered."""
    assert await scene.index.apply(A, 0, batch(Engine().stored(X)))
    with scene.computing(X[:8]):
        assert await scene.belief([*X, 1]) == CacheBelief(20, SYNCED)


async def test_an_unknown_source_stays_unknown(scene: Scene) -> None:
    """Speculation raises knowledge; it does not stand in for it."""
    await scene.index.set_state(A, SourceState.UNKNOWN)
    with scene.computing(X):
        assert await scene.belief(X) == CacheBelief.unknown()


@pytest.mark.parametrize("how", ["epoch", "cleared", "removed"])
async def test_a_source_that_forgets_is_expected_to_hold_nothing(scene: Scene, how: str) -> None:
    """A restart, a cleared cache or a removal takes what was on its way along."""
    with scene.computing(X):
        match how:
            case "epoch":
                await scene.index.begin_epoch(A, SYNCED)
            case "cleared":
                await scene.index.apply(A, 0, batch(AllBlocksCleared()))
            case _:
                await scene.index.remove_instance("a")
                await scene.attach()
        assert await scene.belief(X) == CacheBelief(0, SYNCED)


async def test_r51_a_tenant_never_sees_what_another_has_computed(scene: Scene) -> None:
    """The same tokens under another salt, or none, are another prompt."""
    with scene.computing(X, salt="a"):
        assert (await scene.belief(X, salt="a")).tokens == 16
        assert await scene.belief(X, salt="b") == CacheBelief(0, SYNCED)
        assert await scene.belief(X) == CacheBelief(0, SYNCED)


async def test_what_is_expected_of_a_source_is_bounded() -> None:
    """Beyond the bound the oldest prompts are no longer expected."""
    scene = await Scene(max_prompts=2).attach()
    others = [list(range(at, at + 8)) for at in (200, 300)]
    with scene.computing(X), scene.computing(others[0]), scene.computing(others[1]):
        assert len(scene.speculation) == 2
        assert (await scene.belief(X)).tokens == 0
        assert (await scene.belief(others[1])).tokens == 4
    assert len(scene.speculation) == 0
