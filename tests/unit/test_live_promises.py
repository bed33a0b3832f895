"""The verdicts on what the live scenes together have to show."""

from __future__ import annotations

from bench.live.claims import Outcome
from bench.live.programs import SCENES, UNPLAYED, Scene
from bench.live.promises import PROMISES, Promise, Verdict, judge

SPOKEN = tuple(dict.fromkeys(what for promise in PROMISES for what in promise.of))


def outcome_of(scene: Scene, *, without: str = "", failing: str = "") -> Outcome:
    """Return an outcome that says everything that any promise asks for."""
    outcome = Outcome(scene.letter)
    for what in SPOKEN:
        if what != without:
            outcome.claim(f"{what} and so on", "", "", holds=what != failing)
    return outcome


def verdicts(played: dict[Scene, Outcome]) -> dict[Promise, Verdict]:
    return dict(judge(played))


def test_all_is_well_when_every_scene_says_so() -> None:
    """Every promise holds where all scenes were played and all that they claim holds."""
    played = {scene: outcome_of(scene) for scene in SCENES}
    assert set(verdicts(played).values()) == {Verdict.HOLDS}


def test_every_scene_is_there_for_a_promise_of_its_own() -> None:
    """No scene is named that does not exist, and each but for general ones is played for one."""
    letters = {scene.letter for scene in SCENES}
    named = [set(promise.by) for promise in PROMISES]
    assert set().union(*named) == letters
    assert set().union(*(each for each in named if each != letters)) == letters


def test_one_claim_that_fails_breaks_its_promises_alone() -> None:
    """What a scene claims of one thing says nothing of the others."""
    played = {scene: outcome_of(scene) for scene in SCENES}
    (late,) = [scene for scene in SCENES if scene.letter == "i"]
    played[late] = outcome_of(late, failing="R66")
    broken = [promise for promise, verdict in judge(played) if verdict is not Verdict.HOLDS]
    assert [promise.of for promise in broken] == [("R66",)]
    assert verdicts(played)[broken[0]] is Verdict.FAILS


def test_what_was_not_played_is_not_shown() -> None:
    """A scene that is left out, and one that says nothing of it, show nothing; nor do they fail."""
    (late,) = [scene for scene in SCENES if scene.letter == "i"]
    (busy,) = [promise for promise in PROMISES if promise.of == ("R66",)]
    played = {scene: outcome_of(scene) for scene in SCENES if scene is not late}
    assert verdicts(played)[busy] is Verdict.NOT_PLAYED
    played[late] = outcome_of(late, without="R66")
    assert verdicts(played)[busy] is Verdict.NOT_PLAYED
    assert set(verdicts({}).values()) == {Verdict.NOT_PLAYED}


def test_a_scene_that_came_to_no_end_breaks_all_its_promises() -> None:
    """Whatever it was to show has failed, with the reason told."""
    played = {scene: outcome_of(scene) for scene in SCENES}
    for scene in SCENES:
        lost = Outcome(scene.letter)
        lost.claim(UNPLAYED, "to its end", "never saw it", holds=False)
        broken = verdicts(played | {scene: lost})
        for promise, verdict in broken.items():
            assert (verdict is Verdict.FAILS) is (scene.letter in promise.by)
