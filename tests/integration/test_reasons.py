"""Every reason of a decision, through HTTP: headers, decision log and counters say the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.domain.decision import Reason
from tests.fakes.scripted_engine import Hold, RefusedPort, Until, answer
from tests.fakes.systems import System, fresh_ids, routing, scripted_system, standin_system

PROFILED = {"profiles": {"prfaas": "./profile.yaml", "pd": "./profile.yaml"}}


async def check(
    system: System,
    response: httpx.Response,
    route: str,
    reason: str,
    *,
    blocked_by: str | None = None,
) -> dict[str, Any]:
    """Assert that all that tells of the request tells the same; return its decision document."""
    assert response.status_code == 200, response.text
    assert routing(response) == (route, reason)
    documents = await system.decisions(f"route={route}&reason={reason}")
    document = documents[0]
    headers = response.headers
    assert document["request_id"] == headers["x-request-id"]
    assert (document["route"], document["reason"]) == (route, reason)
    assert document["blocked_by"] == blocked_by
    assert str(document["total_tokens"]) == headers["x-prfaas-total-tokens"]
    assert str(document["uncached_tokens"]) == headers["x-prfaas-uncached-tokens"]
    assert str(document["threshold"]) == headers["x-prfaas-threshold"]
    assert document["decode"]["instance"] == headers["x-prfaas-decode"]
    prefill = document["prefill"]
    assert (prefill and prefill["instance"]) == headers.get("x-prfaas-prefill")
    others = [each for each in await system.decisions() if each["reason"] != reason]
    assert all(each["request_id"] != document["request_id"] for each in others)
    await system.counted("requests_total", route=route, reason=reason, code="200")
    return document


async def decided(system: System, route: str, reason: str) -> float:
    """Return how often a decision was counted."""
    return (await system.metrics()).total("decisions_total", route=route, reason=reason)


async def test_below_and_above_threshold_meet_at_t(tmp_path: Path) -> None:
    """A prompt of t tokens stays local, one token more goes to PrfaaS."""
    async with scripted_system(tmp_path, threshold=100) as system:
        tie = await check(system, await system.complete(100), "local", "below_threshold")
        more = await check(system, await system.complete(101), "prfaas", "above_threshold")
        assert await decided(system, "local", "below_threshold") == 1
        assert await decided(system, "prfaas", "above_threshold") == 1
    assert tie["prefill"]["cluster"] == "east"
    assert more["prefill"]["cluster"] == "west"
    assert more["decode"]["cluster"] == more["home_cluster"] == "east"


async def test_t_of_zero_sends_everything_away(tmp_path: Path) -> None:
    """With t = 0 a prompt of one token goes to PrfaaS."""
    async with scripted_system(tmp_path, threshold=0) as system:
        await check(system, await system.complete(1), "prfaas", "above_threshold")


async def test_mode_off_is_disabled(tmp_path: Path) -> None:
    """With mode off nothing is offloaded, whatever its length or an override says."""
    async with scripted_system(tmp_path) as system:
        await system.order("PUT", "threshold", {"mode": "off"})
        await check(system, await system.complete(5000), "local", "disabled")
        await system.order("PUT", "override", {"route": "prfaas"})
        await check(system, await system.complete(5000), "local", "disabled")
        assert await decided(system, "local", "disabled") == 2


async def test_override_wins_over_the_lengths(tmp_path: Path) -> None:
    """An override sends short prompts away and keeps long ones."""
    async with scripted_system(tmp_path) as system:
        await system.order("PUT", "override", {"route": "prfaas"})
        await check(system, await system.complete(10), "prfaas", "override")
        await system.order("PUT", "override", {"route": "local"})
        await check(system, await system.complete(5000), "local", "override")
        await system.order("DELETE", "override")
        await check(system, await system.complete(5000), "prfaas", "above_threshold")


async def test_override_never_selects_a_link_that_is_down(tmp_path: Path) -> None:
    """An override to PrfaaS over a dead link stays local and tells what blocks it."""
    async with scripted_system(tmp_path) as system:
        await system.order("PUT", "override", {"route": "prfaas"})
        await system.order("PUT", "links/west-east", {"health": "down"})
        response = await system.complete(10)
        await check(system, response, "local", "override", blocked_by="link_down")


async def test_override_never_selects_a_dead_engine(tmp_path: Path) -> None:
    """An override to PrfaaS with nobody alive there stays local and tells what blocks it."""
    async with scripted_system(tmp_path) as system:
        await system.order("PUT", "override", {"route": "prfaas"})
        await system.order("PATCH", "instances/f0", {"state": "disabled"})
        response = await system.complete(10)
        await check(system, response, "local", "override", blocked_by="remote_unavailable")
        assert not system.engine("f0").calls


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": fresh_ids(500), "echo": True},
        {"prompt": fresh_ids(500), "prompt_logprobs": 0},
        {"prompt": [fresh_ids(300), fresh_ids(300)]},
        {"prompt": ["one " * 500, "two " * 500]},
    ],
    ids=["echo", "prompt_logprobs", "several_ids", "several_texts"],
)
async def test_r24_what_cannot_be_split_is_done_by_one_instance(
    tmp_path: Path, body: dict[str, Any]
) -> None:
    """Echo, prompt_logprobs and several prompts make one call to one instance, unchanged."""
    async with scripted_system(tmp_path) as system:
        response = await system.complete(**body)
        document = await check(system, response, "local", "not_disaggregable")
        assert document["prefill"] is None
        assert document["kv_bytes"] == 0
        assert not system.engine("p0").calls + system.engine("f0").calls
        call = await system.engine("d0").called()
    assert call.json() == {"model": "tiny", "max_tokens": 4, **body}


async def test_link_down_and_up_again(tmp_path: Path) -> None:
    """A link that is down keeps everything local from the next request; up again, it does not."""
    async with scripted_system(tmp_path) as system:
        await check(system, await system.complete(500), "prfaas", "above_threshold")
        await system.order("PUT", "links/west-east", {"health": "down"})
        await check(system, await system.complete(500), "local", "link_down")
        assert (await system.metrics()).total("link_up", link="west-east") == 0
        await system.order("PUT", "links/west-east", {"health": "up"})
        await check(system, await system.complete(500), "prfaas", "above_threshold")
        assert (await system.metrics()).total("link_up", link="west-east") == 1


async def test_telemetry_of_no_bandwidth_takes_a_link_down(tmp_path: Path) -> None:
    """In health auto a link without usable bandwidth is down, and is shown without an error."""
    async with scripted_system(tmp_path) as system:
        told = {"egress_gbps": 0.5, "available_gbps": 0}
        shown = await system.order("POST", "links/west-east/telemetry", told)
        assert shown["up"] is False
        assert shown["utilization"] is None
        document = await check(system, await system.complete(500), "local", "link_down")
        assert document["link"]["free_bytes"] == 0
        await system.order("POST", "decisions:explain", {"total_tokens": 500})
        await system.metrics()


async def test_link_stale_where_telemetry_is_required(tmp_path: Path) -> None:
    """Required telemetry that is missing or too old closes the link; a fresh report opens it."""
    link = {
        "name": "west-east",
        "from": "west",
        "to": "east",
        "capacity_gbps": 1,
        "telemetry": {"required": True, "max_age_seconds": 5},
    }
    async with scripted_system(tmp_path, links=[link]) as system:
        await check(system, await system.complete(500), "local", "link_stale")
        old = {"egress_gbps": 0.1, "observed_at": "2020-01-01T00:00:00Z"}
        await system.order("POST", "links/west-east/telemetry", old)
        await check(system, await system.complete(500), "local", "link_stale")
        await system.order("POST", "links/west-east/telemetry", {"egress_gbps": 0.1})
        await check(system, await system.complete(500), "prfaas", "above_threshold")


async def test_gate_model_over_its_limit(tmp_path: Path) -> None:
    """A model whose KV per prefill second is over its gate stays home."""
    # The profile makes 10 MB/s = 0.08 Gbit/s at every length.
    model = {**PROFILED, "gate": {"max_kv_gbps": 0.05}}
    async with scripted_system(tmp_path, model=model) as system:
        await check(system, await system.complete(500), "local", "gate_model")


async def test_gate_model_over_its_link(tmp_path: Path) -> None:
    """A model of which one instance would fill the whole link stays home, without any limit set."""
    link = {"name": "west-east", "from": "west", "to": "east", "capacity_gbps": 0.05}
    async with scripted_system(tmp_path, model=PROFILED, links=[link]) as system:
        await check(system, await system.complete(500), "local", "gate_model")


async def test_gate_model_under_its_limit(tmp_path: Path) -> None:
    """A model under its gate is offloaded, and its bytes are told."""
    model = {**PROFILED, "gate": {"max_kv_gbps": 0.1}}
    async with scripted_system(tmp_path, model=model) as system:
        document = await check(system, await system.complete(2000), "prfaas", "above_threshold")
    assert document["kv_bytes"] == 2_000_000


async def test_unprofiled_model_passes_in_manual_and_is_refused_in_auto(tmp_path: Path) -> None:
    """Without a profile the operator's own number counts, but `auto` offloads nothing."""
    async with scripted_system(tmp_path) as system:
        document = await check(system, await system.complete(500), "prfaas", "above_threshold")
        assert document["kv_bytes"] is None
        await system.order("PUT", "threshold", {"mode": "auto"})
        await check(system, await system.complete(500), "local", "gate_model")


async def test_gate_workload_with_few_long_prompts(tmp_path: Path) -> None:
    """Once a hundred prompts were seen, too small a share over t keeps the rare long ones home."""
    model = {"gate": {"min_long_share": 0.05}}
    async with scripted_system(tmp_path, threshold=100, model=model) as system:
        await check(system, await system.complete(101), "prfaas", "above_threshold")
        for _ in range(99):
            await system.complete(20)
        await check(system, await system.complete(101), "local", "gate_workload")
        for _ in range(8):
            await system.complete(101)
        for _ in range(32):  # a view is as old as that many requests at most
            await system.complete(200)
        await check(system, await system.complete(300), "prfaas", "above_threshold")


async def test_gate_workload_with_long_prompts_that_are_short(tmp_path: Path) -> None:
    """Enough prompts over t whose mean is too low are not worth a remote pool either."""
    model = {"gate": {"min_long_tokens": 200}}
    async with scripted_system(tmp_path, threshold=100, model=model) as system:
        for _ in range(100):
            await system.complete(120)
        await check(system, await system.complete(120), "local", "gate_workload")


async def test_gate_scheduler_keeps_what_nobody_knows(tmp_path: Path) -> None:
    """With on_unknown_metadata local, a prompt whose home prefix is unknown stays local."""
    changes = {"on_unknown_metadata": "local"}
    async with scripted_system(tmp_path, scheduler=changes) as system:
        document = await check(system, await system.complete(500), "local", "gate_scheduler")
        assert document["cached_tokens"] == {"east": None, "west": None}


async def test_gate_scheduler_lets_known_prompts_pass(tmp_path: Path) -> None:
    """With on_unknown_metadata local, a prompt known to be uncached at home is offloaded."""
    changes = {"on_unknown_metadata": "local"}
    async with standin_system(tmp_path, scheduler=changes) as system:
        document = await check(system, await system.complete(500), "prfaas", "above_threshold")
        assert document["cached_tokens"] == {"east": 0, "west": 0}
        assert document["cache_state"] == {"east": "synced", "west": "synced"}


async def test_remote_unavailable_when_the_other_cluster_is_gone(tmp_path: Path) -> None:
    """With no live PrfaaS instance long prompts stay local."""
    async with scripted_system(tmp_path) as system:
        await system.engine("f0").stop()
        await system.until(
            lambda state: not next(i for i in state["instances"] if i["name"] == "f0")["ready"]
        )
        await check(system, await system.complete(500), "local", "remote_unavailable")


async def test_remote_unavailable_across_differing_revisions(tmp_path: Path) -> None:
    """An instance of another revision is never paired with the home cluster."""
    async with scripted_system(tmp_path, entries={"f0": {"revision": "2"}}) as system:
        await check(system, await system.complete(500), "local", "remote_unavailable")


async def test_remote_queue_full(tmp_path: Path) -> None:
    """A scraped queue at its limit keeps prompts local until it is shorter."""
    async with scripted_system(tmp_path, scheduler={"remote_queue_limit": 3}) as system:

        def queue_is(depth: int) -> Callable[[dict[str, Any]], bool]:
            return lambda state: any(
                i["name"] == "f0" and i["queue_depth"] == depth for i in state["instances"]
            )

        system.engine("f0").waiting = 3
        await system.until(queue_is(3))
        await check(system, await system.complete(500), "local", "remote_queue_full")
        system.engine("f0").waiting = 2
        await system.until(queue_is(2))
        await check(system, await system.complete(500), "prfaas", "above_threshold")


async def test_link_congested_by_booked_bytes(tmp_path: Path) -> None:
    """Bytes booked on the link and not yet pulled keep the next prompt local, then free it."""
    # 0.1 Gbit/s carry 62.5 MB in five seconds; 40,000 tokens make 40 MB.
    links = [{"name": "west-east", "from": "west", "to": "east", "capacity_gbps": 0.1}]
    budget = {"link_budget_seconds": 5}
    async with scripted_system(tmp_path, model=PROFILED, links=links, scheduler=budget) as system:
        ready = asyncio.Event()
        engine = system.engine("d0")
        engine.then(lambda request: [Until(ready), *engine._complete(request)])
        first = asyncio.create_task(system.complete(40_000))
        await engine.called()
        assert (await system.metrics()).total("link_inflight_bytes") == 40_000_000
        document = await check(system, await system.complete(40_000), "local", "link_congested")
        assert document["link"]["free_bytes"] == 22_500_000
        assert document["kv_bytes"] == 40_000_000
        ready.set()
        await check(system, await first, "prfaas", "above_threshold")
        await system.settled()
        assert (await system.metrics()).total("link_inflight_bytes") == 0
        await check(system, await system.complete(40_000), "prfaas", "above_threshold")


@pytest.mark.parametrize(
    ("threshold", "busy", "first", "second", "told"),
    [
        (200_000, "p0", 100_000, 1_000, ("prfaas", "sooner_remote")),
        (500, "f0", 100_000, 1_000, ("local", "sooner_local")),
    ],
)
async def test_expected_leaves_a_side_that_is_busy(
    tmp_path: Path, threshold: int, busy: str, first: int, second: int, told: tuple[str, str]
) -> None:
    """Under the rule `expected` a queue of ten seconds sends a short prompt to the other side."""
    changes = {"policy": "expected"}
    async with scripted_system(
        tmp_path, threshold=threshold, model=PROFILED, scheduler=changes
    ) as system:
        ready = asyncio.Event()
        engine = system.engine(busy)
        engine.then(lambda request: [Until(ready), *engine._complete(request)])
        waiting = asyncio.create_task(system.complete(first))
        await engine.called()
        await check(system, await system.complete(second), *told)
        ready.set()
        assert (await waiting).status_code == 200


async def test_local_prefill_unavailable(tmp_path: Path) -> None:
    """Without a live local prefill short prompts are computed by the decode instance."""
    async with scripted_system(tmp_path, names="d0 f0") as system:
        response = await system.complete(50)
        document = await check(
            system, response, "local", "local_prefill_unavailable", blocked_by="below_threshold"
        )
        assert document["prefill"] is None
        await check(system, await system.complete(500), "prfaas", "above_threshold")


async def test_remote_prefill_failed_falls_back_once(tmp_path: Path) -> None:
    """A remote prefill that fails is replaced by a local one, and everything says so."""
    async with scripted_system(tmp_path) as system:
        system.engine("f0").reply(answer(500, b'{"error":{"message":"out of memory"}}'))
        document = await check(system, await system.complete(500), "local", "remote_prefill_failed")
        assert document["prefill"]["instance"] == "p0"
        metrics = await system.metrics()
    assert metrics.total("fallbacks_total", reason="remote_prefill_failed") == 1
    assert metrics.total("upstream_errors_total", instance="f0", kind="status") == 1


async def test_remote_prefill_without_handoff_is_told_as_failed(tmp_path: Path) -> None:
    """R23: after a remote prefill without a hand-off the decision log says what really ran."""
    async with scripted_system(tmp_path) as system:
        system.engine("f0").reply(answer(200, b'{"choices":[],"kv_transfer_params":null}'))
        document = await check(system, await system.complete(500), "local", "remote_prefill_failed")
        assert document["prefill"] is None
        call = await system.engine("d0").called()
        assert "kv_transfer_params" not in call.json()
        assert (await system.metrics()).total("fallbacks_total", reason="no_handoff") == 1


async def test_refused_remote_prefill_costs_no_time_out(tmp_path: Path) -> None:
    """A PrfaaS engine that refuses connections is replaced at once."""
    upstream = {"connect_timeout_seconds": 60, "probe": {"interval_seconds": 60}}
    async with scripted_system(tmp_path, upstream=upstream) as system:
        await system.engine("f0").stop()
        began = asyncio.get_running_loop().time()
        await check(system, await system.complete(500), "local", "remote_prefill_failed")
        assert asyncio.get_running_loop().time() - began < 20


async def test_decision_timeout_goes_local(tmp_path: Path) -> None:
    """A count that hangs is given up after the decision's budget; the request goes local."""
    model = {"tokenizer": {"kind": "engine"}}
    changes = {"decision_timeout_ms": 100}
    async with scripted_system(tmp_path, model=model, scheduler=changes) as system:
        for engine in system.engines.values():
            engine.on("/tokenize", [Hold()])
        prompt = "long " * 1000
        document = await check(system, await system.complete(prompt), "local", "decision_timeout")
        told = await system.order("POST", "decisions:explain", {"prompt": prompt})
        assert told["reason"] == "decision_timeout"
    assert document["token_source"] == "estimate"
    assert document["cached_tokens"] == {"east": None, "west": None}


async def test_a_link_to_nowhere_makes_no_pair(tmp_path: Path) -> None:
    """Without any link a long prompt stays local: no PrfaaS cluster can reach its home."""
    async with scripted_system(tmp_path, links=[]) as system:
        await check(system, await system.complete(500), "local", "remote_unavailable")


async def test_nobody_alive_is_503_with_retry_after(tmp_path: Path) -> None:
    """With every decode instance gone requests are 503 at once, in the error shape."""
    with RefusedPort() as nobody:
        entries = {"d0": {"url": nobody}}
        async with scripted_system(tmp_path, entries=entries) as system:
            response = await system.complete(50)
    assert response.status_code == 503
    assert response.headers["retry-after"].isdigit()
    assert response.json()["error"]["type"] == "service_unavailable_error"


def test_every_reason_is_tested_here() -> None:
    """Each reason has a test in this module."""
    source = Path(__file__).read_text("utf-8")
    untested = {reason for reason in Reason if f'"{reason}"' not in source}
    assert not untested
