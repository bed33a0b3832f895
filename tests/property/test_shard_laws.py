"""Shards that crash, stall and lose the store: never two at one source, and never none for long."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from kvmeta.ingest.shards import (
    Acquire,
    Action,
    Granted,
    Lost,
    Refused,
    Release,
    Renew,
    Renewed,
    ShardState,
    Start,
    Stop,
    Tick,
    choose_shard,
    step,
)
from kvmeta.leases import MemoryLeases
from kvmeta.types import SourceId
from tests.fakes.clocks import FakeClock

TTL = 10.0
SOURCES = frozenset(SourceId(f"p{at}", rank) for at in range(5) for rank in range(2))
T = TypeVar("T")


def done(call: Coroutine[Any, Any, T]) -> T:
    """The result of a call that awaits nothing."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("it waited")


@dataclass
class Process:
    """One shard over the shared store; `cut` cannot reach it."""

    name: str
    leases: MemoryLeases
    clock: FakeClock
    cut: bool = False
    state: ShardState = field(init=False)
    running: set[SourceId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.state = ShardState(self.name, TTL)

    def tick(self, sources: frozenset[SourceId]) -> None:
        members = None if self.cut else done(self.leases.announce(self.name, TTL))
        self.act(Tick(self.clock.monotonic(), sources, members))

    def act(self, observation: Tick | Granted | Refused | Renewed | Lost) -> None:
        self.state, actions = step(self.state, observation)
        for action in actions:
            self.do(action)

    def do(self, action: Action) -> None:
        now = self.clock.monotonic()
        match action:
            case Start(source):
                assert source not in self.running
                self.running.add(source)
            case Stop(source):
                assert source in self.running
                self.running.discard(source)
            case Release(source, token):
                if not self.cut:
                    done(self.leases.release(str(source), self.name, token))
            case Acquire(source) if not self.cut:
                token = done(self.leases.acquire(str(source), self.name, TTL))
                self.act(Refused(source) if token is None else Granted(source, token, now))
            case Renew(source, token) if not self.cut:
                held = done(self.leases.renew(str(source), self.name, token, TTL))
                self.act(Renewed(source, now) if held else Lost(source))

    def writes(self, source: SourceId) -> bool:
        return self.state.holds(source, self.clock.monotonic())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_source_has_at_most_one_writer_and_soon_one(seed: int) -> None:
    """Whatever happens, two shards never may write for one source; in quiet, each has its own."""
    rng, clock = random.Random(seed), FakeClock()
    leases = MemoryLeases(clock=clock.monotonic)
    shards = [Process(f"s{at}", leases, clock) for at in range(3)]
    named = 3
    for _ in range(120):
        clock.advance(rng.choice([0.1, 0.5, 1.0, 3.0, 9.0]))
        match rng.randrange(12):
            case 0 if len(shards) > 1:
                shards.pop(rng.randrange(len(shards)))  # dies without a word
            case 1:
                shards.append(Process(f"s{named}", leases, clock))
                named += 1
            case 2 | 3:
                chosen = rng.choice(shards)
                chosen.cut = not chosen.cut
            case _:
                some = frozenset(source for source in SOURCES if rng.random() < 0.95)
                rng.choice(shards).tick(some)
        for source in SOURCES:
            assert sum(shard.writes(source) for shard in shards) <= 1
    for shard in shards:
        shard.cut = False
    for _ in range(20):
        clock.advance(TTL / 4)
        for shard in shards:
            shard.tick(SOURCES)
    for source in SOURCES:
        (owner,) = [shard for shard in shards if source in shard.running]
        assert owner.writes(source)
        assert owner.name == choose_shard(source.instance, {shard.name for shard in shards})


def test_a_shard_that_comes_takes_its_own_share_and_no_other_moves() -> None:
    """Sources move to the newcomer only: nothing is dealt out anew."""
    instances = [f"p{at}" for at in range(200)]
    before = {name: choose_shard(name, {"a", "b", "c"}) for name in instances}
    after = {name: choose_shard(name, {"a", "b", "c", "d"}) for name in instances}
    moved = {name for name in instances if before[name] != after[name]}
    assert {after[name] for name in moved} == {"d"}
    assert 20 < len(moved) < 90
    assert choose_shard("p0", set()) is None


def test_all_ranks_of_an_instance_go_together() -> None:
    """Sharding is by instance: one shard holds both ranks of each."""
    clock = FakeClock()
    leases = MemoryLeases(clock=clock.monotonic)
    shards = [Process(name, leases, clock) for name in ("a", "b")]
    for _ in range(3):
        for shard in shards:
            shard.tick(SOURCES)
    for shard in shards:
        held = {source.instance for source in shard.running}
        assert shard.running == {source for source in SOURCES if source.instance in held}
    assert shards[0].running | shards[1].running == SOURCES
