"""Late binding in the gateway against late binding in the simulator: one rule, two shells.

Both get the same prompts at the same times on the paper's case study, one through the calendar of
`router.sim`, the other through the gateway's queue, snapshots and places on a clock that is moved.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

import pytest

from router.control.slack import SlackRules
from router.domain.decision import Rule, ThresholdMode
from router.domain.topology import ClusterKind
from router.domain.units import BytesPerSecond, from_gbps
from router.service.late_binding import BindingRules
from router.service.operator import ThresholdRules
from router.service.places import Place
from router.sim.arrivals import Arrivals, GammaArrivals, PoissonArrivals
from router.sim.plants import DecodeSpec, LinkSpec, PlantSpec, PoolSpec, RuleSpec
from router.sim.simulations import Simulation
from router.sim.traffic import Demand
from tests.fakes.plants import H20, H200, a_reference, demands
from tests.fakes.slack_benches import SlackBench, settle

COUNT = 400
THRESHOLD = 19_606
FAT = from_gbps(10_000)
"""No hand-off takes longer than its prefill: how bytes share a link is not what is compared."""

Bound = dict[int, tuple[str, float]]
"""Prompt -> the instance that it was bound to, and when."""


def simulate(traffic: list[Demand], rules: SlackRules) -> Bound:
    """Have the simulator bind them."""
    plant = PlantSpec(
        (
            PoolSpec("pd", ClusterKind.PD, H20, 3, 1),
            PoolSpec("prfaas", ClusterKind.PRFAAS, H200, 4),
        ),
        (LinkSpec("wire", "prfaas", FAT),),
        DecodeSpec(None, 1e-9),
        RuleSpec(Rule.SLACK, rules, tokens=THRESHOLD),
        BytesPerSecond(1e18),
    )
    records = Simulation(plant, iter(traffic), COUNT, a_reference(plant)).run()
    return {record.number: (record.prefill, record.started) for record in records}


class Drive:
    """The gateway's shell, with prompts and prefills that come and end by the clock."""

    def __init__(self, rules: SlackRules) -> None:
        self.bench = SlackBench(
            prefills="pd-p0 pd-p1 pd-p2",
            remotes="prfaas-p0 prfaas-p1 prfaas-p2 prfaas-p3",
            capacity=FAT,
            profiles={ClusterKind.PD: H20, ClusterKind.PRFAAS: H200},
            rules=BindingRules(slack=rules, timeout=1e9),
        )
        self.bench.operator.rules = ThresholdRules(ThresholdMode.MANUAL, THRESHOLD)
        self.bound: Bound = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), what))

    async def run(self) -> Bound:
        """Do everything at its time; what follows from it without time comes before the next."""
        while self._due:
            when, _, what = heapq.heappop(self._due)
            self.bench.clock.seconds = when
            what()
            await settle()
        await asyncio.gather(*self._tasks)
        return self.bound

    def arrive(self, number: int, demand: Demand) -> None:
        self._tasks.append(asyncio.create_task(self._serve(number, demand.total)))

    async def _serve(self, number: int, tokens: int) -> None:
        place = await self.bench.ask(tokens)
        assert place is not None
        now = self.bench.clock.monotonic()
        self.bound[number] = (place.instance, now)
        self._compute(place, tokens, now)

    def _compute(self, place: Place, tokens: int, now: float) -> None:
        remote = place.instance.startswith("prfaas")
        kind = ClusterKind.PRFAAS if remote else ClusterKind.PD
        seconds = self.bench.model.prefill_seconds(kind, tokens)
        size = self.bench.snapshot(tokens).sizing.total
        assert size is not None
        booking = self.bench.links.book("wire", size) if remote else None
        self.bench.begin(place, seconds)

        def end() -> None:
            if booking is not None:
                booking.release()
            self.bench.end(place.instance)

        self.at(now + seconds, end)


@pytest.mark.parametrize(
    ("arrivals", "aging"),
    [(PoissonArrivals(2.9), 15.0), (GammaArrivals(2.4, 4.0), 15.0), (PoissonArrivals(3.4), 5.0)],
    ids=["poisson", "bursts", "overload"],
)
async def test_the_gateway_binds_as_the_simulator_does(arrivals: Arrivals, aging: float) -> None:
    """Every prompt to the same instance at the same moment."""
    rules = SlackRules(aging=aging, queue_size=10**6)
    traffic = list(itertools.islice(demands(arrivals, seed=7), COUNT))
    drive = Drive(rules)
    for number, demand in enumerate(traffic, 1):
        drive.at(demand.at, lambda number=number, demand=demand: drive.arrive(number, demand))  # type: ignore[misc]  # bound now
    last = traffic[-1].at
    for second in range(1, int(last) + 400):
        drive.at(float(second), drive.bench.binding.let_in)
    told, expected = await drive.run(), simulate(traffic, rules)
    assert {number: instance for number, (instance, _) in told.items()} == {
        number: instance for number, (instance, _) in expected.items()
    }
    for number, (_, when) in told.items():
        assert when == pytest.approx(expected[number][1], abs=1e-6)
