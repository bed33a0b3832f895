"""Scenes of queues that others fill."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from bench.live.claims import Outcome, claim_all_served, claim_routed
from bench.live.clients import ANSWER_SECONDS, Visit
from bench.live.plants import LOCALS, MODEL, QUEUE_LIMIT, REMOTES, draw_traffic
from bench.live.stages import Playing, Stage, playing
from bench.live.systems import SceneFailed

_RATE = 1.0
_THRESHOLD = 1940
_LONG = 2400
_FLOOD = 3 * QUEUE_LIMIT
"""Prompts at once on each PrfaaS engine."""
_FLOOD_TOKENS = 12_000
_SEEN_SECONDS = 30.0
"""Far more than the second or two after which a queue has been read."""


async def flood_queues(stage: Stage) -> Outcome:
    """Somebody else fills the queues of all PrfaaS engines, and goes away again.

    DESIGN 5: `remote_queue_full`, local; nobody is failed. On the way clients leave in every phase
    (case R09): afterwards nothing is in flight and routing is as even as before.
    """
    async with playing(stage, "queue-flood", threshold=_THRESHOLD) as scene:
        traffic = scene.clients.play(draw_traffic(_RATE, 31), until=stage.seconds(40, 14))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(traffic)
            await _flood_and_ebb(scene)
            await _leave_early(scene)
        await _claim_at_rest(scene)
        await _claim_even(scene)
    claim_all_served(scene.outcome)
    return scene.outcome


async def _flood_and_ebb(scene: Playing) -> None:
    await asyncio.sleep(2)
    async with _flooding(scene):
        scene.mark("flood")
        spilled = await _until_reason(scene, "remote_queue_full")
        claim_routed(
            scene.outcome, "with full queues, at either gateway", spilled, "local",
            "remote_queue_full",
        )  # fmt: skip
    scene.mark("ebb")
    back = await _until_reason(scene, "above_threshold")
    claim_routed(scene.outcome, "with empty queues, by itself", back, "prfaas", "above_threshold")


@asynccontextmanager
async def _flooding(scene: Playing) -> AsyncIterator[None]:
    """Keep the PrfaaS engines' queues full for the time of the block, past every gateway."""

    async def fill(url: str) -> None:
        body = {"model": MODEL, "max_tokens": 1}
        while True:
            prompt = scene.clients.fresh_prompt(_FLOOD_TOKENS)
            with contextlib.suppress(httpx.HTTPError):
                await scene.system.client.post(
                    f"{url}/v1/completions",
                    json={**body, "prompt": prompt},
                    timeout=ANSWER_SECONDS,
                )

    async with asyncio.TaskGroup() as tasks:
        filling = [
            tasks.create_task(fill(scene.system.engines[name].url))
            for name in REMOTES
            for _ in range(_FLOOD)
        ]
        try:
            yield
        finally:
            for task in filling:
                task.cancel()


async def _until_reason(scene: Playing, reason: str) -> list[Visit]:
    """Ask each gateway until it tells that reason; return the visits that it told it to.

    Raises SceneFailed if one never does.
    """
    loop = asyncio.get_running_loop()
    told = []
    for replica in range(len(scene.system.replicas)):
        deadline = loop.time() + _SEEN_SECONDS
        while True:
            visit = await scene.clients.ask(scene.clients.fresh_prompt(_LONG), replica=replica)
            if visit.reason == reason:
                told.append(visit)
                break
            if loop.time() > deadline:
                raise SceneFailed(f"never saw {reason} within {_SEEN_SECONDS:.0f} s")
    return told


async def _leave_early(scene: Playing) -> None:
    """Let clients leave in every phase: counting, prefill, transfer and stream."""
    clients = scene.clients
    for index in range(30):
        work = asyncio.create_task(
            clients.ask(clients.fresh_prompt(_LONG if index % 2 else 600), output=64)
        )
        await asyncio.sleep(0.05 * (index % 10))
        work.cancel()
        await asyncio.wait([work])
    scene.mark("30 clients left early")


async def _claim_at_rest(scene: Playing) -> None:
    """Claim that nothing is held for those who left, once all others are answered."""
    began, limit = scene.clients.now, scene.stage.seconds(5, 60)
    await scene.settle()
    took = scene.clients.now - began
    scene.outcome.claim(
        "R09: nothing in flight at any gateway, instance or link any more",
        f"within {limit:g} s",
        f"after {took:.1f} s",
        holds=took <= limit,
    )


async def _claim_even(scene: Playing) -> None:
    """Claim that equal prompts at once are shared out evenly among equal instances."""
    clients, each = scene.clients, 6
    asked = [clients.ask(clients.fresh_prompt(600), replica=0) for _ in range(each * len(LOCALS))]
    visits = await asyncio.gather(*asked)
    counts = [sum(visit.prefill == name for visit in visits) for name in LOCALS]
    scene.outcome.claim(
        "R09: after 30 clients left, prompts on the PD prefill instances",
        f"{each} each, give or take 2",
        counts,
        holds=all(abs(count - each) <= 2 for count in counts),
    )
