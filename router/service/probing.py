"""Asks every instance about once a second how it is: its health and its queue."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from router.domain.topology import Instance
from router.domain.units import Seconds
from router.ports import Clock
from router.service.fleet import EngineReading, Fleet, Member

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """What one probe found. `reading` is None where metrics could not be read."""

    healthy: bool
    reading: EngineReading | None = None


class EngineProbe(Protocol):
    """Asks one engine. Never raises for what the engine does."""

    async def probe(self, instance: Instance, at: Seconds) -> ProbeOutcome:
        """Return the engine's health and queue; bounded by the adapter's time-out."""
        ...


class Prober:
    """Probes the whole fleet at an interval, all instances side by side."""

    def __init__(
        self, fleet: Fleet, probe: EngineProbe, *, clock: Clock, interval: Seconds
    ) -> None:
        self._fleet = fleet
        self._probe = probe
        self._clock = clock
        self._interval = interval
        self._asking: set[str] = set()

    async def run(self) -> None:
        """Probe until cancelled. A slow instance delays no other one."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for member in list(self._fleet.members):
                    if member.instance.name not in self._asking:
                        tasks.create_task(self._ask(member))
                await asyncio.sleep(self._interval)

    async def probe_all(self) -> None:
        """Probe every instance once, so that a gateway that starts knows who lives."""
        async with asyncio.TaskGroup() as tasks:
            for member in list(self._fleet.members):
                tasks.create_task(self._ask(member))

    async def _ask(self, member: Member) -> None:
        name = member.instance.name
        self._asking.add(name)
        try:
            outcome = await self._probe.probe(member.instance, self._clock.monotonic())
        except Exception:  # noqa: BLE001 - a task's root: one odd engine must not end all probes
            _LOG.exception("the probe of %s failed", name)
            outcome = ProbeOutcome(healthy=False)
        finally:
            self._asking.discard(name)
        known = member.health.alive
        self._fleet.record_probe(name, ok=outcome.healthy, reading=outcome.reading)
        alive = member.health.alive
        if alive is not known and (known, alive) != (None, True):
            level = logging.INFO if alive else logging.WARNING
            _LOG.log(level, "instance %s is %s", name, "alive again" if alive else "down")
