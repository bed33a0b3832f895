"""The scene of prompts that grow long, until an instance changes its role."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Final

from bench.live.claims import Outcome, claim_all_served
from bench.live.plants import DECODES, LOCALS, OUTPUT_TOKENS, PD, Document
from bench.live.stages import Playing, Stage, playing
from router.domain.units import Tokens
from router.sim.arrivals import PoissonArrivals, draw_times
from router.sim.traffic import Demand

_THRESHOLD: Final[Tokens] = 1940
_SHORT: Final = (100, 300)
"""Half a second to a second of prefill: three instances are a quarter busy."""
LONG: Final = (1500, 1900)
"""Two and a half to three seconds: more than three instances can do, and still below t."""
_RATE: Final = 1.3
_CALM_RATE: Final = 3.0
_CONVERTED_SECONDS: Final = 240.0
"""Far more than windows, a drain and a verification take."""


async def shift_to_long(stage: Stage) -> Outcome:
    """The mix shifts from short to long prompts under a fixed t, and decode instances are idle.

    DESIGN 8: the long loop confirms by measured queues and equation 8 that prefill is short, and
    with the actuator `label` converts a decode instance: drained first, no request failed.
    """
    async with playing(stage, "mix-shifts", threshold=_THRESHOLD) as scene:
        calm = scene.clients.play(draw_between(_SHORT, _CALM_RATE, 61), until=40)
        await calm
        scene.mark("prompts become long")
        shifted = asyncio.create_task(
            scene.clients.play(draw_between(LONG, _RATE, 62), until=40 + _CONVERTED_SECONDS)
        )
        try:
            await _claim_conversion(scene)
        finally:
            scene.clients.stop()
            await shifted
    claim_all_served(scene.outcome)
    return scene.outcome


async def _claim_conversion(scene: Playing) -> None:
    system, outcome = scene.system, scene.outcome
    await system.until(
        lambda state: state["conversion"] is not None, "a conversion", within=_CONVERTED_SECONDS
    )
    begun = (await system.order("GET", "state"))["conversion"]
    name = begun["instance"]
    scene.mark(f"{name} drains")
    outcome.claim(
        "the long loop converts",
        "a decode instance to prefill",
        f"{name} to {begun['target']}",
        holds=name in DECODES and begun["target"] == "prefill",
    )
    await system.until(
        lambda state: state["conversion"]["over"] is True, "its end", within=_CONVERTED_SECONDS
    )
    done = (await system.order("GET", "state"))["conversion"]
    scene.mark(f"{name} {done['phase']}")
    outcome.claim("how it ends", "settled", done["phase"], holds=done["phase"] == "settled")
    await system.until(
        lambda state: (
            {each["name"]: each["role"] for each in state["instances"]}[name] == "prefill"
        ),
        "the new role at every gateway",
    )
    before, after = await _ask_model(scene)
    outcome.claim(
        "Lambda by the model for today's lengths, with t in force",
        "rises with the new roles",
        f"{before:.2f} to {after:.2f} requests/s",
        holds=after > before,
    )
    await asyncio.sleep(10)
    used = [visit for visit in scene.clients.visits if visit.prefill == name]
    outcome.claim(
        "prompts that the converted instance computed", "some", len(used), holds=bool(used)
    )


def draw_between(lengths: tuple[Tokens, Tokens], rate: float, seed: int) -> Iterator[Demand]:
    """Yield Poisson arrivals of prompts between two lengths, without end."""
    random = Random(seed)  # noqa: S311 - chance that is played, no secret
    for at in draw_times(PoissonArrivals(rate), random):
        total = random.randint(*lengths)
        yield Demand(at, total, total, OUTPUT_TOKENS)


async def _ask_model(scene: Playing) -> tuple[float, float]:
    """Return Lambda_max with the roles as they were, and as they are, for the same lengths."""
    roles = {"prefill_instances": {PD: len(LOCALS)}, "decode_instances": {PD: len(DECODES)}}
    now = {"prefill_instances": {PD: len(LOCALS) + 1}}
    await scene.system.until(
        lambda answer: _same_roles(answer["plans"][0]),
        "the model with the new roles",
        path="plan:solve",
        body=now,
    )
    plan = (await scene.system.order("POST", "plan:solve", roles))["plans"][0]
    return _rate(plan["supposed"]), _rate(plan["now"])


def _same_roles(plan: Document) -> bool:
    """Whether what is supposed is how it is."""
    counts = [plan[each]["inputs"]["prefill_instances"]["value"] for each in ("now", "supposed")]
    return len(set(counts)) == 1


def _rate(plan: Document) -> float:
    """Return Lambda_max with t in force."""
    rate: float = plan["in_force"]["figures"]["lambda_max"]["value"]
    return rate
