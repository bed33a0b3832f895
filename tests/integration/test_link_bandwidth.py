"""Whose word on a link's bandwidth is in force in a running gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fakes.scripted_engine import Until
from tests.fakes.systems import Document, System, scripted_system

LINKS = [{"name": "west-east", "from": "west", "to": "east", "capacity_gbps": 1}]
PROFILED = {"profiles": {"prfaas": "./profile.yaml", "pd": "./profile.yaml"}}


async def source_is(system: System, source: str) -> Document:
    """Poll until somebody's word is in force; return the link."""
    async with asyncio.timeout(60):
        while True:
            link = await system.order("GET", "links/west-east")
            if link["usable_source"] == source:
                return link
            await asyncio.sleep(0.05)


async def test_a_hand_off_that_waits_tells_of_its_link(tmp_path: Path) -> None:
    """What is inferred shows, bounds what may be booked, and gives way to telemetry and orders."""
    async with scripted_system(tmp_path, model=PROFILED, links=LINKS) as system:
        assert (await source_is(system, "config"))["usable_gbps"] == 1
        ready = asyncio.Event()
        engine = system.engine("d0")
        engine.then(lambda request: [Until(ready), *engine._complete(request)])
        waiting = asyncio.create_task(system.complete(40_000, stream=True))
        link = await source_is(system, "inferred")
        # 40 MB that have had the link for two seconds and are not there yet.
        assert link["usable_gbps"] == link["inferred"]["available_gbps"] < 0.17
        assert 0 <= link["inferred"]["age_seconds"] < 60
        assert link["utilization"] is None
        assert link["regime"] == "scarce"
        gauge = (await system.metrics()).total("link_available_bytes_per_second")
        assert 0 < gauge < 21e6

        await system.order("POST", "links/west-east/telemetry", {"egress_gbps": 0.01})
        assert (await source_is(system, "inferred"))["utilization"] > 0.05
        told = {"egress_gbps": 0.01, "available_gbps": 0.5}
        await system.order("POST", "links/west-east/telemetry", told)
        assert (await source_is(system, "telemetry"))["usable_gbps"] == 0.5
        await system.order("PUT", "links/west-east", {"capacity_gbps": 0.25})
        assert (await source_is(system, "operator"))["usable_gbps"] == 0.25
        ready.set()
        assert (await waiting).status_code == 200
        await system.settled()
        assert (await system.metrics()).total("link_inflight_bytes") == 0
