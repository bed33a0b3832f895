"""R51 as a law: no history of events shows one tenant what another one's prompts left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvmeta.backends.memory import MemoryIndex
from kvmeta.backends.redis import RedisIndex, open_redis_index
from kvmeta.events import AllBlocksCleared, Event
from kvmeta.hashing import prompt_blocks
from kvmeta.index import MetadataIndex
from kvmeta.types import CacheLayout, SourceId, SourceState
from tests.fakes.clocks import FakeClock
from tests.fakes.kv_events import Engine, batch, removed
from tests.fakes.redis_servers import redis_server

LAYOUT = CacheLayout("model@1", 2)
SOURCES = (SourceId("a"), SourceId("b"))
OURS, THEIRS = "tenant-b", "tenant-a"

tokens = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(
    lambda blocks: [token for block in blocks for token in (block, block)]
)


@dataclass(frozen=True)
class Move:
    """One batch of one engine: something of one tenant's is stored, offloaded or removed."""

    source: SourceId
    what: str
    salt: str | None
    tokens: list[int]
    start: int = field(default=0)


moves = st.builds(
    Move,
    source=st.sampled_from(SOURCES),
    what=st.sampled_from(
        ["store", "store", "store", "continue", "offload", "silent offload", "remove", "clear"]
    ),
    salt=st.sampled_from([THEIRS, THEIRS, THEIRS, OURS, None]),
    tokens=tokens,
    start=st.integers(1, 3),
)


def events_of(engine: Engine, move: Move) -> list[Event]:
    labels = engine.labels(move.tokens, salt=move.salt)
    match move.what:
        case "store":
            return [engine.stored(move.tokens, salt=move.salt)]
        case "continue":
            start = min(move.start, len(labels) - 1)
            return [engine.stored(move.tokens, start=start, salt=move.salt)]
        case "offload":
            return [engine.placeholder(labels, medium="CPU")]
        case "silent offload":  # tokens, but not a word about the salt
            return [engine.stored(move.tokens, salt=move.salt, told=False, medium="CPU")]
        case "remove":
            return [removed(labels)]
        case _:
            return [AllBlocksCleared()]


async def play(index: MetadataIndex, history: list[Move], asked: list[int]) -> None:
    """What tenant B sees is never more than what B's own prompts alone could have left."""
    engines = {source: Engine(2, seed=source.instance) for source in SOURCES}
    for source in SOURCES:
        await index.register(source, LAYOUT)
        await index.begin_epoch(source, SourceState.SYNCED)
    own: dict[SourceId, set[tuple[int, ...]]] = {source: set() for source in SOURCES}
    for sequence, move in enumerate(history):
        await index.apply(move.source, sequence, batch(*events_of(engines[move.source], move)))
        if move.salt == OURS and move.what in ("store", "continue", "offload", "silent offload"):
            for end in range(2, len(move.tokens) + 1, 2):
                own[move.source].add(tuple(move.tokens[:end]))
    for salt, mine in ((OURS, own), ("nobody", {source: set() for source in SOURCES})):
        prompt = prompt_blocks(LAYOUT, [*asked, 9], salt=salt)
        for source, belief in (await index.look_up(prompt, SOURCES)).items():
            hit = belief.tokens or 0
            assert all(tuple(asked[:end]) in mine[source] for end in range(2, hit + 1, 2))


Make = Callable[[], MetadataIndex]


@pytest.fixture(scope="module", params=["memory", "redis"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    if request.param == "memory":
        yield lambda: MemoryIndex(clock=FakeClock().monotonic)
        return
    numbers = count()
    with redis_server() as server:
        yield lambda: open_redis_index(
            server.url,
            namespace=f"n{next(numbers)}",
            clock=FakeClock().monotonic,
            budget_seconds=10.0,
        )


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=st.lists(moves, max_size=12), asked=tokens)
def test_r51_no_tenant_sees_a_hit_on_anothers_blocks(
    make: Make, history: list[Move], asked: list[int]
) -> None:
    """Stored, continued, offloaded with or without words: A's blocks stay A's."""

    async def run() -> None:
        index = make()
        await play(index, history, asked)
        if isinstance(index, RedisIndex):
            await index.close()

    asyncio.run(run())
