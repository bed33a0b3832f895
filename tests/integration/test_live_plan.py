"""`GET plan`, `POST plan:solve` and `prfaas ctl plan` on a gateway that serves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.commands.app import run
from tests.fakes.systems import System, scripted_system

PROFILED = {"profiles": {"prfaas": "./profile.yaml", "pd": "./profile.yaml"}}
QUICK = {"threshold": {"tokens": 900}, "short_loop": {"period_seconds": 0.05}}


async def spread_lengths(system: System) -> None:
    """Ask with 110 prompts of 20 to 2,200 tokens."""
    for i in range(110):
        await system.complete(20 * (i + 1))


def value(plan: Any, part: str, figure: str) -> Any:  # noqa: ANN401 - JSON
    """Return one figure of a plan's part."""
    return plan[part]["figures"][figure]["value"]


async def test_the_plan_is_the_models_view_of_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It tells stages, t, Lambda_max and residuals; what is supposed is solved and changes nothing.

    `ctl plan` shows the same.
    """
    async with scripted_system(tmp_path, model=PROFILED, scheduler=QUICK) as system:
        (empty,) = (await system.order("GET", "plan"))["plans"]
        assert empty["lacks"] == "requests"
        await spread_lengths(system)
        (plan,) = (await system.order("GET", "plan"))["plans"]
        assert plan["lacks"] is None
        assert plan["proposal"] is None  # no window is over yet
        assert plan["threshold_tokens"] == 900
        assert 1000 < plan["solved_tokens"] < 2000
        assert value(plan, "best", "lambda_max") >= value(plan, "in_force", "lambda_max") > 0
        assert abs(value(plan, "best", "residual_7")) < 0.1
        assert plan["inputs"]["requests_seen"]["value"] == 110

        # The short loop solves it as well, once; only then nothing moves by itself.
        await system.until(lambda state: state["thresholds"][0]["solved_tokens"] is not None)
        logged = len(await system.decisions("limit=10000"))
        before = await system.order("GET", "state")
        # Phi_kv is 0.08 Gbit/s: a link of 0.01 carries an eighth of what an instance makes.
        body = {"bandwidth_gbps": {"west-east": 0.01}, "decode_instances": {"east": 3}}
        (solved,) = (await system.order("POST", "plan:solve", body))["plans"]
        assert solved["now"]["solved_tokens"] == plan["solved_tokens"]
        assert solved["supposed"]["solved_tokens"] > plan["solved_tokens"] + 100
        assert solved["supposed"]["inputs"]["decode_instances"]["value"] == 3
        assert solved["lambda_ratio"]["in_force"] < 1
        telemetry = {"egress_gbps": 0.0, "available_gbps": 0.01}
        after = await system.order("GET", "state")
        assert len(await system.decisions("limit=10000")) == logged
        assert after["links"] == before["links"]
        assert after["thresholds"] == before["thresholds"]

        # The same bandwidth, told by telemetry, gives the same answer.
        await system.order("POST", "links/west-east/telemetry", telemetry)
        (now,) = (await system.order("GET", "plan"))["plans"]
        assert now["inputs"]["link_gbps.west-east"]["source"] == "measured"
        assert now["solved_tokens"] == pytest.approx(solved["supposed"]["solved_tokens"], abs=1)

        for words in (["plan"], ["plan", "solve", "--bandwidth", "west-east=0.01"]):
            assert await asyncio.to_thread(run, ["ctl", *words, "--url", system.url]) == 0
            shown = capsys.readouterr().out
            for wanted in ("tiny in east", "Lambda_max", "residual of (8)", "modelled"):
                assert wanted in shown
        assert await asyncio.to_thread(run, ["ctl", "plan", "--json", "--url", system.url]) == 0
        assert json.loads(capsys.readouterr().out)["plans"][0]["model"] == "tiny"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    async with scripted_system(tmp_path_factory.mktemp("system"), model=PROFILED) as system:
        yield system


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"bandwidth_gbps": {"nowhere": 1.0}}, "bandwidth_gbps: no link 'nowhere'"),
        ({"prefill_instances": {"west": 1}}, "prefill_instances: no PD cluster 'west'"),
        ({"prfaas_instances": {"east": 1}}, "prfaas_instances: no PrfaaS cluster 'east'"),
        ({"bandwidth_gbps": {"west-east": -1.0}}, "bandwidth_gbps.west-east: "),
        ({"decode_instances": {"east": 1.5}}, "decode_instances.east: "),
        ({"decode_instances": {"east": 10**9}}, "decode_instances.east: "),
        ({"mean_tokens": 0.0}, "mean_tokens: "),
        ({"mean_tokens": 2000.0}, "mean_tokens: the lengths of 'tiny'"),
        ({"mean_tokens": 5.0, "lengths": [1]}, "give mean_tokens or lengths, not both"),
        ({"lengths": [0]}, "lengths.0: "),
        ({"lengths": [1] * 4097}, "lengths: "),
        ({"treshold": 5}, "treshold: "),
        ({"model": "nobody"}, "the model 'nobody' does not exist"),
        ({"pd": "west"}, "no PD cluster 'west'"),
    ],
)
async def test_bad_suppositions_name_their_field(body: object, told: str, system: System) -> None:
    """What names nothing or cannot be is a 4xx that says which field."""
    answer = await system.admin("POST", "plan:solve", body)
    assert answer.status_code in {400, 404}
    assert answer.json()["error"]["message"].startswith(told)


@pytest.mark.asyncio(loop_scope="module")
async def test_lengths_stand_in_for_what_was_not_seen(system: System) -> None:
    """With lengths given the model speaks before a prompt was seen."""
    (plan,) = (await system.order("POST", "plan:solve", {"lengths": [100, 3000]}))["plans"]
    assert plan["now"]["lacks"] == "requests"
    assert plan["supposed"]["inputs"]["mean_uncached_tokens"] == {
        "value": 1550.0, "unit": "tokens", "source": "quoted", "label": "mean uncached",
    }  # fmt: skip
    assert plan["lambda_ratio"] is None
