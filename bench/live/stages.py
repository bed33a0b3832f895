"""Where scenes are played: a running system, and what a scene needs to begin."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bench.live.claims import Outcome
from bench.live.clients import Clients
from bench.live.plants import CAPACITY_GBPS, Document
from bench.live.systems import LiveSystem
from bench.live.watching import Agent, Watch, beside
from router.domain.units import Seconds, Tokens


@dataclass(frozen=True, slots=True)
class Stage:
    """A system that scenes share one after another. `quick` scenes are cut to what tests need.

    `played` are the outcomes of the scenes before, by their names; `seen` are the uncached tokens
    of every prompt that was answered.
    """

    system: LiveSystem
    say: Callable[[str], None]
    quick: bool = False
    numbers: Iterator[int] = field(default_factory=itertools.count)
    played: dict[str, Outcome] = field(default_factory=dict)
    seen: list[Tokens] = field(default_factory=list)

    def seconds(self, whole: Seconds, quick: Seconds) -> Seconds:
        """Return how long something goes on."""
        return quick if self.quick else whole


@dataclass(frozen=True, slots=True)
class Playing:
    """One scene that plays."""

    stage: Stage
    clients: Clients
    agent: Agent
    outcome: Outcome

    @property
    def system(self) -> LiveSystem:
        """What it plays on."""
        return self.stage.system

    def mark(self, what: str) -> None:
        """Remember that something happens now."""
        self.outcome.marks.append((self.clients.now, what))
        self.stage.say(f"  {self.clients.now:6.1f} s  {what}")

    async def settle(self) -> None:
        """Wait until nothing is in flight anywhere."""

        def idle(state: Document) -> bool:
            return not any(
                each["inflight"] or each["peers_inflight"] for each in state["instances"]
            ) and not any(link["inflight_bytes"] for link in state["links"])

        await self.system.until(idle, "the system at rest", within=120.0)


@asynccontextmanager
async def playing(
    stage: Stage, scene: str, *, threshold: int | None = None, knows: bool = True
) -> AsyncIterator[Playing]:
    """Play a scene for the time of the block, watched, with an agent that reports the link.

    `threshold` is ordered for its time; without one the configuration's `auto` is in force. The
    system is at rest, and as configured, when it ends. Raises SceneFailed.
    """
    system = stage.system
    order = {"mode": "config"} if threshold is None else {"mode": "manual", "tokens": threshold}
    await system.order("PUT", "threshold", order)
    await system.until(
        lambda shown: threshold in (None, shown["effective_tokens"]), "the order", path="threshold"
    )
    clients = Clients(system, stage.numbers)
    watch, agent = Watch(clients), Agent(system, knows=knows)
    scene_played = Playing(stage, clients, agent, Outcome(scene))
    try:
        async with beside(watch, agent):
            yield scene_played
            await scene_played.settle()
    finally:
        await system.set_link(gbps=CAPACITY_GBPS, up=True)
        await system.order("PUT", "threshold", {"mode": "config"})
        stage.seen.extend(visit.uncached for visit in clients.visits if visit.uncached is not None)
        scene_played.outcome.visits = sorted(clients.visits, key=lambda visit: visit.at)
        scene_played.outcome.looks = watch.looks
