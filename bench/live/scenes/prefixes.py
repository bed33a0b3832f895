"""Scenes of a prefix that only the PrfaaS cluster has."""

from __future__ import annotations

from typing import Final

from bench.live.claims import Outcome, claim_all_served
from bench.live.plants import BLOCK_TOKENS, CAPACITY_GBPS, LINK, MODEL, PD, PRFAAS, Document
from bench.live.stages import Playing, Stage, playing

_THRESHOLD: Final = 1000
_PREFIX: Final = 3200
_MORE: Final = 320
_TOTAL: Final = _PREFIX + _MORE
_HELD: Final = _PREFIX // BLOCK_TOKENS * BLOCK_TOKENS


async def use_remote_prefix(stage: Stage) -> Outcome:
    """A prompt that begins as one that the PrfaaS cluster computed, over a link that is free.

    DESIGN 5: without a connector that ships prefixes the abundant regime is exactly the scarce
    one: the prompt's uncached tokens are those that the PD cluster lacks, all of them.
    """
    return await _play(stage, "prefix-not-shipped", ships=False)


async def ship_remote_prefix(stage: Stage) -> Outcome:
    """The same with a connector that ships prefixes.

    DESIGN 5: over an abundant link the PrfaaS cluster's prefix counts: what is left is under t, so
    the prompt stays local and the prefix is part of the plan. Over a scarce one it does not count.
    """
    return await _play(stage, "prefix-shipped", ships=True)


async def _play(stage: Stage, name: str, *, ships: bool) -> Outcome:
    async with playing(stage, name, threshold=_THRESHOLD) as scene:
        for regime, egress in (("abundant", 0.1), ("scarce", 0.95)):
            scene.agent.pretends = egress * CAPACITY_GBPS
            await scene.system.until(
                lambda link, regime=regime: link["regime"] == regime,  # type: ignore[misc]
                f"the {regime} regime",
                path=f"links/{LINK}",
            )
            scene.mark(regime)
            for replica in range(len(scene.system.replicas)):
                await _ask_again(scene, replica, regime, counts=ships and regime == "abundant")
    claim_all_served(scene.outcome)
    return scene.outcome


async def _ask_again(scene: Playing, replica: int, regime: str, *, counts: bool) -> None:
    """Have a prompt computed in the PrfaaS cluster, then ask for a longer one."""
    clients = scene.clients
    prompt = clients.fresh_prompt(_PREFIX)
    await clients.ask(prompt, replica=replica)
    longer = [*prompt, *[9] * _MORE]

    def known(explained: Document) -> bool:
        cached: Document = explained["cached_tokens"]
        return (cached[PRFAAS], cached[PD]) == (_HELD, 0)

    await scene.system.until(
        known,
        "the prefix in the index",
        path="decisions:explain",
        body={"model": MODEL, "prompt": longer},
        replicas=[replica],
    )
    visit = await clients.ask(longer, replica=replica)
    decision = await _decision_of(scene, replica)
    transfer = decision["prefix_transfer"]
    wanted = (
        ("local", _TOTAL - _HELD, {"from": PRFAAS, "to": PD, "tokens": _HELD}, _TOTAL - _HELD)
        if counts
        else ("prfaas", _TOTAL, None, _TOTAL - _HELD)
    )
    seen = (visit.route, visit.uncached, transfer, decision["compute_uncached_tokens"])
    scene.outcome.claim(
        f"{regime}, gateway {replica + 1}: route, uncached, shipped prefix, computed",
        _say(wanted),
        _say(seen),
        holds=seen == wanted,
    )


async def _decision_of(scene: Playing, replica: int) -> Document:
    """Return the latest decision of a gateway."""
    shown = await scene.system.order("GET", "decisions?limit=1", replica=replica)
    decision: Document = shown["decisions"][0]
    return decision


def _say(parts: tuple[str, int | None, Document | None, int]) -> str:
    route, uncached, transfer, computed = parts
    shipped = f"{transfer['tokens']} to {transfer['to']}" if transfer else "none"
    return f"{route}, {uncached}, {shipped}, {computed}"
