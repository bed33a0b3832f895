"""The scene of a leader that is killed while it converts an instance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import httpx

from bench.live.claims import Outcome, claim_served_but
from bench.live.plants import DECODES, LEASE_SECONDS, LOCALS, Document
from bench.live.scenes.loads import warm
from bench.live.scenes.mixes import LONG, draw_between
from bench.live.stages import Playing, Stage, playing
from bench.live.systems import LiveSystem, SceneFailed
from bench.live.watching import beside
from router.domain.units import Seconds, Tokens

_THRESHOLD: Final[Tokens] = 1940
_RATE: Final = 0.45
"""A prompt takes two and a half to three seconds: more than one instance can do, not two."""
_CONVERTED_SECONDS: Final = 240.0
"""Far more than windows, a drain and a verification take."""
_DWELL_SECONDS: Final = 600
"""The default of `long_loop.dwell_seconds`, which the scene shortens for its time."""
_LEFT: Final = {"prefill": 1, "decode": 2}
"""Who is left to work, by role: with one less to decode, the least there may be of either."""
_LOOK_SECONDS: Final = 0.1


async def kill_converting_leader(stage: Stage) -> Outcome:
    """One prefill and two decode instances work; while one is converted, its leader is killed.

    DESIGN 8 and 12: the next leader takes the conversion over where it stands and ends it, there is
    always somebody to prefill and to decode, no request fails but those that the killed gateway
    had, and the audit tells all of it without a gap.
    """
    await warm(stage)
    async with playing(stage, "conversion-taken-over", threshold=_THRESHOLD) as scene:
        roles = _RoleWatch(scene.system)
        async with _few_instances(scene), beside(roles):
            shifted = asyncio.create_task(
                scene.clients.play(draw_between(LONG, _RATE, 81), until=2 * _CONVERTED_SECONDS)
            )
            try:
                killed, at = await _kill_amid(scene)
                await _claim_taken_over(scene, at)
                await _return(scene, killed)
            finally:
                scene.clients.stop()
                await shifted
            _claim_staffed(scene.outcome, roles)
    claim_served_but(
        scene.outcome,
        "requests answered whole, but those that the killed gateway had",
        lambda visit: visit.replica == killed and visit.at <= at,
    )
    return scene.outcome


@dataclass(frozen=True, slots=True)
class _Staff:
    """How many of the PD cluster may be given prompts to prefill, and to decode."""

    prefill: int
    decode: int


class _RoleWatch:
    """Counts who works, at every gateway that answers, again and again."""

    def __init__(self, system: LiveSystem) -> None:
        self.seen: list[_Staff] = []
        self._system = system

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            for replica in self._system.living:
                try:
                    shown = await self._system.order("GET", "instances", replica=replica)
                except (httpx.HTTPError, SceneFailed):
                    continue  # it is just being killed, or has not heard of its engines yet
                if all(each["alive"] for each in shown["instances"]):
                    self.seen.append(_count_staff(shown["instances"]))
            await asyncio.sleep(_LOOK_SECONDS)


def _count_staff(instances: list[Document]) -> _Staff:
    working = [
        each["role"]
        for each in instances
        if each["name"] in LOCALS + DECODES and each["state"] == "active"
    ]
    return _Staff(working.count("prefill"), working.count("decode"))


@asynccontextmanager
async def _few_instances(scene: Playing) -> AsyncIterator[None]:
    """Disable all but `_LEFT` of the PD cluster for the time of the block, with no dwell."""
    system = scene.system
    shown = await system.order("GET", "instances")
    by_role: dict[str, list[str]] = {"prefill": [], "decode": []}
    for each in shown["instances"]:
        if each["name"] in LOCALS + DECODES:
            by_role[each["role"]].append(each["name"])
    idle = [name for role, count in _LEFT.items() for name in by_role[role][count:]]
    await system.reconfigure(_set_dwell(0))
    for name in idle:
        await system.order("PATCH", f"instances/{name}", {"state": "disabled"})
    scene.mark(f"{len(idle)} of {len(LOCALS + DECODES)} disabled")
    try:
        yield
    finally:
        for name in idle:
            await system.order("PATCH", f"instances/{name}", {"state": "active"})
        await system.reconfigure(_set_dwell(_DWELL_SECONDS))


def _set_dwell(seconds: int) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        document["scheduler"]["long_loop"]["dwell_seconds"] = seconds

    return change


async def _kill_amid(scene: Playing) -> tuple[int, Seconds]:
    """Wait until an instance is drained for its conversion, and kill who leads.

    Return which gateway that was, and when.
    """
    system = scene.system

    def under_way(state: Document) -> bool:
        return state["conversion"] is not None and not state["conversion"]["over"]

    await system.until(under_way, "a conversion", within=_CONVERTED_SECONDS)
    states = {each: await system.order("GET", "state", replica=each) for each in system.living}
    (leader,) = [number for number, state in states.items() if state["leader"]["leads"]]
    begun = states[leader]["conversion"]
    at = scene.clients.now
    await system.replicas[leader].kill()
    scene.mark(f"gateway {leader + 1}, the leader, killed; {begun['instance']} {begun['phase']}")
    scene.outcome.claim(
        "the leader is killed while the conversion is under way",
        "draining, acting or verifying",
        f"{begun['instance']} to {begun['target']}, {begun['phase']}",
        holds=not begun["over"] and begun["target"] == "prefill",
    )
    return leader, at


async def _claim_taken_over(scene: Playing, killed_at: Seconds) -> None:
    """Claim that the other gateway goes on with it, ends it, and that all is in the audit."""
    system, outcome = scene.system, scene.outcome
    before = (await system.order("GET", "state"))["conversion"]
    limit = scene.stage.seconds(LEASE_SECONDS, 30)
    await system.until(lambda state: state["leader"]["leads"] is True, "another leader", within=60)
    took = scene.clients.now - killed_at
    scene.mark("another leads")
    outcome.claim(
        "another leads", f"within {limit:g} s", f"after {took:.1f} s", holds=took <= limit
    )
    await system.until(
        lambda state: state["conversion"]["over"] is True, "its end", within=_CONVERTED_SECONDS
    )
    state = await system.order("GET", "state")
    done, term = state["conversion"], state["leader"]["term"]
    scene.mark(f"{done['instance']} {done['phase']}")
    outcome.claim(
        "the conversion ends, in the next leader's term",
        "settled or rolled back, the same one",
        f"{done['phase']}, {'in it' if done['term'] == term else 'in another'}",
        holds=done["phase"] in {"settled", "rolled_back"}
        and done["began_at"] == before["began_at"]
        and done["term"] == term > before["term"],
    )
    role = done["target"] if done["phase"] == "settled" else done["source"]
    shown = await system.order("GET", f"instances/{done['instance']}")
    outcome.claim(
        "the instance works in the role that this gives it",
        f"{role}, active",
        f"{shown['role']}, {shown['state']}",
        holds=(shown["role"], shown["state"]) == (role, "active"),
    )
    await _claim_audit(scene, done)


async def _claim_audit(scene: Playing, done: Document) -> None:
    """Claim that the audit has every phase, each begun where the one before ended."""
    audit = (await scene.system.order("GET", "audit?limit=200"))["audit"]
    records = [each for each in reversed(audit) if each["action"].startswith("conversion.")]
    first = max(
        index
        for index, each in enumerate(records)
        if each["action"] == "conversion.draining" and _is_over(each["before"]["conversion"])
    )
    told = records[first:]
    gaps = sum(
        earlier["after"]["conversion"] != later["before"]["conversion"]
        for earlier, later in pairwise(told)
    )
    phases = [each["action"].removeprefix("conversion.") for each in told]
    scene.outcome.claim(
        "the audit of it",
        f"by the controller, from draining to {done['phase']}, no gap",
        f"{', '.join(phases)}; {gaps} gaps",
        holds=not gaps
        and {each["by"] for each in told} == {"controller"}
        and (phases[0], phases[-1]) == ("draining", done["phase"]),
    )


def _is_over(conversion: Document | None) -> bool:
    """Whether nothing was under way, by the audit's form of a conversion."""
    return conversion is None or conversion["phase"] in {"settled", "rolled_back", "stuck"}


def _claim_staffed(outcome: Outcome, roles: _RoleWatch) -> None:
    least = _Staff(
        min((each.prefill for each in roles.seen), default=0),
        min((each.decode for each in roles.seen), default=0),
    )
    outcome.claim(
        "who may prefill and who may decode, at either gateway",
        "never less than one of each",
        f"{len(roles.seen)} looks, {least.prefill} and {least.decode} at least",
        holds=least.prefill >= 1 and least.decode >= 1,
    )


async def _return(scene: Playing, killed: int) -> None:
    """Start the killed gateway again; what was converted is so there too."""
    system = scene.system
    await system.replicas[killed].start()
    scene.mark(f"gateway {killed + 1} back")
    leading = await system.order("GET", "state", replica=1 - killed)

    def agrees(state: Document) -> bool:
        return state["conversion"] == leading["conversion"] and all(
            each["ready"] for each in state["instances"] if each["state"] == "active"
        )

    await system.until(agrees, "its instances ready", replicas=[killed], within=60.0)
    visit = await scene.clients.ask(scene.clients.fresh_prompt(LONG[0]), replica=killed)
    scene.outcome.claim(
        "a request at the gateway that came back",
        "answered",
        "answered" if visit.served else f"{visit.status} {visit.error}",
        holds=visit.served,
    )
