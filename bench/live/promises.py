"""What the scenes together have to show, and the verdict on each of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bench.live.claims import Claim, Outcome
from bench.live.programs import SCENES, UNPLAYED, Scene


@dataclass(frozen=True, slots=True)
class Promise:
    """One thing to show: by every claim of the scenes `by`, or by those that speak `of` it."""

    what: str
    by: tuple[str, ...]
    of: tuple[str, ...] = ()


class Verdict(StrEnum):
    """What came of a promise."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_PLAYED = "not played"
    """Some scene of it was left out, or one says nothing of it."""


_EVERY: Final = tuple(dict.fromkeys(scene.letter for scene in SCENES))

PROMISES: Final = (
    Promise("t follows a link that starves, told and inferred", ("a",), ("t at gateway",)),
    Promise("no more bytes in flight than are booked", ("a",), ("bytes left to cross", "booked")),
    Promise(
        "a starving link and a steady load are as they are simulated",
        ("a", "p"),
        ("offloaded share", "mean TTFT"),
    ),
    Promise("a link that is down is left at once, and found again", ("b",)),
    Promise("full PrfaaS queues are left to others", ("c",)),
    Promise("a mix that grows long has an instance converted, and no request failed", ("d",)),
    Promise("stale telemetry is unknown, neither 0 nor the last value", ("e",)),
    Promise("a killed leader is followed within its lease, with the same t", ("f",)),
    Promise("a conversion outlives the leader that began it", ("j",)),
    Promise("a remote prefix counts where it can be shipped, and only there", ("g",)),
    Promise("R09: clients that leave leak nothing", ("c",), ("R09",)),
    Promise("R36: an instance that has become a black hole gets no traffic", ("h",), ("R36",)),
    Promise("R63: who leaves serves to the end, and cuts no stream", ("h",), ("R63",)),
    Promise("R66: a busy instance is not taken for dead; nobody left is 503", ("h", "i"), ("R66",)),
    Promise(
        "no client is failed", tuple(dict.fromkeys(scene.letter for scene in SCENES)), ("requests",)
    ),
)


def judge(played: Mapping[Scene, Outcome]) -> Sequence[tuple[Promise, Verdict]]:
    """Return the verdict on every promise."""
    return [(promise, _judge(promise, played)) for promise in PROMISES]


def _judge(promise: Promise, played: Mapping[Scene, Outcome]) -> Verdict:
    scenes = [scene for scene in SCENES if scene.letter in promise.by]
    claims = {scene: list(_claims(promise, played[scene])) for scene in scenes if scene in played}
    if not all(claim.holds for each in claims.values() for claim in each):
        return Verdict.FAILS
    speak = {scene.letter for scene, each in claims.items() if each}
    whole = len(claims) == len(scenes) and speak == set(promise.by)
    return Verdict.HOLDS if whole else Verdict.NOT_PLAYED


def _claims(promise: Promise, outcome: Outcome) -> Iterator[Claim]:
    """Yield the claims of a scene that a promise goes by; one that was not to its end is one."""
    return (
        claim
        for claim in outcome.claims
        if not promise.of or claim.what.startswith((*promise.of, UNPLAYED))
    )
