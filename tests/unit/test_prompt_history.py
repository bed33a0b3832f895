"""Guesses about engines without events: from routed prompts, for a while, within bounds."""

from __future__ import annotations

from kvmeta.backends.memory import MemoryIndex
from kvmeta.hashing import prompt_blocks
from kvmeta.history import ApproximateIndex, PromptHistory
from kvmeta.types import CacheBelief, CacheLayout, GroupKind, KvGroup, SourceId, SourceState
from tests.fakes.clocks import FakeClock
from tests.fakes.kv_events import Engine, batch

SILENT, TOLD = SourceId("silent"), SourceId("told")
LAYOUT = CacheLayout("m@1", 4)
HYBRID = CacheLayout(
    "m@1", 4, groups=(KvGroup(GroupKind.FULL_ATTENTION), KvGroup(GroupKind.RECURRENT))
)
X = list(range(100, 120))  # five blocks


class Scene:
    """A history over an index in which only `TOLD` publishes events."""

    def __init__(
        self, layout: CacheLayout = LAYOUT, *, ttl_seconds: float = 60.0, max_blocks: int = 100
    ) -> None:
        self.layout = layout
        self.clock = FakeClock()
        self.history = PromptHistory(
            clock=self.clock.monotonic, ttl_seconds=ttl_seconds, max_blocks=max_blocks
        )
        self.index = ApproximateIndex(MemoryIndex(clock=self.clock.monotonic), self.history)

    def note(self, tokens: list[int], salt: str | None = None) -> None:
        self.history.note(SILENT, self.layout, prompt_blocks(self.layout, tokens, salt=salt))

    async def belief(self, tokens: list[int], salt: str | None = None) -> CacheBelief:
        prompt = prompt_blocks(self.layout, tokens, salt=salt)
        return (await self.index.look_up(prompt, [SILENT, TOLD]))[SILENT]

    async def tokens(self, tokens: list[int], salt: str | None = None) -> int | None:
        return (await self.belief(tokens, salt)).tokens


async def test_a_routed_prompt_is_guessed_and_called_so() -> None:
    """What was computed there counts, as `approximate`; before anything was, all is unknown."""
    scene = Scene()
    assert await scene.belief(X) == CacheBelief.unknown()
    scene.note(X)
    assert await scene.belief([*X, 1]) == CacheBelief(20, SourceState.APPROXIMATE)
    assert await scene.belief([*X[:9], 1, 1, 1, 1]) == CacheBelief(8, SourceState.APPROXIMATE)
    assert await scene.belief([1, *X]) == CacheBelief(0, SourceState.APPROXIMATE)


async def test_a_guess_has_its_time_and_use_renews_it() -> None:
    """A prompt counts for the time to live after its last use."""
    scene = Scene()
    scene.note(X)
    scene.clock.advance(40)
    scene.note(X[:8])
    scene.clock.advance(30)
    assert await scene.tokens(X) == 8
    scene.clock.advance(30)
    assert await scene.tokens(X) == 0


async def test_the_least_recent_blocks_leave_first_and_the_deepest_of_them() -> None:
    """Beyond the bound a prompt becomes shorter from its end; newer prompts stay whole."""
    scene = Scene(max_blocks=8)
    scene.note(X)
    newer = list(range(300, 320))
    scene.note(newer)
    assert await scene.tokens([*X, 1]) == 12
    assert await scene.tokens([*newer, 1]) == 20
    report = next(iter(await scene.index.describe()))
    assert (report.source, report.state, report.blocks) == (SILENT, SourceState.APPROXIMATE, 8)


async def test_a_hybrid_is_guessed_at_its_boundaries_only() -> None:
    """With recurrent groups the longest boundary of an earlier prompt counts, and no other."""
    scene = Scene(HYBRID)
    scene.note(X)
    scene.note([*X, *range(10)])
    assert await scene.tokens([*X, *range(10), 1, 2]) == 28
    assert await scene.tokens([*X, 77, 78]) == 16
    assert await scene.tokens([*X[:12], 77, 78]) == 0


async def test_r51_a_tenants_prompts_are_its_own() -> None:
    """The same tokens under another salt are not guessed to be there."""
    scene = Scene()
    scene.note(X, salt="a")
    assert await scene.tokens([*X, 1], salt="a") == 20
    assert await scene.tokens([*X, 1], salt="b") == 0
    assert await scene.tokens([*X, 1]) == 0


async def test_sources_with_events_are_left_to_the_index() -> None:
    """Events are never mixed with guesses."""
    scene = Scene()
    await scene.index.register(TOLD, LAYOUT)
    await scene.index.begin_epoch(TOLD, SourceState.SYNCED)
    assert await scene.index.apply(TOLD, 0, batch(Engine().stored(X[:8])))
    scene.note(X)
    beliefs = await scene.index.look_up(prompt_blocks(LAYOUT, [*X, 1]), [TOLD, SILENT])
    assert beliefs == {
        TOLD: CacheBelief(8, SourceState.SYNCED),
        SILENT: CacheBelief(20, SourceState.APPROXIMATE),
    }


async def test_a_removed_instance_owns_nothing() -> None:
    """With the instance its past goes."""
    scene = Scene()
    scene.note(X)
    await scene.index.remove_instance(SILENT.instance)
    assert await scene.belief(X) == CacheBelief.unknown()
    assert list(await scene.index.describe()) == []


async def test_zero_seconds_leave_such_engines_unknown() -> None:
    """With a time to live of 0 nothing is guessed."""
    scene = Scene(ttl_seconds=0)
    scene.note(X)
    assert await scene.belief(X) == CacheBelief.unknown()
