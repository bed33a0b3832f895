"""Scenes of load: a steady stream, and the same over a link that starves for a while."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Final

from bench.live.claims import (
    Outcome,
    claim_all_served,
    mean_ttft,
    offload_share,
    p90_ttft,
    within,
)
from bench.live.plants import (
    BUDGET_SECONDS,
    CAPACITY_GBPS,
    LENGTHS,
    LINK,
    STARVED_GBPS,
    draw_traffic,
    link_rate,
    make_deployment,
)
from bench.live.stages import Playing, Stage, playing
from bench.live.twins import compare_twin, observe_lengths, simulate_twin, solve_for
from bench.live.watching import Look
from router.domain.units import Seconds, Tokens
from router.sim.traffic import Demand
from router.throughput.planner import solve_whole_threshold, tabulate

_WARM_RATE: Final = 3.0
_STARVED_RATE: Final = 1.5
"""What the plant sustains over 5 Gbit/s with t solved anew (1.8 requests/s), but not with t as it
was (1.3)."""
_LOAD: Final = 0.8
_NEAR: Final = 0.05
TOLD_SECONDS: Final = 3.0
INFERRED_SECONDS: Final = 10.0


def draw_until(rate: float, seed: int, ends: Seconds) -> list[Demand]:
    """Return the demands of the first `ends` seconds."""
    return list(takewhile(lambda demand: demand.at < ends, draw_traffic(rate, seed)))


async def hold_load(stage: Stage) -> Outcome:
    """Poisson arrivals at 80 % of what the plant sustains, and the same simulated."""
    await warm(stage)
    rate = _LOAD * _sustained()
    demands = draw_until(rate, 11, stage.seconds(120, 20))
    async with playing(stage, "steady-load") as scene:
        await scene.clients.play(demands, until=demands[-1].at + 1)
    outcome = scene.outcome
    claim_all_served(outcome)
    outcome.figures.append(("offered", f"{rate:.2f} requests/s, {len(demands)} requests"))
    records = simulate_twin(demands, observe_lengths(stage.seen))
    compare_twin(outcome, outcome.visits, records, binding=not stage.quick)
    return outcome


@dataclass(frozen=True, slots=True)
class _Plan:
    """When the link starves, when it is whole again, and when clients stop."""

    starves: Seconds
    whole: Seconds
    ends: Seconds


def _plan(stage: Stage) -> _Plan:
    return _Plan(5, 20, 24) if stage.quick else _Plan(20, 80, 120)


async def starve_with_fixed(stage: Stage) -> Outcome:
    """The link starves while t stays what it was: what the other two are compared with."""
    plan = _plan(stage)
    fixed = solve_for(CAPACITY_GBPS, LENGTHS)
    async with playing(stage, "starved-fixed", threshold=fixed) as scene:
        await _starve(scene, plan)
    claim_all_served(scene.outcome)
    _claim_bytes(scene.outcome, plan)
    _tell_offered(scene.outcome, plan)
    _tell_latencies(scene.outcome, plan)
    return scene.outcome


async def starve_and_tell(stage: Stage) -> Outcome:
    """The link starves, and its telemetry says so; then the same simulated."""
    plan = _plan(stage)
    await warm(stage)
    async with playing(stage, "starved-told") as scene:
        limit = stage.seconds(TOLD_SECONDS, 60)
        demands = await _starve(scene, plan, rise_within=limit)
    outcome = scene.outcome
    claim_all_served(outcome)
    _claim_bytes(outcome, plan)
    _tell_offered(outcome, plan)
    _tell_latencies(outcome, plan)
    _compare(outcome, stage.played.get("starved-fixed"), plan)
    changes = [(plan.starves, STARVED_GBPS), (plan.whole, CAPACITY_GBPS)]
    records = simulate_twin(demands, observe_lengths(stage.seen), changes)
    compare_twin(outcome, outcome.visits, records, binding=not stage.quick)
    return outcome


async def starve_untold(stage: Stage) -> Outcome:
    """The link starves, and only hand-offs that wait for it show it.

    Under the steady load, far more than is sustained then: where little crosses, nobody waits for
    a link that carries little. Nobody asks any more when it is whole again, for that is found out
    in minutes.
    """
    plan = replace(_plan(stage), ends=_plan(stage).whole)
    await warm(stage)
    async with playing(stage, "starved-untold", knows=False) as scene:
        limit = stage.seconds(INFERRED_SECONDS, 60)
        await _starve(scene, plan, rate=_LOAD * _sustained(), rise_within=limit)
    claim_all_served(scene.outcome)
    _claim_bytes(scene.outcome, plan, settled=INFERRED_SECONDS)
    _tell_offered(scene.outcome, plan)
    _tell_latencies(scene.outcome, plan)
    return scene.outcome


async def _starve(
    scene: Playing,
    plan: _Plan,
    *,
    rate: float = _STARVED_RATE,
    rise_within: Seconds | None = None,
) -> list[Demand]:
    """Play the traffic and the link; return the demands.

    Where t is to follow, claim that it does `rise_within` so many seconds.
    """
    demands = draw_until(rate, 12, plan.ends)
    clients = scene.clients
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(clients.play(demands, until=plan.ends))
        await asyncio.sleep(plan.starves - clients.now)
        await scene.system.set_link(gbps=STARVED_GBPS)
        scene.mark(f"{STARVED_GBPS:g} Gbit/s")
        if rise_within is not None:
            await _claim_rise(scene, rise_within, give_up=plan.whole)
        await asyncio.sleep(plan.whole - clients.now)
        await scene.system.set_link(gbps=CAPACITY_GBPS)
        scene.mark(f"{CAPACITY_GBPS:g} Gbit/s")
    return demands


async def _claim_rise(scene: Playing, within_seconds: Seconds, *, give_up: Seconds) -> None:
    """Claim that t of every gateway comes near the solver's answer for the starved link in time.

    The answer is each gateway's own, to a question about that bandwidth: the lengths that it saw
    are in it, what the link was measured to carry is not.
    """
    began = scene.clients.now
    for replica in range(len(scene.system.replicas)):
        answer, threshold = await _ask_solver(scene, replica)
        while abs(threshold / answer - 1) > _NEAR and scene.clients.now < give_up:
            await asyncio.sleep(0.05)
            answer, threshold = await _ask_solver(scene, replica)
        took = scene.clients.now - began
        near = abs(threshold / answer - 1) <= _NEAR
        scene.outcome.claim(
            f"t at gateway {replica + 1} near the solver's answer for {STARVED_GBPS:g} Gbit/s",
            f"within {_NEAR:.0%} after {within_seconds:g} s",
            f"{threshold} for {answer} after {took:.1f} s",
            holds=near and took <= within_seconds,
        )
    exact = solve_for(STARVED_GBPS, LENGTHS)
    scene.outcome.figures.append(("t for the starved link and the exact lengths", f"{exact}"))


async def _ask_solver(scene: Playing, replica: int) -> tuple[Tokens, Tokens]:
    """Return a gateway's answer for the starved link, and the t that it has in force."""
    body = {"bandwidth_gbps": {LINK: STARVED_GBPS}}
    solved = await scene.system.order("POST", "plan:solve", body, replica=replica)
    shown = await scene.system.order("GET", "threshold", replica=replica)
    return solved["plans"][0]["supposed"]["solved_tokens"], shown["effective_tokens"]


async def warm(stage: Stage) -> None:
    """Send the plant's prompts until every gateway has seen enough of them to solve t."""

    async def solved() -> bool:
        shown = [
            await stage.system.order("GET", "threshold", replica=each)
            for each in stage.system.living
        ]
        return all(each["solved_tokens"] is not None for each in shown)

    if await solved():
        return
    stage.say("  the gateways learn the lengths of prompts")
    async with playing(stage, "warm-up") as scene:
        demands = draw_traffic(_WARM_RATE, 10)
        playing_on = asyncio.create_task(scene.clients.play(demands, until=600))
        while not playing_on.done() and not await solved():  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.5)
        playing_on.cancel()
        await asyncio.wait([playing_on])


def _claim_bytes(outcome: Outcome, plan: _Plan, *, settled: Seconds = TOLD_SECONDS) -> None:
    """Claim that the starved link is never given more than it was booked for, and can carry.

    What was booked before the change is known has `settled` seconds.
    """
    starved = [look for look in outcome.looks if plan.starves <= look.at < plan.whole]
    over = [now for before, now in pairwise(starved) if now.crossing > _most_booked(before, now)]
    outcome.claim(
        "bytes left to cross never exceed what is booked",
        "at every look while starved",
        f"{len(starved)} looks, {len(over)} over",
        holds=bool(starved) and not over,
    )
    known = [look for look in starved if look.at >= plan.starves + settled]
    over = [
        now
        for before, now in pairwise(known)
        if now.booked > max(_allowed(before), _allowed(now), before.booked)
    ]
    peak = max((look.booked for look in known), default=0)
    seen = f"{len(known)} looks, {len(over)} over; {peak / 1e9:.2f} GB at most"
    outcome.claim(
        f"booked by both gateways from {settled:g} s on",
        f"within {BUDGET_SECONDS:g} s of what they take the link to carry, or falling to it",
        seen,
        holds=bool(known) and not over,
    )


def _allowed(look: Look) -> float:
    """Return how many bytes may be booked by what the gateways then took the link to carry."""
    usable = max((view.usable_gbps for view in look.views if view is not None), default=0.0)
    return BUDGET_SECONDS * link_rate(usable)


def _most_booked(*looks: Look) -> int:
    return max(look.booked for look in looks)


def _tell_latencies(outcome: Outcome, plan: _Plan) -> None:
    for name, start, end in (
        ("before", 0.0, plan.starves),
        ("while starved", plan.starves, plan.whole),
        ("after", plan.whole, plan.ends),
    ):
        visits = within(outcome.visits, start, end)
        if not visits:
            continue
        outcome.figures.append(
            (
                f"TTFT {name}, mean and P90",
                f"{mean_ttft(visits):.2f} s, {p90_ttft(visits):.2f} s;"
                f" {offload_share(visits):.0%} of {len(visits)} offloaded",
            )
        )


def _compare(outcome: Outcome, fixed: Outcome | None, plan: _Plan) -> None:
    """Tell how the starved minute went beside the same one with t fixed."""
    if fixed is None:
        return
    mine = within(outcome.visits, plan.starves, plan.whole)
    other = within(fixed.visits, plan.starves, plan.whole)
    outcome.figures.append(
        (
            "TTFT while starved beside t fixed, mean and P90",
            f"{mean_ttft(mine) / mean_ttft(other) - 1:+.0%},"
            f" {p90_ttft(mine) / p90_ttft(other) - 1:+.0%}",
        )
    )


def _tell_offered(outcome: Outcome, plan: _Plan) -> None:
    """Tell how much was asked for while the link starved: what t is worth depends on it."""
    came = len(within(outcome.visits, plan.starves, plan.whole)) / (plan.whole - plan.starves)
    share = came / _sustained(STARVED_GBPS)
    outcome.figures.append(
        (
            "offered while starved",
            f"{came:.2f} requests/s, {share:.0%} of what is sustained with t solved anew",
        )
    )


def _sustained(gbps: float = CAPACITY_GBPS) -> float:
    """Return Lambda_max of the plant over a link of so many Gbit/s, in requests a second."""
    deployment = make_deployment(gbps)
    return solve_whole_threshold(deployment, tabulate(deployment, LENGTHS)).rate
