"""A small fleet with decode slots, its clock in the test's hand, and those who wait for a slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from router.control.admission import AdmissionRules, Lane
from router.domain.topology import Cluster, ClusterKind, Instance, Role
from router.service.admission import Admission, OwnSlots, Slot
from router.service.fleet import Fleet
from router.service.tenants import Tenant
from tests.fakes.clocks import FakeClock

TINY = Lane("tiny")
TENANT = Tenant("acme")


class Waits:
    """An `AdmissionHook` that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float]] = []

    def waited(self, tenant: str, elapsed: float) -> None:
        self.seen.append((tenant, elapsed))


class Scene:
    """A fleet of decode instances `d0 d1` in `east`, `e0` in `far`; all alive."""

    def __init__(
        self, slots: int | None = 2, *, names: str = "d0", size: int = 100, timeout: float = 5.0
    ) -> None:
        self.clock = FakeClock()
        homes = {name: "far" if name[0] == "e" else "east" for name in names.split()}
        clusters = [Cluster(name, ClusterKind.PD) for name in ("east", "far")]
        instances = [
            Instance(name=name, url="http://x", role=Role.DECODE, cluster=home)
            for name, home in homes.items()
        ]
        self.fleet = Fleet(clusters, instances, clock=self.clock)
        for name in homes:
            self.fleet.record_probe(name, ok=True)
        self.waits = Waits()
        self.admission = Admission(
            self.fleet,
            {"tiny": slots},
            source=OwnSlots(self.fleet),
            clock=self.clock,
            hook=self.waits,
            rules=AdmissionRules(size, timeout / 2),
            timeout=timeout,
        )

    async def admit(self, lane: Lane = TINY, tenant: Tenant = TENANT, priority: int = 0) -> Slot:
        return await self.admission.admit(tenant, priority, lane, since=self.clock.monotonic())

    def ask(
        self, lane: Lane = TINY, tenant: Tenant = TENANT, priority: int = 0
    ) -> asyncio.Task[Slot]:
        return asyncio.create_task(self.admit(lane, tenant, priority))

    def die(self, name: str) -> None:
        for _ in range(3):
            self.fleet.record_probe(name, ok=False)

    @asynccontextmanager
    async def waiting(self, count: int = 1, lane: Lane = TINY) -> AsyncIterator[asyncio.Task[Slot]]:
        """So many more that wait; the first of them."""
        tasks = [self.ask(lane) for _ in range(count)]
        await settled()
        assert not any(task.done() for task in tasks)
        try:
            yield tasks[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def settled() -> None:
    """Let everything that can run, run."""
    for _ in range(10):
        await asyncio.sleep(0)
