"""The long loop in a running gateway: it measures, proposes and, with `label`, converts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.commands.app import run
from tests.fakes.live_engines import LiveEngine
from tests.fakes.redis_servers import redis_server
from tests.fakes.scripted_engine import answer
from tests.fakes.systems import (
    BLOCK,
    Document,
    System,
    describe,
    scripted_system,
    serve_gateway,
    write_configuration,
)

MODEL: Mapping[str, Any] = {
    "profiles": {"prfaas": "./profile.yaml", "pd": "./profile.yaml"},
    # One second of decode a request: 64 requests a second for each decode instance.
    "decode": {"max_concurrency": 64, "tokens_per_second_slo": 40, "expected_output_tokens": 40},
}
NAMES = "p0 d0 d1 d2 f0"
CONVERTIBLE = {name: {"convertible": True} for name in ("p0", "d0", "d1", "d2")}


def quick(actuator: str) -> Document:
    """Loops that look often: a window has some samples, two of them confirm."""
    return {
        "signal_max_age_seconds": 1,
        "threshold": {"mode": "auto", "tokens": 100, "min_tokens": 16, "max_tokens": 4000},
        "short_loop": {"period_seconds": 0.05, "dwell_seconds": 0.1},
        "long_loop": {
            "period_seconds": 0.5,
            "confirm_windows": 2,
            "actuator": actuator,
            "dwell_seconds": 3600,
        },
    }


async def ask_for_long_prompts(system: System) -> None:
    """A mix of 2,000 to 4,000 tokens: prefill is far too little for so many decodes."""
    for i in range(110):
        await system.complete(2000 + 18 * i)


async def until(condition: Callable[[], bool]) -> None:
    """Poll until a condition holds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what others change has no event
            await asyncio.sleep(0.01)


def balance(state: Document) -> Document:
    """What the loop found of late; nothing before its first window."""
    found: Document = state["balance"][0] if state["balance"] else {"verdict": None}
    return found


async def test_a_lack_of_prefill_converts_a_decode_without_a_failed_request(
    tmp_path: Path,
) -> None:
    """Prompts grow long, prefill queues: `d` becomes a prefill under traffic, Lambda rises."""
    async with scripted_system(
        tmp_path, names=NAMES, entries=CONVERTIBLE, model=MODEL, scheduler=quick("label")
    ) as system:
        await ask_for_long_prompts(system)
        calm = await system.until(lambda state: balance(state)["verdict"] == "balanced", 30)
        assert calm["conversion"] is None
        solved = system.gateway.core.operator.solved
        before = solved.of("tiny", "east")
        assert before is not None

        answers: list[httpx.Response] = []

        async def keep_asking() -> None:
            while True:
                answers.append(await system.complete(200))

        asking = [asyncio.create_task(keep_asking()) for _ in range(3)]
        system.engine("p0").waiting = 5
        begun = await system.until(lambda state: state["conversion"] is not None, 30)
        name = begun["conversion"]["instance"]
        assert name.startswith("d")
        assert begun["conversion"]["target"] == "prefill"
        done = await system.until(lambda state: state["conversion"]["over"], 60)
        assert done["conversion"]["phase"] == "settled", done["conversion"]
        asked = len(answers)
        await until(lambda: len(answers) >= asked + 20)
        for task in asking:
            task.cancel()
        assert {each.status_code for each in answers} == {200}
        assert {each["name"]: each["role"] for each in done["instances"]}[name] == "prefill"
        assert all(each["state"] == "active" for each in done["instances"])

        def prefills() -> int:
            now = solved.of("tiny", "east")
            return 0 if now is None else now.solved.today.deployment.pds[0].prefill

        await until(lambda: prefills() == 2)
        after = solved.of("tiny", "east")
        assert after is not None
        assert after.solved.rate > 1.2 * before.solved.rate

        metrics = await system.metrics()
        assert metrics.total("conversions_total", outcome="proposed") == 1
        assert metrics.total("conversions_total", outcome="settled") == 1
        audit = (await system.order("GET", "audit"))["audit"]
        assert {each["by"] for each in audit} == {"controller"}
        assert audit[0]["after"]["instance"]["role"] == "prefill"


async def test_a_dry_run_only_proposes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By default nothing is changed: what would be done stands in the state, with its reasons.

    An engine that tells nothing any more makes its stage unknown, and ends the proposal.
    """
    async with scripted_system(
        tmp_path, names=NAMES, model=MODEL, scheduler=quick("dry_run")
    ) as system:
        await ask_for_long_prompts(system)
        system.engine("p0").waiting = 5
        state = await system.until(lambda state: balance(state)["verdict"] == "proposed", 30)
        proposal = balance(state)["proposal"]
        assert (proposal["source"], proposal["target"]) == ("decode", "prefill")
        assert (proposal["prefill"], proposal["decode"]) == (1, 3)
        assert proposal["balance_residual"] < 0
        assert proposal["next_rate"] > proposal["rate"]
        plan = (await system.order("GET", "plan"))["plans"][0]
        assert plan["proposal"]["instance"] == proposal["instance"]
        words = ["ctl", "plan", "--url", system.admin_url]
        assert await asyncio.to_thread(run, words) == 0
        said = capsys.readouterr().out
        assert f"proposed: {proposal['instance']} decode -> prefill" in said
        assert state["conversion"] is None

        system.engine("p0").on("/metrics", answer(500))
        blind = await system.until(lambda state: balance(state)["verdict"] == "unknown", 30)
        assert balance(blind)["prefill"] is None
        assert balance(blind)["proposal"] is None


@pytest.mark.long
async def test_an_operator_sees_and_aborts_a_conversion(tmp_path: Path) -> None:
    """While a busy instance is drained its conversion is put back on an operator's word."""
    async with scripted_system(
        tmp_path, names=NAMES, entries=CONVERTIBLE, model=MODEL, scheduler=quick("label")
    ) as system:
        assert (await system.admin("DELETE", "conversion")).status_code == 404
        await ask_for_long_prompts(system)
        system.engine("p0").waiting = 5
        for name in ("d0", "d1", "d2"):
            system.engine(name).running = 1
        begun = await system.until(lambda state: state["conversion"] is not None, 30)
        name = begun["conversion"]["instance"]
        assert {each["name"]: each["state"] for each in begun["instances"]}[name] == "draining"
        shown = await system.order("DELETE", "conversion")
        assert shown["conversion"]["aborted_by"]
        done = await system.until(lambda state: state["conversion"]["over"], 30)
        assert done["conversion"]["phase"] == "rolled_back"
        assert done["conversion"]["cause"].startswith("aborted by")
        assert {each["name"]: each["state"] for each in done["instances"]}[name] == "active"
        assert {each["name"]: each["role"] for each in done["instances"]}[name] == "decode"
        audit = (await system.order("GET", "audit"))["audit"]
        actions = [each["action"] for each in audit]
        assert actions[:3] == ["conversion.rolled_back", "conversion.abort", "conversion.draining"]


@pytest.mark.long
async def test_the_next_leader_finishes_what_the_last_one_began(tmp_path: Path) -> None:
    """Two replicas on a real Redis: both tell what the leader found; its conversion outlives it."""
    async with AsyncExitStack() as stack, AsyncExitStack() as first:
        redis = stack.enter_context(redis_server())
        engines = {
            name: await stack.enter_async_context(LiveEngine(name)) for name in NAMES.split()
        }
        path = write_configuration(tmp_path, replicas_on(redis.url, engines))
        leader = await first.enter_async_context(serve_gateway(path, engines=engines))
        await leader.until(lambda state: state["leader"]["leads"], 30)
        other = await stack.enter_async_context(serve_gateway(path, engines=engines))
        await ask_for_long_prompts(leader)
        found = await other.until(lambda state: balance(state)["verdict"] == "balanced", 60)
        assert not found["leader"]["leads"]
        engines["p0"].waiting = 5
        for name in ("d0", "d1", "d2"):
            engines[name].running = 1
        begun = await other.until(lambda state: state["conversion"] is not None, 60)
        assert begun["conversion"]["phase"] == "draining"
        name = begun["conversion"]["instance"]
        assert {each["name"]: each["state"] for each in begun["instances"]}[name] == "draining"
        await first.aclose()
        for engine in engines.values():
            engine.running = 0
        done = await other.until(lambda state: state["conversion"]["over"], 60)
        assert done["conversion"]["phase"] == "settled"
        assert done["conversion"]["term"] > begun["conversion"]["term"]
        assert {each["name"]: each["role"] for each in done["instances"]}[name] == "prefill"


def replicas_on(url: str, engines: Mapping[str, LiveEngine]) -> Document:
    """The configuration of gateways that share a store."""
    roles = {"p": "prefill", "d": "decode", "f": "prefill"}
    entries = {
        name: {"name": name, "url": engine.url, "role": roles[name[0]]}
        for name, engine in engines.items()
    }
    home = [entries[name] | CONVERTIBLE[name] for name in CONVERTIBLE]
    clusters = [
        {"name": "east", "kind": "pd", "instances": home},
        {"name": "west", "kind": "prfaas", "instances": [entries["f0"]]},
    ]
    model = {"tokenizer": {"kind": "none"}, "cache": {"block_size": BLOCK}, **MODEL}
    store = {"url": url, "timeout_ms": 1000}
    return describe(clusters, threshold=100, model=model, scheduler=quick("label"), store=store)
