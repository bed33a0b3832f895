"""Which scenes there are, and how they are played one after another."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.live.claims import Outcome
from bench.live.plants import Cast
from bench.live.scenes.engines import lose_engines
from bench.live.scenes.leaders import kill_leader
from bench.live.scenes.links import lose_link, silence_agent
from bench.live.scenes.loads import hold_load, starve_and_tell, starve_untold, starve_with_fixed
from bench.live.scenes.mixes import shift_to_long
from bench.live.scenes.prefixes import ship_remote_prefix, use_remote_prefix
from bench.live.scenes.probes import answer_probes_late
from bench.live.scenes.queues import flood_queues
from bench.live.scenes.takeovers import kill_converting_leader
from bench.live.stages import Stage
from bench.live.systems import live_system

Say = Callable[[str], None]

UNPLAYED: Final = "the scene could be played"
"""The one claim of a scene that came to no end."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One scene: what happens, and on which system. `letter` is how it is asked for.

    What is `whole_only` shows nothing when it is cut short.
    """

    letter: str
    title: str
    play: Callable[[Stage], Awaitable[Outcome]]
    cast: Cast = Cast.PLAIN
    whole_only: bool = False


SCENES: Final = (
    Scene("p", "A steady load, and the same simulated", hold_load, whole_only=True),
    Scene("a", "The link starves, t fixed", starve_with_fixed, whole_only=True),
    Scene("a", "The link starves, told by telemetry, and the same simulated", starve_and_tell),
    Scene("a", "The link starves, and nobody tells", starve_untold, whole_only=True),
    Scene("b", "The link goes down and comes back", lose_link),
    Scene("c", "The PrfaaS queues are flooded, and clients leave early", flood_queues),
    Scene(
        "d", "Prompts become long, and an instance changes its role", shift_to_long, Cast.CONVERTS
    ),
    Scene("e", "The link's telemetry goes stale", silence_agent),
    Scene("h", "Engines and a gateway go away", lose_engines),
    Scene("i", "Engines serve well, and their health says so late", answer_probes_late),
    Scene("f", "The leader is killed, and comes back", kill_leader),
    Scene(
        "j",
        "The leader is killed while it converts an instance",
        kill_converting_leader,
        Cast.CONVERTS,
    ),
    Scene("g", "A prefix that is cached remotely, which nobody ships", use_remote_prefix),
    Scene(
        "g", "A prefix that is cached remotely, and shipped", ship_remote_prefix, Cast.SHIPS_PREFIX
    ),
)


def choose_scenes(letters: Sequence[str], *, quick: bool = False) -> list[Scene]:
    """Return the scenes of these letters, all where there are none; raises KeyError.

    A `quick` choice leaves out what shows nothing when it is cut short.
    """
    known = {scene.letter for scene in SCENES}
    for letter in letters:
        if letter not in known:
            raise KeyError(letter)
    return [
        scene
        for scene in SCENES
        if (not letters or scene.letter in letters) and not (quick and scene.whole_only)
    ]


async def play_scenes(
    scenes: Sequence[Scene], say: Say, *, quick: bool = False
) -> Mapping[Scene, Outcome]:
    """Play scenes, those of one kind of system on one system; return what came of each.

    A scene that cannot be played is an outcome whose one claim does not hold; the others are played
    all the same.
    """
    outcomes: dict[Scene, Outcome] = {}
    began = asyncio.get_running_loop().time()

    def announce(scene: Scene) -> None:
        minutes, seconds = divmod(round(asyncio.get_running_loop().time() - began), 60)
        say(f"[{len(outcomes) + 1}/{len(scenes)}, {minutes}:{seconds:02}] {scene.letter}:"
            f" {scene.title}")  # fmt: skip

    for cast in Cast:
        chosen = [scene for scene in scenes if scene.cast is cast]
        if not chosen:
            continue
        try:
            with tempfile.TemporaryDirectory() as directory:
                async with live_system(Path(directory), cast) as system:
                    stage = Stage(system, say, quick)
                    for scene in chosen:
                        announce(scene)
                        outcome = outcomes[scene] = await _play(scene, stage)
                        stage.played[outcome.scene] = outcome
        except Exception as error:  # noqa: BLE001 - a system's root: the next one may do
            missed = {scene: _unplayed(scene, error) for scene in chosen if scene not in outcomes}
            outcomes |= missed
    return outcomes


async def _play(scene: Scene, stage: Stage) -> Outcome:
    try:
        return await scene.play(stage)
    except Exception as error:  # noqa: BLE001 - a scene's root: the others are to be played
        return _unplayed(scene, error)


def _unplayed(scene: Scene, error: Exception) -> Outcome:
    outcome = Outcome(scene.letter)
    told = "; ".join(str(each) or repr(each) for each in _leaves(error))
    outcome.claim(UNPLAYED, "to its end", told, holds=False)
    return outcome


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield what was raised, out of the groups that tasks put it in."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error
