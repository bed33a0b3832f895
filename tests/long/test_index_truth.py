"""Index truth: what the gateway believes cached is what the engines find."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.throughput.profiles import Profile, ProfilePoint, ProfileSource
from tests.fakes.replays import GROUPS, Replayed, System, local_system, replay_trace
from tests.fakes.truth import check_engine

pytestmark = pytest.mark.long

REQUESTS = 2000
SPEED = 8.0
TIME_SCALE = 14.0
"""Engines so fast that the local pool stays under 80 % busy at SPEED times the trace's rate."""

LOCAL_PREFILLS = 2

H20 = Profile.from_points(
    [
        ProfilePoint(1000, 200068301, 0.551),
        ProfilePoint(8000, 323905126, 1.518),
        ProfilePoint(32000, 735366349, 4.974),
        ProfilePoint(128000, 2428816589, 21.496),
    ],
    source=ProfileSource.MODELLED,
)


async def assert_true_offline(system: System, replayed: Replayed) -> int:
    """Every engine's every look-up equals the index at the same event; returns how many."""
    prompts = replayed.prompts()
    compared = 0
    for instance in system.prefills:
        verdict = await check_engine(instance, system.layout, prompts)
        assert verdict.wrong == []
        compared += verdict.compared
    return compared


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_one_after_another_every_belief_is_what_the_engine_found(
    groups: list[str], tmp_path: Path
) -> None:
    """2,000 requests in turn: 0 errors, and belief equals report in all of them."""
    with local_system(tmp_path, groups, time_scale=5000) as system:
        replayed = replay_trace(system, tmp_path, "--sequential", limit=REQUESTS)
        agreement = replayed.report["agreement"]
        assert replayed.report["errors"] == {}
        assert (agreement["compared"], agreement["equal"]) == (REQUESTS, REQUESTS)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
async def test_at_speed_the_index_at_the_engines_own_event_is_right(
    groups: list[str], tmp_path: Path
) -> None:
    """2,000 requests at speed: 0 errors, and the rebuilt index agrees with every look-up.

    The online agreement is below that, since events of prompts still being computed are not out
    yet; it is reported.
    """
    with local_system(tmp_path, groups, time_scale=TIME_SCALE) as system:
        replayed = replay_trace(system, tmp_path, "--speed", str(SPEED), limit=REQUESTS)
        assert replayed.report["errors"] == {}
        busy = local_busy_share(replayed)
        assert busy < 0.8
        assert await assert_true_offline(system, replayed) == REQUESTS
    agreement = replayed.report["agreement"]
    print(  # noqa: T201 - `make long` shows what passed tests print
        f"\n{groups}: online agreement {agreement['equal']} of {agreement['compared']},"
        f" local prefill pool {busy:.0%} busy"
    )


def local_busy_share(replayed: Replayed) -> float:
    """Return the share of the time in which the local prefill engines computed."""
    seconds = sum(
        H20.prefill_seconds(record["prompt_tokens"])
        - H20.prefill_seconds(record["reported_cached"])
        for record in replayed.records
        if record["route"] == "local"
    )
    span = max(record["sent_at"] + record["duration"] for record in replayed.records)
    return seconds / TIME_SCALE / LOCAL_PREFILLS / span
