"""Scenes of a link that fails, and of one that nobody tells of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bench.live.claims import Outcome, claim_all_served, claim_routed
from bench.live.plants import LINK, TELEMETRY_SECONDS, Document, draw_traffic
from bench.live.stages import Playing, Stage, playing

_RATE = 1.0
_THRESHOLD = 1940
_LONG = 2400
"""A prompt well over the threshold."""


async def lose_link(stage: Stage) -> Outcome:
    """The link goes down and comes back, while clients ask.

    DESIGN 12: the local path. What was crossing waits for the link; nobody is failed.
    """
    async with playing(stage, "link-down", threshold=_THRESHOLD) as scene:
        ends = stage.seconds(40, 16)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(scene.clients.play(draw_traffic(_RATE, 21), until=ends))
            await _lose(scene, stage.seconds(15, 4))
    claim_all_served(scene.outcome)
    return scene.outcome


async def _lose(scene: Playing, outage: float) -> None:
    system, clients, outcome = scene.system, scene.clients, scene.outcome
    await asyncio.sleep(3)
    before = await clients.ask(clients.fresh_prompt(_LONG))
    claim_routed(outcome, "before", [before], "prfaas", "above_threshold")
    await system.set_link(up=False)
    await scene.agent.report(0.0, 0.0)
    scene.mark("link down")
    at_once = await clients.ask(clients.fresh_prompt(_LONG), replica=0)
    claim_routed(outcome, "the next request after the report", [at_once], "local", "link_down")
    await system.until(lambda link: not link["up"], "the link down", path=f"links/{LINK}")
    everywhere = [await clients.ask(clients.fresh_prompt(_LONG), replica=each) for each in (0, 1)]
    claim_routed(outcome, "soon, at either gateway", everywhere, "local", "link_down")
    await asyncio.sleep(outage)
    await system.set_link(up=True)
    scene.mark("link up")
    await system.until(lambda link: link["up"], "the link up", path=f"links/{LINK}")
    after = [await clients.ask(clients.fresh_prompt(_LONG), replica=each) for each in (0, 1)]
    claim_routed(outcome, "after its return, by itself", after, "prfaas", "above_threshold")


async def silence_agent(stage: Stage) -> Outcome:
    """Nobody reports the link any more: first where that is allowed, then where it is not.

    DESIGN 5 and rule 10 of missing knowledge: a stale reading is unknown, never 0 and never the
    last one; only a link whose telemetry is required is closed by it (`link_stale`).
    """
    async with playing(stage, "stale-telemetry", threshold=_THRESHOLD) as scene:
        await _hush(scene)
        await scene.system.reconfigure(_require_telemetry(required=False))
        await _until_required(scene, required=False)
    claim_all_served(scene.outcome)
    return scene.outcome


async def _hush(scene: Playing) -> None:
    system, clients, outcome = scene.system, scene.clients, scene.outcome
    path = f"links/{LINK}"
    await system.until(lambda link: link["utilization"] is not None, "telemetry", path=path)
    scene.agent.silent = True
    scene.mark("agent silent")
    within = 30 + TELEMETRY_SECONDS
    await system.until(
        lambda link: link["utilization"] is None, "stale telemetry", path=path, within=within
    )
    link = await system.order("GET", path)
    seen = f"utilization {link['utilization']}, {link['regime']}, usable {link['usable_gbps']:g}"
    outcome.claim(
        "a stale reading is unknown, neither 0 nor the last one",
        "utilization null, scarce, the capacity",
        seen,
        holds=(link["regime"], link["usable_gbps"]) == ("scarce", link["capacity_gbps"]),
    )
    allowed = [await clients.ask(clients.fresh_prompt(_LONG), replica=each) for each in (0, 1)]
    claim_routed(outcome, "telemetry not required", allowed, "prfaas", "above_threshold")
    await system.reconfigure(_require_telemetry(required=True))
    await _until_required(scene, required=True)
    scene.mark("telemetry required")
    stale = [await clients.ask(clients.fresh_prompt(_LONG), replica=each) for each in (0, 1)]
    claim_routed(outcome, "telemetry required", stale, "local", "link_stale")
    scene.agent.silent = False
    scene.mark("agent back")
    await system.until(lambda link: link["utilization"] is not None, "telemetry again", path=path)
    back = [await clients.ask(clients.fresh_prompt(_LONG), replica=each) for each in (0, 1)]
    claim_routed(outcome, "reported again", back, "prfaas", "above_threshold")


async def _until_required(scene: Playing, *, required: bool) -> None:
    await scene.system.until(
        lambda state: state["links"][0]["telemetry"]["required"] is required, "the reload"
    )


def _require_telemetry(*, required: bool) -> Callable[[Document], None]:
    """Return a change of the configuration: whether only a reported link may be used."""

    def change(document: Document) -> None:
        document["links"][0]["telemetry"]["required"] = required

    return change
