"""Threshold `auto` in a running gateway: solved from its own traffic, following the link."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fakes.systems import Document, System, routing, scripted_system

PROFILED = {"profiles": {"prfaas": "./profile.yaml", "pd": "./profile.yaml"}}
QUICK = {"short_loop": {"period_seconds": 0.05, "dwell_seconds": 0.1}}
AUTO = {"threshold": {"mode": "auto", "tokens": 100, "min_tokens": 16, "max_tokens": 4000}, **QUICK}


async def solved(system: System, *, above: int = -1, below: int = 10**9) -> Document:
    """Poll until a threshold is solved that lies between two bounds; return its document."""
    async with asyncio.timeout(30):
        while True:
            shown = await system.order("GET", "threshold")
            tokens = shown["solved_tokens"]
            if tokens is not None and above < tokens < below:
                return shown
            await asyncio.sleep(0.02)


async def spread_lengths(system: System) -> None:
    """Ask with 110 prompts of 20 to 2,200 tokens."""
    for i in range(110):
        await system.complete(20 * (i + 1))


async def test_auto_solves_from_what_it_saw_and_follows_the_link(tmp_path: Path) -> None:
    """After a hundred prompts t is solved; less bandwidth raises it, its return lowers it."""
    async with scripted_system(tmp_path, model=PROFILED, scheduler=AUTO) as system:
        assert (await system.order("GET", "threshold"))["effective_tokens"] == 100
        await spread_lengths(system)
        wide = await solved(system)
        tokens = wide["solved_tokens"]
        # Equal instances on both sides: each is to compute half, so t is far from either bound.
        assert 1000 < tokens < 2000
        assert wide["effective_tokens"] == tokens
        assert routing(await system.complete(tokens)) == ("local", "below_threshold")
        assert routing(await system.complete(tokens + 400)) == ("prfaas", "above_threshold")
        metrics = await system.metrics()
        assert metrics.total("threshold_solved_tokens") == tokens
        assert metrics.total("threshold_at_bound") == 0
        stages = [
            metrics.total("stage_capacity_requests_per_second", stage=stage)
            for stage in ("prfaas", "pd_p", "pd_d")
        ]
        assert all(rate > 0 for rate in stages)
        assert abs(metrics.total("balance_residual_ratio", equation="7")) < 0.1
        assert 0.2 < metrics.total("offload_share_ratio", kind="planned") < 0.4
        assert 0 < metrics.total("offload_share_ratio", kind="measured") <= 1

        # Phi_kv is 0.08 Gbit/s, so a link of 0.01 carries an eighth of what an instance makes.
        telemetry = {"egress_gbps": 0.0, "available_gbps": 0.01}
        await system.order("POST", "links/west-east/telemetry", telemetry)
        narrow = await solved(system, above=tokens + 100)
        await system.order("POST", "links/west-east/telemetry", {"egress_gbps": 0.0})
        await solved(system, below=narrow["solved_tokens"])


async def test_a_manual_threshold_is_not_moved(tmp_path: Path) -> None:
    """What was solved is told beside it, and only that."""
    async with scripted_system(
        tmp_path, model=PROFILED, scheduler={"threshold": {"tokens": 100}, **QUICK}
    ) as system:
        await spread_lengths(system)
        shown = await solved(system)
        assert shown["mode"] == "manual"
        assert shown["effective_tokens"] == 100
        assert routing(await system.complete(101)) == ("prfaas", "above_threshold")


async def test_gate_workload_asks_for_a_gain(tmp_path: Path) -> None:
    """Where offloading does not raise what is sustained by enough, prefills stay at home."""
    model = {**PROFILED, "gate": {"min_gain": 50}}
    async with scripted_system(tmp_path, model=model, scheduler=QUICK) as system:
        await spread_lengths(system)
        await solved(system)
        assert routing(await system.complete(5000)) == ("local", "gate_workload")
