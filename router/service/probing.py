"""Asks every instance about once a second how it is: its health and its queue.

A probe does not wait for the one before. An engine that hangs is so found out `failures - 1`
intervals after the first time-out, and not only after `failures` time-outs in a row. In return,
what is no evidence does not count:

- a probe that got no answer in a time in which the engine sent anything else: it is busy (R66);
- more than one failure an interval: after the gateway was suspended all are over at once;
- an answer that comes after that of a later probe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from router.domain.topology import Instance
from router.domain.units import Seconds
from router.ports import Clock, EngineLines
from router.service.fleet import Fleet
from router.service.members import EngineReading, Member

_LOG = logging.getLogger(__name__)

_MOST_PENDING: Final = 8
"""Probes of one instance under way: over the default time-out of five intervals, with room."""


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """What one probe found. `reading` is None where metrics could not be read.

    `answered` tells an engine that says it is unwell from one that says nothing.
    """

    healthy: bool
    answered: bool = True
    reading: EngineReading | None = None


class EngineProbe(Protocol):
    """Asks one engine. Never raises for what the engine does."""

    async def probe(self, instance: Instance, at: Seconds) -> ProbeOutcome:
        """Return the engine's health and queue; bounded by the adapter's time-out."""
        ...


@dataclass(slots=True)
class _Asked:
    """What was counted of an instance: when the latest probe was sent, and the last failure came.

    `pending` bounds the probes under way.
    """

    pending: int = 0
    sent_at: Seconds = -inf
    failed_at: Seconds = -inf


class ProbeHook(Protocol):
    """Watches probes; metrics hang here. Implementations never raise."""

    def probed(self, instance: Instance, *, changed: bool) -> None:
        """Told of each probe that counted, and whether it changed who is alive."""
        ...


class Prober:
    """Probes the whole fleet at an interval, all instances side by side."""

    def __init__(
        self,
        fleet: Fleet,
        probe: EngineProbe,
        *,
        clock: Clock,
        interval: Seconds,
        lines: EngineLines,
        hook: ProbeHook,
    ) -> None:
        self._hook = hook
        self._fleet = fleet
        self._probe = probe
        self._clock = clock
        self._interval = interval
        self._lines = lines
        self._asked: dict[str, _Asked] = {}

    async def run(self) -> None:
        """Probe until cancelled. A slow instance delays no other one."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                names = {member.instance.name for member in self._fleet.members}
                self._asked = {name: kept for name, kept in self._asked.items() if name in names}
                for member in list(self._fleet.members):
                    if self._of(member).pending < _MOST_PENDING:
                        tasks.create_task(self._ask(member))
                await asyncio.sleep(self._interval)

    async def examine(self, instances: Iterable[Instance]) -> Mapping[str, ProbeOutcome]:
        """Probe instances that are in no fleet yet, once; return what was found, by name."""
        asked = list(instances)
        found = await asyncio.gather(*(self._examine(each) for each in asked))
        return {each.name: outcome for each, outcome in zip(asked, found, strict=True)}

    async def _examine(self, instance: Instance) -> ProbeOutcome:
        try:
            return await self._probe.probe(instance, self._clock.monotonic())
        except Exception:  # noqa: BLE001 - a task's root, as below
            _LOG.exception("the probe of %s failed", instance.name)
            return ProbeOutcome(healthy=False)

    async def probe_all(self) -> None:
        """Probe every instance once, so that a gateway that starts knows who lives."""
        async with asyncio.TaskGroup() as tasks:
            for member in list(self._fleet.members):
                tasks.create_task(self._ask(member))

    def _of(self, member: Member) -> _Asked:
        return self._asked.setdefault(member.instance.name, _Asked())

    async def _ask(self, member: Member) -> None:
        name, asked = member.instance.name, self._of(member)
        sent_at = self._clock.monotonic()
        asked.pending += 1
        try:
            outcome = await self._probe.probe(member.instance, sent_at)
        except Exception:  # noqa: BLE001 - a task's root: one odd engine must not end all probes
            _LOG.exception("the probe of %s failed", name)
            outcome = ProbeOutcome(healthy=False)
        finally:
            asked.pending -= 1
        if self._counts(member, asked, outcome, sent_at):
            self._record(member, outcome)

    def _counts(
        self, member: Member, asked: _Asked, outcome: ProbeOutcome, sent_at: Seconds
    ) -> bool:
        """Whether an outcome is evidence (see the module); notes that it was counted."""
        now = self._clock.monotonic()
        if sent_at < asked.sent_at:
            return False
        if not outcome.healthy and member.health.alive is not None:
            heard = None if outcome.answered else self._lines.silence(member.instance.url)
            busy = heard is not None and heard < now - sent_at
            if busy or now - asked.failed_at < self._interval / 2:
                return False
            asked.failed_at = now
        asked.sent_at = sent_at
        return True

    def _record(self, member: Member, outcome: ProbeOutcome) -> None:
        """Tell the fleet, and the log of a verdict that changed."""
        name, known = member.instance.name, member.health.alive
        self._fleet.record_probe(
            name, ok=outcome.healthy, answered=outcome.answered, reading=outcome.reading
        )
        alive = member.health.alive
        self._hook.probed(member.instance, changed=known is not None and known is not alive)
        if alive is not known and (known, alive) != (None, True):
            level = logging.INFO if alive else logging.WARNING
            _LOG.log(level, "instance %s is %s", name, "alive again" if alive else "down")
