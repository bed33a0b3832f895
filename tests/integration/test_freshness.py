"""Caches known ahead of their events, without events, and no further than engines bear out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvmeta.truth import TOO_OFTEN
from kvmeta.types import SourceState
from router.domain.decision import Placement
from router.service.relay_ports import Usage
from router.sim.engines.specs import GroupSpec
from tests.fakes.systems import (
    BLOCK,
    DENSE,
    RECURRENT,
    Document,
    System,
    fresh_ids,
    scripted_system,
    standin_system,
)

SLOW = 0.05
"""A prompt of 300 tokens takes a stand-in 0.6 s: longer than a burst."""


async def burst(system: System, prompts: list[list[int]]) -> list[Document]:
    """Send prompts at once; return their decisions in the order in which they were taken."""
    answers = await asyncio.gather(*(system.complete(prompt) for prompt in prompts))
    assert {answer.status_code for answer in answers} == {200}
    return list(reversed(await system.decisions()))


async def test_a_burst_of_one_prefix_sees_itself(tmp_path: Path) -> None:
    """Prompts that come while the first is computed count on its prefix, and find it there."""
    prefix = fresh_ids(288)
    async with standin_system(tmp_path, time_scale=SLOW) as system:
        await system.order("PUT", "threshold", {"mode": "off"})
        decisions = await burst(system, [[*prefix, tail, tail] for tail in range(1, 6)])
        await system.settled()
        metrics = await system.metrics()
    assert [each["prefill"]["cached_tokens"] for each in decisions] == [0, *[288] * 4]
    states = [each["cache_state"]["east"] for each in decisions]
    assert states == ["synced", *["approximate"] * 4]
    assert metrics.total("index_truth_total", outcome="exact") == 5


@pytest.mark.parametrize(("groups", "seen"), [(DENSE, 288), (RECURRENT, 0)])
async def test_a_hybrid_burst_is_promised_only_what_will_be_kept(
    tmp_path: Path, groups: tuple[GroupSpec, ...], seen: int
) -> None:
    """Siblings share attention blocks but no state: with recurrent groups nothing is foreseen."""
    prefix = fresh_ids(288)
    async with standin_system(tmp_path, groups=groups, time_scale=SLOW) as system:
        await system.order("PUT", "threshold", {"mode": "off"})
        decisions = await burst(system, [[*prefix, *[tail] * 40] for tail in (1, 2)])
        await system.settled()
        metrics = await system.metrics()
    assert [each["prefill"]["cached_tokens"] for each in decisions] == [0, seen]
    assert metrics.total("index_truth_total", outcome="missed") == 0
    assert metrics.total("index_truth_total", outcome="over") == 0


async def test_a_failed_prefill_is_not_counted_on(tmp_path: Path) -> None:
    """After a leg that failed the prompt is as uncached as before."""
    prompt = fresh_ids(300)
    async with standin_system(tmp_path, model={"tokenizer": {"kind": "none"}}) as system:
        await system.client.post(f"{system.host('f0').url}/standin/faults", json={"status": 500})
        await system.complete(prompt)
        document = await system.order("POST", "decisions:explain", {"prompt": prompt})
    assert document["cached_tokens"]["west"] == 0


async def asked_west(system: System) -> None:
    """Wait until a prefill is under way in the PrfaaS cluster."""
    await system.until(lambda state: any(i["prefills_inflight"] for i in state["instances"]))


async def test_a_fallback_looks_again(tmp_path: Path) -> None:
    """What a request is told, and an engine held to, is what its new instance had then."""
    prompt = fresh_ids(300)
    async with standin_system(tmp_path) as system:
        slow = {"slow_seconds": 1.0, "status": 500}
        await system.client.post(f"{system.host('f0').url}/standin/faults", json=slow)
        falling = asyncio.create_task(system.complete(prompt))
        await asked_west(system)
        await system.order("PUT", "threshold", {"mode": "off"})
        first = await system.complete([*prompt, 7])
        await system.order("PUT", "threshold", {"mode": "config"})
        answer = await falling
        metrics = await system.metrics()
        (document,) = await system.decisions("reason=remote_prefill_failed")
    assert first.headers["x-prfaas-cached-tokens"] == "0"
    assert answer.headers["x-prfaas-reason"] == "remote_prefill_failed"
    assert answer.headers["x-prfaas-cached-tokens"] == "288"
    assert document["compute_uncached_tokens"] == 12
    assert metrics.total("index_truth_total", outcome="exact") == 2
    assert metrics.total("index_truth_total") == 2


async def test_a_decode_tried_elsewhere_finds_what_its_prefill_left(tmp_path: Path) -> None:
    """The second prefill of a prompt is known to be all but done: nothing is under-stated."""
    prompt = fresh_ids(90)
    async with standin_system(tmp_path, names="p0 d0 d1 f0") as system:
        full = {"status": 503, "slow_seconds": 0.5}
        await system.client.post(f"{system.host('d0').url}/standin/faults?instance=d0", json=full)
        answer = await system.complete(prompt)
        metrics = await system.metrics()
    assert (answer.status_code, answer.headers["x-prfaas-decode"]) == (200, "d1")
    assert answer.headers["x-prfaas-cached-tokens"] == "80"
    assert metrics.total("index_truth_total", outcome="exact") == 2
    assert metrics.total("index_truth_total") == 2


async def test_an_instance_without_events_is_guessed_from_its_prompts(tmp_path: Path) -> None:
    """What was computed there counts as `approximate`, in decisions, `state` and metrics."""
    prompt = fresh_ids(10 * BLOCK)
    async with scripted_system(tmp_path, threshold=1000) as system:
        await system.complete(prompt)
        await system.complete([*prompt, 1, 2, 3])
        first, second = reversed(await system.decisions())
        state = await system.order("GET", "state")
        metrics = await system.metrics()
    assert (first["cached_tokens"]["east"], first["cache_state"]["east"]) == (None, "unknown")
    assert (second["cached_tokens"]["east"], second["cache_state"]["east"]) == (160, "approximate")
    (source,) = state["index"]["sources"]
    assert (source["instance"], source["state"], source["blocks"]) == ("p0", "approximate", 10)
    assert metrics.total("index_source_state", instance="p0", state="approximate") == 1
    assert metrics.total("index_source_age_seconds", instance="p0") > 0


async def test_guessing_can_be_switched_off(tmp_path: Path) -> None:
    """With `approximate_ttl_seconds: 0` an instance without events stays unknown."""
    prompt = fresh_ids(100)
    off = {"approximate_ttl_seconds": 0}
    async with scripted_system(tmp_path, threshold=1000, kvmeta=off) as system:
        await system.complete(prompt)
        await system.complete(prompt)
        latest = (await system.decisions())[0]
    assert latest["cache_state"]["east"] == "unknown"


async def test_an_instance_that_vanished_holds_nothing(tmp_path: Path) -> None:
    """A refused connection means a new process to come: guesses about the old one are dropped."""
    prompt = fresh_ids(100)
    async with scripted_system(tmp_path, threshold=1000, names="p0 d0 f0") as system:
        await system.complete(prompt)
        await system.engine("p0").stop()
        await system.complete([*prompt, 1])
        state = await system.order("GET", "state")
    assert [each for each in state["index"]["sources"] if each["instance"] == "p0"] == []


async def test_a_source_that_over_states_is_demoted(tmp_path: Path) -> None:
    """An engine that finds less than its events told is `partial` after six such answers."""
    placement = Placement("east", "p0", 288, cache_state=SourceState.SYNCED)
    async with standin_system(tmp_path) as system:
        for _ in range(TOO_OFTEN):
            system.gateway.core.truth.prefill_answered(placement, Usage(300, 1, 0))
        state = await system.until(
            lambda state: any(
                each["errors"].get("over_stated") for each in state["index"]["sources"]
            )
        )
    states = {each["instance"]: each["state"] for each in state["index"]["sources"]}
    assert (states["p0"], states["f0"]) == ("partial", "synced")
