"""The scene of engines and gateways that go away, each in a way of its own."""

from __future__ import annotations

import asyncio

from bench.live.claims import Outcome, claim_all_served
from bench.live.clients import Visit
from bench.live.plants import (
    DECODES,
    DRAIN_SECONDS,
    LOCALS,
    MODEL,
    Document,
    draw_traffic,
)
from bench.live.stages import Playing, Stage, playing
from bench.live.systems import Replica
from router.domain.units import Tokens

_RATE = 1.0
_THRESHOLD: Tokens = 1940
_SHORT: Tokens = 600
_STREAM: Tokens = 400
"""Output of ten seconds."""
_HOLE = LOCALS[1]
_CLOSED = DECODES[0]


async def lose_engines(stage: Stage) -> Outcome:
    """A black hole, an instance that takes nothing new, a gateway that leaves, and nobody left.

    Cases R36, R63 and R66 of users' faults: no client is failed as long as somebody can answer,
    streams that run end whole, and where nobody can the answer is 503, never 404.
    """
    async with playing(stage, "engines-lost", threshold=_THRESHOLD) as scene:
        traffic = draw_traffic(_RATE, 51)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(scene.clients.play(traffic, until=stage.seconds(60, 20)))
            await _fall_into_a_hole(scene)
            await _close_an_instance(scene)
            await _roll_a_gateway(scene)
        await scene.settle()
        await _lose_everybody(scene)
    claim_all_served(scene.outcome)
    return scene.outcome


async def _fall_into_a_hole(scene: Playing) -> None:
    """R36: connections are taken and never answered, and nobody delists the instance."""
    system = scene.system
    await asyncio.sleep(2)
    await system.break_engine(_HOLE, dead="black_hole")
    scene.mark(f"{_HOLE} a black hole")
    await system.until(lambda state: not _is_ready(state, _HOLE), f"{_HOLE} out", within=60.0)
    scene.mark(f"{_HOLE} out")
    visits = await _ask_short(scene, 9)
    used = sorted({visit.prefill for visit in visits})
    scene.outcome.claim(
        f"R36: prefills after {_HOLE} is out", f"none on {_HOLE}", used, holds=_HOLE not in used
    )
    await system.break_engine(_HOLE, dead=None)
    await system.until(lambda state: _is_ready(state, _HOLE), f"{_HOLE} back", within=60.0)
    scene.mark(f"{_HOLE} back")


async def _close_an_instance(scene: Playing) -> None:
    """R63: an instance takes nothing new while it is listed, and its streams run on."""
    streams = await _begin_streams(scene, len(DECODES), replica=0)
    await scene.system.break_engine(_CLOSED, status=503, times=1_000_000)
    scene.mark(f"{_CLOSED} takes nothing new")
    visits = await _ask_short(scene, 10)
    used = sorted({visit.decode for visit in visits})
    scene.outcome.claim(
        f"R63: new requests while {_CLOSED} takes none",
        "all answered, by others",
        f"{sum(visit.served for visit in visits)} of {len(visits)}, by {', '.join(used)}",
        holds=all(visit.served for visit in visits) and _CLOSED not in used,
    )
    await _claim_whole(scene, "R63: streams that ran when it closed", streams)
    await scene.system.break_engine(_CLOSED, clear=True)


async def _roll_a_gateway(scene: Playing) -> None:
    """R63: a gateway gets SIGTERM with streams on it, clients ask the other one, and it returns."""
    leaving = scene.system.replicas[1]
    streams = await _begin_streams(scene, 4, replica=1)
    scene.mark("gateway 2 leaves")
    code = await leaving.leave(lambda: _claim_still_served(scene, leaving))
    await _claim_whole(scene, "R63: streams on a gateway that leaves", streams)
    scene.outcome.claim("R63: its exit code", "0", code, holds=code == 0)
    await leaving.start()
    await scene.system.until(
        lambda state: all(each["ready"] for each in state["instances"]),
        "the gateway back",
        within=60.0,
    )
    scene.mark("gateway 2 back")


async def _claim_still_served(scene: Playing, leaving: Replica) -> None:
    """Claim that a gateway that leaves says so, and serves who has not heard of it."""
    client, loop = scene.system.client, asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_SECONDS
    ready = 200
    while ready == 200 and loop.time() < deadline:
        ready = (await client.get(f"{leaving.url}/ready")).status_code
    alive = (await client.get(f"{leaving.url}/health")).status_code
    visit = await scene.clients.ask(scene.clients.fresh_prompt(_SHORT), replica=1)
    scene.outcome.claim(
        "R63: a gateway that leaves: ready, alive, a new request",
        "503, 200, answered",
        f"{ready}, {alive}, {'answered' if visit.served else visit.error or visit.status}",
        holds=(ready, alive, visit.served) == (503, 200, True),
    )


async def _lose_everybody(scene: Playing) -> None:
    """R66: with nobody left to decode the answer is 503 with Retry-After, in JSON, never 404."""
    system = scene.system
    for name in DECODES:
        await system.break_engine(name, dead="refuse")
    scene.mark("nobody decodes")

    def nobody(state: Document) -> bool:
        return not any(_is_ready(state, name) for name in DECODES)

    await system.until(nobody, "every decode instance out", within=60.0)
    answers = [
        await system.client.post(
            f"{replica.url}/v1/completions",
            json={"model": MODEL, "prompt": scene.clients.fresh_prompt(_SHORT), "max_tokens": 4},
        )
        for replica in system.replicas
    ]
    seen = [(each.status_code, "retry-after" in each.headers) for each in answers]
    told = all("error" in each.json() for each in answers)
    ready = [
        (await system.client.get(f"{replica.url}/ready")).status_code for replica in system.replicas
    ]
    scene.outcome.claim(
        "R36: readiness with nobody to decode", "503", ready, holds=ready == [503] * len(ready)
    )
    scene.outcome.claim(
        "R66: status and Retry-After with nobody to decode",
        "503 with it",
        seen,
        holds=told and seen == [(503, True)] * len(seen),
    )
    for name in DECODES:
        await system.break_engine(name, dead=None)
    await system.until(
        lambda state: all(each["ready"] for each in state["instances"]),
        "everybody back",
        within=60.0,
    )
    scene.mark("everybody back")
    visits = await _ask_short(scene, 4)
    scene.outcome.claim(
        "R66: requests when they are back",
        "answered",
        f"{sum(visit.served for visit in visits)} of {len(visits)}",
        holds=all(visit.served for visit in visits),
    )


async def _ask_short(scene: Playing, count: int) -> list[Visit]:
    clients = scene.clients
    return await asyncio.gather(*(clients.ask(clients.fresh_prompt(_SHORT)) for _ in range(count)))


async def _begin_streams(scene: Playing, count: int, *, replica: int) -> list[asyncio.Task[Visit]]:
    """Begin long streams at a gateway; return when all of them are decoded."""
    clients = scene.clients
    streams = [
        asyncio.create_task(clients.ask(clients.fresh_prompt(100), replica=replica, output=_STREAM))
        for _ in range(count)
    ]

    def decoding(state: Document) -> bool:
        return sum(each["decodes_inflight"] for each in state["instances"]) >= count

    await scene.system.until(decoding, "the streams begun", replicas=[replica])
    return streams


async def _claim_whole(scene: Playing, what: str, streams: list[asyncio.Task[Visit]]) -> None:
    visits = await asyncio.gather(*streams)
    whole = sum(visit.served for visit in visits)
    scene.outcome.claim(
        what, "all end whole", f"{whole} of {len(visits)}", holds=whole == len(visits)
    )


def _is_ready(state: Document, name: str) -> bool:
    ready: set[str] = {each["name"] for each in state["instances"] if each["ready"]}
    return name in ready
