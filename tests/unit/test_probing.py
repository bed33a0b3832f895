"""Probes: who lives is noticed, and told to whoever reads the log at night."""

from __future__ import annotations

import logging

import pytest

from router.control.health import ProbeRules
from router.domain.topology import Cluster, ClusterKind, Instance, Role
from router.domain.units import Seconds
from router.service.fleet import Fleet, FleetRules
from router.service.probing import ProbeOutcome, Prober
from tests.fakes.clocks import FakeClock


class ScriptedProbe:
    """Finds every engine as `healthy` says."""

    def __init__(self) -> None:
        self.healthy = True

    async def probe(self, instance: Instance, at: Seconds) -> ProbeOutcome:  # noqa: ARG002 - the protocol's
        return ProbeOutcome(healthy=self.healthy)


async def test_an_instance_that_goes_and_comes_is_logged_once_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line when it is down, one when it is back, none for probes that change nothing."""
    caplog.set_level(logging.INFO, logger="router.service.probing")
    clock, probe = FakeClock(), ScriptedProbe()
    fleet = Fleet(
        [Cluster("pd", ClusterKind.PD)],
        [Instance("d0", "pd", "http://127.0.0.1:1", Role.DECODE)],
        clock=clock,
        rules=FleetRules(probe=ProbeRules(failures=3, successes=2)),
    )
    prober = Prober(fleet, probe, clock=clock, interval=1.0)
    for healthy in (True, False, False, False, False, True, True, True):
        probe.healthy = healthy
        await prober.probe_all()
    told = [(record.levelname, record.message) for record in caplog.records]
    assert told == [("WARNING", "instance d0 is down"), ("INFO", "instance d0 is alive again")]
