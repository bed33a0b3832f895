"""How routes follow caches, links and orders, through a whole gateway over stand-in engines."""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from router.domain.topology import Role
from router.sim.engines.cluster import serve_cluster
from router.sim.engines.specs import ClusterSpec, GroupSpec
from tests.fakes.live_engines import LiveEngine
from tests.fakes.raw_clients import calling
from tests.fakes.scripted_engine import Hold, Until, answer
from tests.fakes.standins import shipped_tokenizer
from tests.fakes.systems import (
    DENSE,
    RECURRENT,
    WINDOWED,
    System,
    describe,
    entry_of,
    fresh_ids,
    routing,
    scripted_system,
    serve_gateway,
    standin,
    standin_system,
    states_of,
    write_configuration,
)

LINK = "links/west-east/telemetry"


async def explained(system: System, **body: object) -> dict[str, Any]:
    """Return what would be decided now."""
    return await system.order("POST", "decisions:explain", body)


async def known(
    system: System, prompt: list[int], cluster: str, least: int, most: int = 10_000
) -> int:
    """Wait until a cluster is known to hold so much of a prompt; return how much."""
    async with asyncio.timeout(30):
        while True:
            document = await explained(system, prompt=prompt)
            cached: int | None = document["cached_tokens"][cluster]
            if cached is not None and least <= cached <= most:
                return cached
            await asyncio.sleep(0.01)


# -- caches


@pytest.mark.parametrize(
    "groups", [DENSE, RECURRENT, WINDOWED], ids=["dense", "recurrent", "windowed"]
)
async def test_a_prefix_cached_at_home_keeps_the_prompt_there(
    tmp_path: Path, groups: tuple[GroupSpec, ...]
) -> None:
    """A long prompt goes to PrfaaS until a local prefill has cached its prefix."""
    prompt = fresh_ids(300)
    async with standin_system(tmp_path, groups=groups) as system:
        first = await system.complete(prompt)
        assert routing(first) == ("prfaas", "above_threshold")
        await known(system, prompt, "west", 200)
        assert routing(await system.complete(prompt)) == ("prfaas", "above_threshold")
        await system.order("PUT", "override", {"route": "local"})
        await system.complete(prompt)
        await system.order("DELETE", "override")
        cached = await known(system, prompt, "east", 200)
        again = await system.complete(prompt)
        assert routing(again) == ("local", "below_threshold")
        assert again.headers["x-prfaas-uncached-tokens"] == str(300 - cached)
        details = again.json()["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] == cached
        metrics = await system.metrics()
    assert metrics.total("index_truth_total", outcome="exact") >= 2
    assert metrics.total("index_truth_total", outcome="over") == 0


async def test_the_cached_part_counts_to_the_token(tmp_path: Path) -> None:
    """With a known prefix the tie at t is local and one token less of t is remote."""
    prompt = fresh_ids(300)
    async with standin_system(tmp_path) as system:
        await system.order("PUT", "threshold", {"mode": "off"})
        await system.complete(prompt)
        cached = await known(system, prompt, "east", 200)
        for t, route in ((300 - cached, "local"), (300 - cached - 1, "prfaas")):
            await system.order("PUT", "threshold", {"mode": "manual", "tokens": t})
            assert routing(await system.complete(prompt))[0] == route


async def test_r54_a_prompt_cached_whole_has_an_uncached_token(tmp_path: Path) -> None:
    """A prompt of whole blocks, all cached, has at least one uncached token and stays local."""
    prompt = fresh_ids(320)
    async with standin_system(tmp_path, threshold=16) as system:
        await system.order("PUT", "override", {"route": "local"})
        await system.complete([*prompt, 1, 2, 3])
        await system.order("DELETE", "override")
        await known(system, prompt, "east", 304)
        response = await system.complete(prompt)
        assert routing(response) == ("local", "below_threshold")
        assert 1 <= int(response.headers["x-prfaas-uncached-tokens"]) <= 16


async def test_an_evicted_prefix_is_no_longer_counted(tmp_path: Path) -> None:
    """An engine that clears its cache makes the prompt uncached again: it goes away."""
    prompt = fresh_ids(300)
    async with standin_system(tmp_path) as system:
        await system.order("PUT", "override", {"route": "local"})
        await system.complete(prompt)
        await system.order("DELETE", "override")
        await known(system, prompt, "east", 200)
        await system.client.post(f"{system.host('p0').url}/reset_prefix_cache")
        await system.complete(40)  # engines tell events with their next step
        await known(system, prompt, "east", 0, most=0)
        assert routing(await system.complete(prompt)) == ("prfaas", "above_threshold")


async def test_links_go_down_and_up(tmp_path: Path) -> None:
    """A link that is down keeps prompts local and their answers the same."""
    async with standin_system(tmp_path) as system:
        prompts = [fresh_ids(300) for _ in range(3)]
        routes = []
        for prompt, health in zip(prompts, ("up", "down", "up"), strict=True):
            await system.order("PUT", "links/west-east", {"health": health})
            response = await system.complete(prompt)
            assert response.status_code == 200
            routes.append(routing(response))
    assert routes == [
        ("prfaas", "above_threshold"),
        ("local", "link_down"),
        ("prfaas", "above_threshold"),
    ]


async def test_a_restarted_engine_is_believed_to_hold_nothing(tmp_path: Path) -> None:
    """After a restart nothing of the old cache is counted; what comes after it is."""
    prompt = fresh_ids(300)
    async with standin_system(tmp_path) as system:
        await system.order("PUT", "override", {"route": "local"})
        await system.complete(prompt)
        await system.order("DELETE", "override")
        await known(system, prompt, "east", 200)
        site = f"{system.host('d0').url}/standin/faults?instance=p0"
        await system.client.post(site, json={"restart": True, "down_seconds": 0.2})
        async with asyncio.timeout(10):
            while system.host("p0").restarts == 0:  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(0.01)
        await system.until(lambda state: all(i["ready"] for i in state["instances"]), within=10)
        await system.complete(40)
        await known(system, prompt, "east", 0, most=0)
        response = await system.complete(prompt)
        assert routing(response) == ("prfaas", "above_threshold")
        metrics = await system.metrics()
        assert metrics.total("index_truth_total", outcome="over") == 0


async def test_a_mixed_load_with_aborts_leaves_no_trace(tmp_path: Path) -> None:
    """Concurrent prompts that share prefixes, a quarter of them given up, all add up in the end."""
    chance = random.Random(5)
    bases = [fresh_ids(size) for size in (64, 160, 480, 1000)]
    names = "p0 p1 d0 d1 f0 f1"
    async with standin_system(tmp_path, groups=RECURRENT, names=names, time_scale=10) as system:

        async def ask() -> None:
            await asyncio.sleep(chance.random())
            prompt = chance.choice(bases) + fresh_ids(chance.choice([5, 40, 130]))
            streamed = chance.random() < 0.5
            if chance.random() < 0.25:
                body = {"model": "tiny", "prompt": prompt, "max_tokens": 200, "stream": streamed}
                async with calling(system.url) as client:
                    await client.ask("/v1/completions", body)
                    await asyncio.sleep(chance.random() * 0.05)
                return
            response = await system.complete(prompt, stream=streamed, max_tokens=20)
            assert response.status_code == 200
            assert '"error"' not in response.text

        await asyncio.gather(*(ask() for _ in range(120)))
        await system.settled()
        metrics = await system.metrics()
        assert metrics.total("index_truth_total", outcome="exact") > 50
        assert metrics.total("index_truth_total", outcome="over") == 0
        assert metrics.total("upstream_errors_total") == metrics.total("fallbacks_total") == 0
        state = await system.order("GET", "state")
        assert {source["state"] for source in state["index"]["sources"]} == {"synced"}
        hosts = [host for each in system.clusters.values() for host in each.engines.values()]
        async with asyncio.timeout(60):  # a decode leg that was cut unread leaves it to the lease
            while any(host.describe()["blocks_used"] for host in hosts):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)


# -- thresholds


async def test_a_threshold_applies_to_the_next_request(tmp_path: Path) -> None:
    """PUT threshold changes the next decision, shows its author, and `config` takes it back."""
    async with scripted_system(tmp_path, threshold=100) as system:
        shown = await system.order("PUT", "threshold", {"mode": "manual", "tokens": 1000})
        assert (shown["effective_tokens"], shown["source"]) == (1000, "operator")
        assert shown["updated_by"] == "loopback"
        assert datetime.fromisoformat(shown["updated_at"]) <= datetime.now(UTC)
        response = await system.complete(1000)
        assert routing(response) == ("local", "below_threshold")
        assert response.headers["x-prfaas-threshold"] == "1000"
        labels = {"model": "tiny", "prfaas": "west", "pd": "east"}
        assert (await system.metrics()).total("threshold_tokens", **labels) == 1000
        back = await system.order("PUT", "threshold", {"mode": "config"})
        assert (back["effective_tokens"], back["source"]) == (100, "config")
        assert back["updated_at"] is None
        assert routing(await system.complete(101)) == ("prfaas", "above_threshold")


async def test_thresholds_of_pairs(tmp_path: Path) -> None:
    """An order for a pair wins over a general one; a later general one replaces it."""
    pair = "threshold?model=tiny&prfaas=west&pd=east"
    async with scripted_system(tmp_path) as system:
        await system.order("PUT", "threshold", {"mode": "manual", "tokens": 200})
        shown = await system.order("GET", pair)
        assert (shown["effective_tokens"], shown["source"]) == (200, "operator")
        await system.order("PUT", pair, {"mode": "manual", "tokens": 300})
        assert routing(await system.complete(300)) == ("local", "below_threshold")
        assert routing(await system.complete(301)) == ("prfaas", "above_threshold")
        assert (await system.order("GET", "threshold"))["effective_tokens"] == 200
        assert (await system.order("GET", "threshold"))["pairs"] == [
            {
                "model": "tiny",
                "prfaas": "west",
                "pd": "east",
                "mode": "manual",
                "effective_tokens": 300,
                "solved_tokens": None,
            }
        ]
        await system.order("PUT", pair, {"mode": "config"})
        assert (await system.order("GET", pair))["effective_tokens"] == 200
        await system.order("PUT", pair, {"mode": "off"})
        assert routing(await system.complete(5000)) == ("local", "disabled")
        await system.order("PUT", "threshold", {"mode": "manual", "tokens": 50})
        assert routing(await system.complete(51)) == ("prfaas", "above_threshold")


async def test_auto_that_solved_nothing_uses_the_configured_number(tmp_path: Path) -> None:
    """Mode auto without a solution has the configured t and says that none was solved."""
    model = {"profiles": {"prfaas": "./profile.yaml", "pd": "./profile.yaml"}}
    async with scripted_system(tmp_path, model=model) as system:
        shown = await system.order("PUT", "threshold", {"mode": "auto"})
        assert (shown["mode"], shown["effective_tokens"]) == ("auto", 100)
        assert shown["solved_tokens"] is None
        assert shown["bounds"] == {"min_tokens": 512, "max_tokens": 131072}
        assert routing(await system.complete(101)) == ("prfaas", "above_threshold")


async def test_a_local_fallback_tells_the_threshold_in_force(tmp_path: Path) -> None:
    """After a failed remote prefill the answer still tells the t that was compared."""
    async with scripted_system(tmp_path) as system:
        await system.order("PUT", "threshold?pd=east", {"mode": "manual", "tokens": 7})
        await system.engine("f0").stop()
        response = await system.complete(500)
        assert routing(response)[0] == "local"
        assert response.headers["x-prfaas-threshold"] == "7"


async def test_an_override_expires(tmp_path: Path) -> None:
    """An override with a time to live is shown with what is left of it, and ends by itself."""
    async with scripted_system(tmp_path) as system:
        shown = await system.order("PUT", "override", {"route": "prfaas", "ttl_seconds": 0.3})
        (order,) = shown["overrides"]
        assert 0 < order["ttl_seconds"] <= 0.3
        assert routing(await system.complete(10)) == ("prfaas", "override")
        await system.until(lambda state: not state["overrides"])
        assert routing(await system.complete(10)) == ("local", "below_threshold")


async def test_the_most_specific_override_wins(tmp_path: Path) -> None:
    """An override of a model or tenant wins over everybody's, and is cleared by its scope."""
    async with scripted_system(tmp_path, model={"aliases": ["little"]}) as system:
        await system.order("PUT", "override", {"route": "local"})
        await system.order("PUT", "override", {"route": "prfaas", "model": "little"})
        assert routing(await system.complete(10)) == ("prfaas", "override")
        await system.order("PUT", "override", {"route": "local", "tenant": "default"})
        left = await system.order("DELETE", "override?tenant=default")
        assert [(o["model"], o["tenant"]) for o in left["overrides"]] == [
            (None, None),
            ("tiny", None),
        ]
        await system.order("DELETE", "override")
        assert routing(await system.complete(10)) == ("local", "below_threshold")


# -- regimes and telemetry


async def test_regimes_can_be_fixed(tmp_path: Path) -> None:
    """The operator's regime is in the next decision; without shipping it is the scarce rule."""
    async with scripted_system(tmp_path) as system:
        for mode, regime in (("abundant", "abundant"), ("scarce", "scarce"), ("auto", "scarce")):
            shown = await system.order("PUT", "bandwidth", {"mode": mode})
            assert shown["mode"] == mode
            response = await system.complete(101)
            assert routing(response) == ("prfaas", "above_threshold")
            document = (await system.decisions("limit=1"))[0]
            assert document["regime"] == regime
            assert document["prefix_transfer"] is None
        one = await system.order("PUT", "bandwidth?link=west-east", {"mode": "abundant"})
        assert one["links"][0]["mode"] == "abundant"
        back = await system.order("PUT", "bandwidth", {"mode": "config"})
        assert back["mode"] == "auto"


async def test_utilisation_turns_the_regime_with_hysteresis(tmp_path: Path) -> None:
    """Abundant under 0.6, scarce over 0.8, and between them as it was."""
    async with scripted_system(tmp_path) as system:
        seen = []
        for egress in (0.7, 0.5, 0.7, 0.9, 0.7, 0.59):
            shown = await system.order("POST", LINK, {"egress_gbps": egress})
            assert shown["utilization"] == pytest.approx(egress)
            seen.append(shown["regime"])
        assert seen == ["scarce", "abundant", "abundant", "scarce", "scarce", "abundant"]
        await system.complete(101)
        document = (await system.decisions("limit=1"))[0]
        assert document["regime"] == "abundant"
        assert document["link"]["utilization"] == pytest.approx(0.59)
        metrics = await system.metrics()
        assert metrics.total("link_utilization_ratio") == pytest.approx(0.59)
        assert metrics.total("link_egress_bytes_per_second") == pytest.approx(0.59e9 / 8)


async def test_telemetry_has_an_age(tmp_path: Path) -> None:
    """Old reports are not acted on, reports from the future count as now, the latest one counts."""
    async with scripted_system(tmp_path) as system:
        old = (datetime.now(UTC) - timedelta(seconds=60)).isoformat()
        shown = await system.order("POST", LINK, {"egress_gbps": 0.9, "observed_at": old})
        assert shown["utilization"] is None
        assert shown["telemetry"]["age_seconds"] >= 60
        soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        shown = await system.order("POST", LINK, {"egress_gbps": 0.3, "observed_at": soon})
        assert shown["utilization"] == pytest.approx(0.3)
        assert shown["telemetry"]["age_seconds"] < 5
        shown = await system.order("POST", LINK, {"egress_gbps": 0.9, "observed_at": old})
        assert shown["utilization"] == pytest.approx(0.3)
        shown = await system.order("POST", LINK, {"egress_gbps": 0.4})
        assert shown["utilization"] == pytest.approx(0.4)


async def test_capacity_and_loss_shrink_what_a_link_carries(tmp_path: Path) -> None:
    """The operator's capacity, reported bandwidth and loss bound what may be booked."""
    async with scripted_system(tmp_path) as system:
        shown = await system.order("PUT", "links/west-east", {"capacity_gbps": 0.5})
        assert (shown["capacity_gbps"], shown["configured_capacity_gbps"]) == (0.5, 1)
        report = {"egress_gbps": 0.1, "available_gbps": 0.4, "loss_ratio": 0.5}
        shown = await system.order("POST", LINK, report)
        assert shown["usable_gbps"] == pytest.approx(0.2)
        assert shown["free_bytes"] == pytest.approx(0.2e9 / 8 * 30)
        shown = await system.order("PUT", "links/west-east", {"capacity_gbps": None})
        assert shown["capacity_gbps"] == 1


# -- dry runs


async def test_explain_sends_logs_and_counts_nothing(tmp_path: Path) -> None:
    """A dry run leaves no trace at engines, in the log or in the counters."""
    async with scripted_system(tmp_path) as system:
        before = (await system.metrics()).total("decisions_total")
        for body in (
            {"total_tokens": 500},
            {"prompt": fresh_ids(500)},
            {"messages": [{"role": "user", "content": "Hello"}]},
        ):
            assert (await explained(system, **body))["request_id"]
        assert await system.decisions() == []
        assert (await system.metrics()).total("decisions_total") == before == 0
        assert (await system.metrics()).total("prompt_tokens_total") == 0
        assert not any(engine.calls for engine in system.engines.values())


async def test_explain_supposes_what_is_cached(tmp_path: Path) -> None:
    """Null and missing are unknown and count nothing; a number counts; nobody's cluster is 400."""
    async with scripted_system(tmp_path, threshold=18_000) as system:
        kept = await explained(system, total_tokens=30_000, cached_tokens={"east": 12_000})
        assert (kept["route"], kept["uncached_tokens"]) == ("local", 18_000)
        assert kept["cached_tokens"] == {"east": 12_000, "west": None}
        assert kept["cache_state"] == {"east": "synced", "west": "unknown"}
        for cached in ({}, {"east": None}, {"east": 11_999}, {"west": 29_999}):
            sent = await explained(system, total_tokens=30_000, cached_tokens=cached)
            assert sent["route"] == "prfaas"
        assert sent["compute_uncached_tokens"] == 1
        for cached, status in (({"east": 30_000}, 400), ({"east": -1}, 400), ({"mars": 1}, 400)):
            answer = await system.admin(
                "POST", "decisions:explain", {"total_tokens": 30_000, "cached_tokens": cached}
            )
            assert answer.status_code == status


async def test_explain_supposes_thresholds_and_regimes(tmp_path: Path) -> None:
    """What-ifs change the answer and nothing else."""
    async with scripted_system(tmp_path) as system:
        supposed = await explained(system, total_tokens=500, threshold=500, regime="abundant")
        assert (supposed["route"], supposed["reason"]) == ("local", "below_threshold")
        assert (supposed["threshold"], supposed["regime"]) == (500, "abundant")
        await system.order("PUT", "threshold", {"mode": "off"})
        assert (await explained(system, total_tokens=500, threshold=1))["route"] == "prfaas"
        assert (await explained(system, total_tokens=500))["reason"] == "disabled"


async def test_explain_agrees_with_the_request_that_follows(tmp_path: Path) -> None:
    """A dry run of a prompt tells the very decision that the prompt then gets."""
    async with standin_system(tmp_path) as system:
        prompt = fresh_ids(300)
        for _ in range(2):
            told = await explained(system, prompt=prompt)
            await system.complete(prompt)
            made = (await system.decisions("limit=1"))[0]
            for document in (told, made):
                del document["request_id"], document["at"], document["queue_seconds"]
            assert told == made
            await known(system, prompt, "west", 200)
            await system.settled()


# -- instances


async def test_an_added_engine_gets_traffic_and_is_listened_to(tmp_path: Path) -> None:
    """POST instances lets an engine join: probed, routed to, its events in the index."""
    spec = ClusterSpec("east", (standin("p9", Role.PREFILL),), time_scale=100.0)
    async with (
        standin_system(tmp_path) as system,
        serve_cluster(spec, tokenizer=shipped_tokenizer()) as extra,
    ):
        entry = entry_of(extra.engines["p9"]) | {"cluster": "east"}
        answer = await system.admin("POST", "instances", entry)
        assert answer.status_code == 201
        assert (await system.admin("POST", "instances", entry)).status_code == 409
        await system.until(
            lambda state: (
                any(i["name"] == "p9" and i["ready"] for i in state["instances"])
                and states_of(state).get("p9") == "synced"
            )
        )
        await system.order("PATCH", "instances/p0", {"state": "draining"})
        prompt = fresh_ids(90)
        response = await system.complete(prompt)
        assert response.headers["x-prfaas-prefill"] == "p9"
        await known(system, prompt, "east", 64)
        await system.order("DELETE", "instances/p9")
        state = await system.order("GET", "state")
        assert "p9" not in {source["instance"] for source in state["index"]["sources"]}
        assert "p9" not in {instance["name"] for instance in state["instances"]}
        metrics = await system.metrics()
        assert metrics.total("index_blocks", instance="p9") == 0
        assert not any(
            sample.labels.get("instance") == "p9"
            for sample in metrics.samples
            if sample.name in ("prfaas_instance_up", "prfaas_index_source_state")
        )


async def test_instances_drain_are_disabled_and_change_roles(tmp_path: Path) -> None:
    """PATCH takes an instance out, brings it back and changes what it is used for."""
    async with scripted_system(tmp_path, names="p0 p1 d0 f0") as system:

        async def used() -> str:
            return (await system.complete(10)).headers["x-prfaas-prefill"]

        assert await used() == "p0"
        for state in ("draining", "disabled"):
            shown = await system.order("PATCH", "instances/p0", {"state": state})
            assert (shown["state"], shown["ready"]) == (state, False)
            assert await used() == "p1"
            assert (await system.metrics()).total("instance_up", instance="p0") == 0
        await system.order("PATCH", "instances/p0", {"state": "active"})
        assert await used() == "p0"
        shown = await system.order("PATCH", "instances/p0", {"role": "decode"})
        assert shown["role"] == "decode"
        assert await used() == "p1"
        assert (await system.admin("PATCH", "instances/f0", {"role": "both"})).status_code == 409
        assert (await system.order("GET", "instances"))["instances"][0]["role"] == "decode"


async def test_a_drained_engine_finishes_what_it_has(tmp_path: Path) -> None:
    """A removed instance's running request ends as if nothing had happened."""
    async with scripted_system(tmp_path, names="p0 d0 d1 f0") as system:
        gate = asyncio.Event()
        hold_until(system.engine("d0"), gate)
        running = asyncio.create_task(system.complete(10))
        await system.engine("d0").called()
        await system.order("DELETE", "instances/d0")
        assert (await system.complete(10)).headers["x-prfaas-decode"] == "d1"
        gate.set()
        response = await running
        assert (response.status_code, response.headers["x-prfaas-decode"]) == (200, "d0")


def hold_until(engine: LiveEngine, gate: asyncio.Event) -> None:
    """Let an engine answer its next completion only after `gate`."""
    engine.then(lambda request: [Until(gate), *engine._complete(request)])


async def test_a_dead_engine_is_out_and_comes_back(tmp_path: Path) -> None:
    """Failed probes take an engine out of the routes, successes bring it back, without a flap."""
    async with standin_system(tmp_path, names="p0 p1 d0 f0") as system:
        site = f"{system.host('p1').url}/standin/faults?instance=p0"
        await system.client.post(site, json={"dead": "refuse"})
        await system.until(lambda state: state["instances"][0]["alive"] is False)
        response = await system.complete(10)
        assert (response.status_code, response.headers["x-prfaas-prefill"]) == (200, "p1")
        await system.client.post(site, json={"dead": None})
        await system.until(lambda state: state["instances"][0]["alive"] is True)
        metrics = await system.metrics()
        assert metrics.total("instance_transitions_total", instance="p0") == 2


async def test_r66_alternating_probes_change_nothing(tmp_path: Path) -> None:
    """An engine whose health answers well and badly in turn stays in, without a transition."""
    async with scripted_system(tmp_path) as system:
        engine = system.engine("p0")
        verdicts = itertools.cycle((503, 200))
        engine.on("/health", lambda _: answer(next(verdicts)))
        await engine.received(len(engine.requests) + 20)
        state = await system.order("GET", "state")
        assert (state["instances"][0]["alive"], state["instances"][0]["transitions"]) == (True, 0)


async def test_r36_a_silent_engine_is_out_after_its_failed_probes(tmp_path: Path) -> None:
    """An engine that takes connections and says nothing gets no traffic, and readiness knows."""
    probe = {"interval_seconds": 0.05, "timeout_seconds": 0.1}
    async with scripted_system(tmp_path, names="p0 d0 d1 f0", upstream={"probe": probe}) as system:

        async def silence(name: str) -> None:
            system.engine(name).on("/health", [Hold()])
            await system.until(
                lambda state: any(
                    each["name"] == name and not each["ready"] for each in state["instances"]
                )
            )

        await silence("d0")
        for _ in range(3):
            assert (await system.complete(10)).headers["x-prfaas-decode"] == "d1"
        assert (await system.client.get("/ready")).status_code == 200
        await silence("d1")
        assert (await system.client.get("/ready")).status_code == 503
        began = asyncio.get_running_loop().time()
        response = await system.complete(10)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert asyncio.get_running_loop().time() - began < 10
        system.engine("d0").on("/health", answer(200))
        await system.until(
            lambda state: any(i["name"] == "d0" and i["ready"] for i in state["instances"])
        )
        assert (await system.complete(10)).status_code == 200


async def test_a_breaker_keeps_the_cost_off_later_requests(tmp_path: Path) -> None:
    """After enough failures an engine gets no more requests; after the cool-down one trial."""
    breaker = {"failures": 2, "cooldown_seconds": 1}
    async with scripted_system(tmp_path, upstream={"breaker": breaker}) as system:
        engine = system.engine("f0")
        engine.reply(answer(500, b"{}"))
        reasons = [routing(await system.complete(500))[1] for _ in range(4)]
        assert reasons == ["remote_prefill_failed"] * 2 + ["remote_unavailable"] * 2
        assert len(engine.calls) == 2
        assert (await system.metrics()).total("instance_breaker_open", instance="f0") == 1
        engine.reply(engine._complete)
        await system.until(lambda state: all(instance["ready"] for instance in state["instances"]))
        assert routing(await system.complete(500)) == ("prfaas", "above_threshold")
        assert (await system.metrics()).total("instance_breaker_open") == 0


# -- several clusters


async def test_every_pair_of_clusters_is_a_candidate(tmp_path: Path) -> None:
    """Each (PrfaaS, PD) pair has its own threshold and link; the nearest to be taken is told."""
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(LiveEngine(name))
            for name in ("p0", "d0", "north0", "west0")
        }

        def entry(name: str, role: str = "prefill") -> dict[str, Any]:
            return {"name": name, "url": engines[name].url, "role": role}

        clusters = [
            {"name": "east", "kind": "pd", "instances": [entry("p0"), entry("d0", "decode")]},
            {"name": "north", "kind": "prfaas", "instances": [entry("north0")]},
            {"name": "west", "kind": "prfaas", "instances": [entry("west0")]},
        ]
        links = [
            {"name": f"{name}-east", "from": name, "to": "east", "capacity_gbps": 1}
            for name in ("north", "west")
        ]
        document = describe(clusters, threshold=100, model={}, links=links)
        path = write_configuration(tmp_path, document)
        system = await stack.enter_async_context(serve_gateway(path, engines=engines))

        async def ask(size: int) -> tuple[str, str]:
            response = await system.complete(size)
            return response.headers["x-prfaas-prefill"], response.headers["x-prfaas-threshold"]

        assert await ask(101) == ("north0", "100")  # a tie goes by name
        await system.order("PUT", "threshold?prfaas=north", {"mode": "manual", "tokens": 500})
        assert await ask(101) == ("west0", "100")
        await system.order("PUT", "links/west-east", {"health": "down"})
        assert await ask(501) == ("north0", "500")
        assert (await ask(101))[0] == "p0"
        assert (await system.decisions("limit=1"))[0]["reason"] == "link_down"
        await system.order("PUT", "links/west-east", {"health": "up"})
        await system.order("PUT", "threshold?prfaas=west", {"mode": "off"})
        assert await ask(500) == ("p0", "500")
        await system.order("PUT", "override", {"route": "prfaas"})
        assert (await ask(10))[0] == "north0"
        await system.order("DELETE", "override")
        assert await ask(501) == ("north0", "500")
        document = (await system.decisions("limit=1"))[0]
        assert document["cached_tokens"].keys() == {"east", "north", "west"}
        await system.order("PUT", "threshold?prfaas=north", {"mode": "off"})
        await ask(501)
        assert (await system.decisions("limit=1"))[0]["reason"] == "disabled"
