"""What limits and admission add to a request: `python -m bench.admission_cost [--rounds N]`.

Prints microseconds of CPU a request, on one core: a visit of an unlimited tenant, of one with all
limits, and a place in a queue with many waiting before a slot is given.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from router.adapters.clocks import SystemClock
from router.adapters.metrics import PrometheusMetrics
from router.control.admission import AdmissionRules, FairQueue, Lane
from router.control.limits import TenantLimits
from router.domain.topology import Cluster, ClusterKind, Instance, Role
from router.service.admission import Admission, OwnSlots
from router.service.fleet import Fleet
from router.service.limits import MemoryLimits
from router.service.reservations import OwnRoom
from router.service.tenants import Tenant
from router.service.visits import Visits

LANE = Lane("m")


def make_visits(instances: int) -> Visits:
    """Return visits over a fleet of decode instances that are alive and never full."""
    clock = SystemClock()
    fleet = Fleet(
        [Cluster("east", ClusterKind.PD)],
        [
            Instance(f"d{number}", "east", "http://127.0.0.1:9", Role.DECODE)
            for number in range(instances)
        ],
        clock=clock,
    )
    for number in range(instances):
        fleet.record_probe(f"d{number}", ok=True)
    admission = Admission(
        fleet,
        {LANE.model: 1_000_000},
        source=OwnSlots(fleet),
        clock=clock,
        hook=PrometheusMetrics(),
        rules=AdmissionRules(),
        timeout=60.0,
    )
    return Visits(MemoryLimits(clock), admission, clock, OwnRoom())


def visiting(visits: Visits, tenant: Tenant) -> Callable[[], Awaitable[None]]:
    """Return one request's calls to limits and admission, in their order."""

    async def once() -> None:
        with visits.open(tenant) as visit:
            await visit.charge(1000)
            await visit.admit(LANE, tenant.priority)
            visit.full(LANE.model)
            visit.settle("d0")

    return once


async def measure(name: str, once: Callable[[], Awaitable[None]], rounds: int) -> None:
    """Print the mean CPU time of `once`."""
    for _ in range(rounds // 10):
        await once()
    began = time.process_time()
    for _ in range(rounds):
        await once()
    report(name, (time.process_time() - began) / rounds)


def measure_queue(tenants: int, waiting: int, rounds: int) -> None:
    """Print the mean CPU time of one join and one grant with `waiting` in the queue."""
    queue = FairQueue(AdmissionRules(waiting * 2))
    for number in range(waiting):
        queue.join(f"t{number % tenants}", 1.0, 0, LANE, 0.0)
    slots: list[str] = []

    def find(_: Lane) -> str | None:
        return slots.pop() if slots else None

    began = time.process_time()
    for number in range(rounds):
        queue.join(f"t{number % tenants}", 1.0, 0, LANE, 0.0)
        slots.append("d0")
        queue.grant(0.0, find)
    elapsed = (time.process_time() - began) / rounds
    report(f"queue, {waiting} waiting, {tenants} tenants", elapsed)


def report(name: str, seconds: float) -> None:
    """Print one line."""
    sys.stdout.write(f"{name:40} {seconds * 1e6:7.1f} us\n")


async def run(rounds: int) -> None:
    """Measure everything."""
    limited = Tenant("limited", limits=TenantLimits(10**6, 10**8, 10**8))
    for instances in (2, 8, 32):
        visits = make_visits(instances)
        fleet = f"{instances} decode instances"
        await measure(f"unlimited, {fleet}", visiting(visits, Tenant("open")), rounds)
        await measure(f"all limits, {fleet}", visiting(visits, limited), rounds)
    for tenants in (1, 10, 100):
        measure_queue(tenants, 1000, rounds // 10)


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20_000)
    asyncio.run(run(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
