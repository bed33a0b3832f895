"""The scene of engines that serve well, and whose health does not say so."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Final

from bench.live.claims import Outcome, claim_all_served
from bench.live.clients import Visit
from bench.live.plants import Document, draw_traffic
from bench.live.stages import Playing, Stage, playing
from router.domain.units import Seconds, Tokens

_THRESHOLD: Final[Tokens] = 1940
_BUSY: Final = ("p1", "d1")
_MOODY: Final = ("p2", "d2")
_HEALTH_SECONDS: Final[Seconds] = 8.0
"""Well over a probe's time-out, which is `upstream.probe.timeout_seconds`: 5."""
_SWITCH_SECONDS: Final[Seconds] = 1.0
"""A probe's interval: one goes wrong, the next one well."""
_PROMPT: Final[Tokens] = 300
_GAP: Final[Seconds] = 0.25
"""Between two prompts of `_PROMPT`: an instance of three computes all the time, for 0.7 s each."""
_STREAM: Final[Tokens] = 200
"""Output of five seconds: somebody streams on every decode instance all the time."""


async def answer_probes_late(stage: Stage) -> Outcome:
    """Two instances answer `/health` after eight seconds, two more by turns, and all of them serve.

    Case R66 of users' faults: whoever answers requests is not ejected by probes that time out, and
    probes that fail by turns flip nobody, at either gateway.
    """
    async with playing(stage, "late-probes", threshold=_THRESHOLD) as scene:
        lasts = stage.seconds(45, 16)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(scene.clients.play(draw_traffic(1.0, 71), until=lasts))
            tasks.create_task(_keep_busy(scene, until=lasts))
            await asyncio.sleep(3)
            await _disturb(scene, until=lasts - 2)
    claim_all_served(scene.outcome)
    return scene.outcome


async def _keep_busy(scene: Playing, *, until: Seconds) -> None:
    """Ask for so much that every instance of the PD cluster always has something to say."""
    clients = scene.clients
    async with asyncio.TaskGroup() as tasks:
        while clients.now < until:
            tasks.create_task(clients.ask(clients.fresh_prompt(_PROMPT), output=_STREAM))
            await asyncio.sleep(_GAP)


async def _disturb(scene: Playing, *, until: Seconds) -> None:
    """Let health be late or fail by turns, and claim that nobody minds."""
    system, outcome = scene.system, scene.outcome
    before, began = await _count_transitions(scene), scene.clients.now
    for name in _BUSY:
        await system.break_engine(name, health_seconds=_HEALTH_SECONDS)
    scene.mark(f"health of {', '.join(_BUSY)} takes {_HEALTH_SECONDS:g} s")
    scene.mark(f"health of {', '.join(_MOODY)} fails by turns")
    out: Counter[str] = Counter()
    for status in itertools.cycle((503, 200)):
        for name in _MOODY:
            await system.break_engine(name, health_status=status)
        await asyncio.sleep(_SWITCH_SECONDS)
        for replica in system.living:
            out.update(_list_unready(await system.order("GET", "state", replica=replica)))
        if scene.clients.now >= until and status == 200:
            break
    ended = scene.clients.now
    after = await _count_transitions(scene)
    for name in (*_BUSY, *_MOODY):
        await system.break_engine(name, clear=True)
    scene.mark("health as before")
    outcome.claim(
        "R66: instances that a gateway held for down, at any look",
        "none",
        dict(out) or "none",
        holds=not out,
    )
    outcome.claim(
        "R66: transitions of instances meanwhile, at both gateways",
        "none",
        sum(after.values()) - sum(before.values()),
        holds=after == before,
    )
    asked = [visit for visit in scene.clients.visits if began <= visit.at < ended]
    for name in (*_BUSY, *_MOODY):
        used = [visit for visit in asked if name in (visit.prefill, visit.decode)]
        _claim_used(scene, name, used)


def _claim_used(scene: Playing, name: str, used: list[Visit]) -> None:
    whole = sum(visit.served for visit in used)
    scene.outcome.claim(
        f"R66: requests that {name} served meanwhile",
        "some, all whole",
        f"{whole} of {len(used)}",
        holds=bool(used) and whole == len(used),
    )


async def _count_transitions(scene: Playing) -> Counter[tuple[int, str]]:
    """Return how often each gateway has changed its mind about each instance."""
    system = scene.system
    states = {each: await system.order("GET", "state", replica=each) for each in system.living}
    return Counter(
        {
            (replica, each["name"]): each["transitions"]
            for replica, state in states.items()
            for each in state["instances"]
        }
    )


def _list_unready(state: Document) -> list[str]:
    return [each["name"] for each in state["instances"] if not each["ready"]]
