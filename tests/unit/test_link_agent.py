"""The agent that measures a host's egress and tells the gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import pytest

from router.adapters.clocks import SystemClock
from router.control.egress import Egress, HostReading
from router.domain.units import from_gbps
from router.gateway.admin_models import TelemetryBody
from router.service.link_agent import AgentRules, LinkAgent, NotTold, form_report

RULES = AgentRules(interval=0.001)


class Counters:
    """Counters that grow by a thousand bytes a reading, but for readings that fail."""

    def __init__(self, failing: frozenset[int] = frozenset()) -> None:
        self.readings = 0
        self._failing = failing

    def read(self, at: float) -> HostReading:
        self.readings += 1
        if self.readings in self._failing:
            raise FileNotFoundError("eth0 is gone")
        return HostReading(at, {"eth0": 1000 * self.readings})


class Door:
    """A gateway that takes what it is told while it is open."""

    def __init__(self, name: str, *, is_open: bool = True) -> None:
        self.url = f"http://{name}"
        self.is_open = is_open
        self.heard: list[Mapping[str, object]] = []
        self.tries = 0

    async def tell(self, document: Mapping[str, object]) -> None:
        self.tries += 1
        if not self.is_open:
            raise NotTold("no connection")
        self.heard.append(document)


async def until(what: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(20):
        while not what():  # noqa: ASYNC110 - nobody is told by counters
            await asyncio.sleep(0.001)


async def test_a_gateway_that_comes_back_hears_the_latest_alone() -> None:
    """Others are told meanwhile; nothing piles up, and tries grow rarer."""
    here, away = Door("here"), Door("away", is_open=False)
    counters = Counters()
    agent = LinkAgent(counters, [here, away], clock=SystemClock(), rules=RULES)
    told: list[Mapping[str, object]] = []
    running = asyncio.create_task(agent.run(told.append))
    await until(lambda: len(told) > 60)
    assert len(here.heard) > 5
    assert 0 < away.tries < len(told) / 2
    away.is_open = True
    before = len(told)
    await until(lambda: away.heard)
    assert told.index(away.heard[0]) >= before - 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_an_interface_that_goes_and_comes_is_unknown_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is told of the gap, and the log has it once."""
    caplog.set_level("INFO")
    counters = Counters(failing=frozenset({3, 4, 5}))
    told: list[Mapping[str, object]] = []
    running = asyncio.create_task(
        LinkAgent(counters, [], clock=SystemClock(), rules=RULES).run(told.append)
    )
    await until(lambda: counters.readings >= 9)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(told) <= counters.readings - 5
    assert [record.message for record in caplog.records] == [
        "the counters cannot be read: eth0 is gone",
        "the counters can be read again",
    ]


async def test_one_measurement_tells_what_every_gateway_said() -> None:
    """None where it was taken."""
    agent = LinkAgent(
        Counters(), [Door("a"), Door("b", is_open=False)], clock=SystemClock(), rules=RULES
    )
    document = await agent.measure()
    assert document is not None
    assert await agent.tell(document) == {"http://a": None, "http://b": "no connection"}


@pytest.mark.parametrize("ratio", [None, 0.25])
@pytest.mark.parametrize("rtt", [None, 0.031])
@pytest.mark.parametrize("available", [None, 40.0])
def test_a_report_is_what_the_admin_api_takes(
    ratio: float | None, rtt: float | None, available: float | None
) -> None:
    """What is unknown is left out, never told as 0."""
    egress = Egress(from_gbps(12), ratio, rtt)
    shaped = None if available is None else from_gbps(available)
    body = TelemetryBody.model_validate(
        dict(form_report(egress, shaped, datetime(2026, 11, 29, tzinfo=UTC)))
    )
    assert body.egress_gbps == 12
    assert body.available_gbps == available
    assert body.rtt_ms == (None if rtt is None else pytest.approx(31))
    assert body.retransmit_ratio == (ratio or 0.0)
