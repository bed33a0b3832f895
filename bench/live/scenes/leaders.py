"""The scene of a leader that is killed."""

from __future__ import annotations

import asyncio

from bench.live.claims import Outcome, claim_served_but
from bench.live.plants import LEASE_SECONDS, Document, draw_traffic
from bench.live.scenes.loads import warm
from bench.live.stages import Playing, Stage, playing
from bench.live.systems import SceneFailed
from router.domain.units import Seconds, Tokens

_RATE = 1.0


async def kill_leader(stage: Stage) -> Outcome:
    """The gateway that solves thresholds is killed while clients ask, and comes back.

    DESIGN 12: another leads within the lease, and t stays; what breaks are its own streams.
    """
    await warm(stage)
    async with playing(stage, "leader-killed") as scene:
        async with asyncio.TaskGroup() as tasks:
            ends = stage.seconds(30, 14)
            tasks.create_task(scene.clients.play(draw_traffic(_RATE, 41), until=ends))
            await asyncio.sleep(3)
            killed, at = await _kill(scene, stage.seconds(LEASE_SECONDS, 30))
        await _return(scene, killed)
    claim_served_but(
        scene.outcome,
        "requests answered whole, but those that the killed gateway had",
        lambda visit: visit.replica == killed and visit.at <= at,
    )
    return scene.outcome


async def _kill(scene: Playing, within: Seconds) -> tuple[int, Seconds]:
    """Kill the leader and claim what follows; return which it was, and when."""
    system, outcome = scene.system, scene.outcome
    before = [await system.order("GET", "state", replica=each) for each in system.living]
    (leader,) = [number for number, state in enumerate(before) if state["leader"]["leads"]]
    term, tokens = before[leader]["leader"]["term"], _threshold_of(before[leader])
    agreed = {_threshold_of(state) for state in before}
    outcome.claim("t before, the same everywhere", "one value", agreed, holds=len(agreed) == 1)
    at = scene.clients.now
    await system.replicas[leader].kill()
    scene.mark(f"gateway {leader + 1}, the leader, killed")
    seen: set[Tokens] = set()

    def leads(state: Document) -> bool:
        seen.add(_threshold_of(state))
        return state["leader"]["leads"] is True

    await system.until(leads, "another leader", within=60.0)
    took = scene.clients.now - at
    scene.mark(f"gateway {2 - leader} leads")
    outcome.claim(
        "another leads", f"within {within:g} s", f"after {took:.1f} s", holds=took <= within
    )
    outcome.claim(
        "t meanwhile and when it leads", f"{tokens}, unchanged", seen, holds=seen == {tokens}
    )
    after = await system.order("GET", "state")
    outcome.claim(
        "its term",
        f"higher than {term}",
        after["leader"]["term"],
        holds=after["leader"]["term"] > term,
    )
    return leader, at


async def _return(scene: Playing, killed: int) -> None:
    """Start the killed gateway again; it must follow, with the leader's t."""
    system = scene.system
    await system.replicas[killed].start()
    scene.mark(f"gateway {killed + 1} back")
    await system.until(
        lambda state: all(each["ready"] for each in state["instances"]),
        "its instances ready",
        replicas=[killed],
        within=60.0,
    )
    leading = await _agree(scene, 1 - killed, killed)
    state = await system.order("GET", "state", replica=killed)
    scene.outcome.claim(
        "the one that came back",
        f"follows, with t {leading}",
        f"{'leads' if state['leader']['leads'] else 'follows'}, with t {_threshold_of(state)}",
        holds=not state["leader"]["leads"],
    )


async def _agree(scene: Playing, leader: int, follower: int) -> Tokens:
    """Wait until the follower has the leader's t, which may move meanwhile; return it."""
    deadline = scene.clients.now + 30.0
    while True:
        tokens, followed = [
            _threshold_of(await scene.system.order("GET", "state", replica=each))
            for each in (leader, follower)
        ]
        if tokens == followed:
            return tokens
        if scene.clients.now > deadline:
            raise SceneFailed(f"t is {tokens} at the leader and {followed} at who came back")
        await asyncio.sleep(0.1)


def _threshold_of(state: Document) -> Tokens:
    (pair,) = state["thresholds"]
    tokens: Tokens = pair["effective_tokens"]
    return tokens
