"""Why t solved anew does or does not help while a link starves: `python -m bench.starved_link`.

Simulates the plant of `make live` at several loads and link budgets, with t fixed and with t that
follows the link, and writes docs/benchmarks/starved-link.md. A minute or two of CPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product, takewhile
from pathlib import Path
from statistics import fmean
from typing import Final

from bench.live import plants
from bench.live.twins import STEPS, build_plant, promise, solve_for
from router.domain.units import BytesPerSecond, Seconds, Tokens, to_gbps
from router.sim.plants import LinkChange
from router.sim.records import Record
from router.sim.simulations import Simulation
from router.sim.statistics import Interval, estimate, find_quantile
from router.throughput.planner import solve_whole_threshold, tabulate
from router.throughput.stages import evaluate
from router.throughput.workloads import Split

PAGE: Final = Path(__file__).parent.parent / "docs/benchmarks/starved-link.md"
BUDGETS: Final[tuple[Seconds, ...]] = (5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Incident:
    """How long the link starves after its first minute, at which loads, over how many seeds.

    Loads are shares of what the plant sustains over the starved link with the best t.
    """

    title: str
    lasts: Seconds
    loads: tuple[float, ...]
    seeds: int

    @property
    def starves(self) -> Seconds:
        """When it begins."""
        return 60.0

    @property
    def whole(self) -> Seconds:
        """When it is over."""
        return self.starves + self.lasts


@dataclass(frozen=True, slots=True)
class Case:
    """One run: `follows` is whether t follows the link."""

    incident: Incident
    rate: float
    budget: Seconds
    follows: bool
    seed: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What those felt who asked while the link starved. Times are TTFT in seconds.

    `congested` is the share that the link's budget turned back, `gbps` what they sent over the
    link from the first one's arrival to the last one's end.
    """

    mean: Seconds
    p90: Seconds
    congested: float
    gbps: float


INCIDENTS: Final = (
    Incident("A minute", 60.0, (0.5, 0.7, 0.85, 1.0, 1.15, 1.45), 20),
    Incident("Twenty minutes", 1200.0, (0.5, 0.7, 0.85, 0.95), 5),
)

HEAD: Final = """# A link that starves, with t fixed and t solved anew

Made by `python -m bench.starved_link`; every figure is **modelled**: `router/sim` drives the
production rule, bookings and short loop over the plant of [live.md](live.md), whose link carries
{starved:g} instead of {whole:g} Gbit/s for a while. t is {before} before; solved for the starved
link it is {after}. By equation 6 the plant then sustains {best:.2f} requests/s with the solved t,
{stale:.2f} with t as it was, {local:.2f} without the link. Loads are shares of the first.

Times are TTFT in seconds of those who asked meanwhile; `budget` is
`scheduler.link_budget_seconds`. Intervals (±) are Student's 95 % over seeds, those of the
difference over pairs on the same requests. `congested` is the share that the budget turned back
(`link_congested`), `Gbit/s` what crossed until the last of them was answered.

## What to take from it

- The budget decides before t does. A hand-off is booked from its dispatch until its KV is there,
  so while it waits and computes too: up to 7.4 s for the longest prompts. Five seconds of a starved
  link are {small:.1f} GB, one such prompt and little beside it. The link idles while it is booked
  out, and who is turned back are the longest prompts, which take the home three times as long.
- A higher t makes that worse: it leaves fewer and larger hand-offs, which fit the budget worse. So
  with five seconds t solved anew loses to t fixed at every load, by more the nearer to capacity.
- With thirty seconds the link is used as equation 6 supposes. In the minute the ninth decile is
  then lower with t solved anew at every load; the mean is up to a second lower from 70 % to
  capacity, and a little higher at half the load, where the link has room for more than t lets over.
  Of twenty minutes the same is true up to 85 %; nearer to capacity either falls behind, since a few
  of the longest prompts are still turned back.
- The more the budget lets through, the more t fixed overloads the link, and the less t solved anew
  needs a budget. Thirty seconds, the default, is where both do well, and it bounds what is stuck
  when a link stops. Who keeps t fixed may want ten.
"""


def run_case(case: Case) -> Seen:
    """Simulate one case."""
    incident, threshold = case.incident, solve_for(plants.CAPACITY_GBPS, plants.LENGTHS)
    ends = incident.whole + 60.0
    traffic = plants.draw_traffic(case.rate, case.seed)
    demands = list(takewhile(lambda demand: demand.at < ends, traffic))
    records = Simulation(
        build_plant(threshold, case.budget),
        iter(demands),
        len(demands),
        promise(threshold),
        (
            LinkChange(incident.starves, plants.LINK, plants.link_rate(plants.STARVED_GBPS)),
            LinkChange(incident.whole, plants.LINK, plants.link_rate(plants.CAPACITY_GBPS)),
        ),
        _solve if case.follows else None,
        steps=STEPS,
    ).run()
    return _measure([each for each in records if incident.starves <= each.arrived < incident.whole])


def _measure(records: Sequence[Record]) -> Seen:
    waits = sorted(each.ttft for each in records)
    span = max(each.answered for each in records) - min(each.arrived for each in records)
    crossed = BytesPerSecond(sum(each.kv_bytes for each in records) / span)
    return Seen(
        fmean(waits),
        find_quantile(waits, 0.9),
        fmean([each.reason == "link_congested" for each in records]),
        to_gbps(crossed),
    )


def _solve(rates: Mapping[str, BytesPerSecond]) -> Tokens:
    return _solve_cached(round(to_gbps(rates[plants.PRFAAS]), 6))


@cache
def _solve_cached(gbps: float) -> Tokens:
    return solve_for(gbps, plants.LENGTHS)


def render(results: Mapping[Case, Seen], incidents: Sequence[Incident]) -> str:
    """Return the page."""
    deployment = plants.make_deployment(plants.STARVED_GBPS)
    table = tabulate(deployment, plants.LENGTHS)
    before = solve_for(plants.CAPACITY_GBPS, plants.LENGTHS)
    head = HEAD.format(
        starved=plants.STARVED_GBPS,
        whole=plants.CAPACITY_GBPS,
        before=before,
        after=solve_for(plants.STARVED_GBPS, plants.LENGTHS),
        best=sustained(),
        stale=evaluate(deployment, table.at(Split(float(before)))).rate,
        local=evaluate(deployment, table.at_share(1.0)).rate,
        small=BUDGETS[0] * plants.link_rate(plants.STARVED_GBPS) / 1e9,
    )
    return "\n".join([head, *(line for each in incidents for line in _table(each, results))])


def _table(incident: Incident, results: Mapping[Case, Seen]) -> Iterator[str]:
    yield f"## {incident.title} at {plants.STARVED_GBPS:g} Gbit/s, {incident.seeds} seeds"
    yield ""
    yield (
        "| load | budget | fixed: mean | P90 | congested | Gbit/s"
        " | solved: mean | P90 | congested | Gbit/s | solved - fixed, mean |"
    )
    yield "|---" * 11 + "|"
    for load, budget in product(incident.loads, BUDGETS):
        fixed, solved = (
            [
                results[Case(incident, load * sustained(), budget, follows, seed)]
                for seed in range(incident.seeds)
            ]
            for follows in (False, True)
        )
        more = estimate([b.mean - a.mean for a, b in zip(fixed, solved, strict=True)])
        cells = [f"{load:.0%}", f"{budget:g}", *_cells(fixed), *_cells(solved), _pm(more, "+")]
        yield "| " + " | ".join(cells) + " |"
    yield ""


def _cells(seen: Sequence[Seen]) -> list[str]:
    return [
        _pm(estimate([each.mean for each in seen])),
        f"{fmean(each.p90 for each in seen):.1f}",
        f"{fmean(each.congested for each in seen):.0%}",
        f"{fmean(each.gbps for each in seen):.1f}",
    ]


def _pm(interval: Interval, sign: str = "") -> str:
    return f"{interval.mean:{sign}.1f} ± {interval.half:.1f}"


@cache
def sustained() -> float:
    """Return Lambda_max over the starved link with the best t, in requests a second."""
    deployment = plants.make_deployment(plants.STARVED_GBPS)
    return solve_whole_threshold(deployment, tabulate(deployment, plants.LENGTHS)).rate


def list_cases(incidents: Sequence[Incident]) -> list[Case]:
    """Return every run that the page tells of."""
    return [
        Case(incident, load * sustained(), budget, follows, seed)
        for incident in incidents
        for load, budget in product(incident.loads, BUDGETS)
        for follows in (False, True)
        for seed in range(incident.seeds)
    ]


def main(arguments: list[str]) -> int:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args(arguments)
    cases = list_cases(INCIDENTS)
    with ProcessPoolExecutor(max_workers=given.jobs) as pool:
        results = dict(zip(cases, pool.map(run_case, cases, chunksize=8), strict=True))
    given.page.write_text(render(results, INCIDENTS).rstrip("\n") + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
