"""Several contestants over several seeds, in as many processes as wanted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from router.sim.lifelines import end_with_parent
from router.sim.statistics import Figures, Interval, combine, estimate
from router.sim.studies import Contestant, Study, measure_once


@dataclass(frozen=True, slots=True)
class Run:
    """One contestant on the requests of one seed."""

    study: Study
    contestant: Contestant
    seed: int


@dataclass(frozen=True, slots=True)
class Standing:
    """What one contestant did in all runs: each figure's mean and interval, and its runs."""

    contestant: Contestant
    figures: Mapping[str, Interval]
    runs: Sequence[Figures]


def run_all(
    runs: Sequence[Run], jobs: int, done: Callable[[Run], None]
) -> dict[tuple[str, Contestant, int], Figures]:
    """Run all; the results do not depend on `jobs`. `done` is told of each as it ends.

    Raises PlantFault where a study cannot be simulated.
    """
    if jobs == 1:
        results = {}
        for run in runs:
            results[_key(run)] = _run(run)
            done(run)
        return results
    results = {}
    lifeline = (os.getpid(), signal.SIGKILL)  # they hold nothing that would have to be put away
    with ProcessPoolExecutor(jobs, initializer=end_with_parent, initargs=lifeline) as pool:
        waiting: dict[Future[Figures], Run] = {pool.submit(_run, run): run for run in runs}
        try:
            for future in as_completed(waiting):
                results[_key(waiting[future])] = future.result()
                done(waiting[future])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results


def rank(
    study: Study,
    contestants: Sequence[Contestant],
    seeds: int,
    results: Mapping[tuple[str, Contestant, int], Figures],
) -> list[Standing]:
    """Return one study's standings, in the order of the contestants."""
    standings = []
    for contestant in contestants:
        runs = [results[(study.name, contestant, seed)] for seed in range(seeds)]
        standings.append(Standing(contestant, combine(runs), runs))
    return standings


def compare(standing: Standing, other: Standing, figure: str) -> Interval:
    """Return the ratio of a figure's means, over runs on the same requests.

    The interval is the jackknife's, whose pseudo-values are as good as independent: a mean of
    ratios would be led by the one run in which the other has next to nothing.
    """
    mine = [getattr(run, figure) for run in standing.runs]
    theirs = [getattr(run, figure) for run in other.runs]
    ratio = sum(mine) / sum(theirs)
    if len(mine) == 1:
        return Interval(ratio, 0.0)
    rests = [(sum(mine) - a) / (sum(theirs) - b) for a, b in zip(mine, theirs, strict=True)]
    count = len(mine)
    spread = estimate([count * ratio - (count - 1) * rest for rest in rests])
    return Interval(ratio, spread.half)


def list_runs(study: Study, contestants: Sequence[Contestant], seeds: int) -> list[Run]:
    """Return the runs of a study."""
    return [Run(study, contestant, seed) for contestant in contestants for seed in range(seeds)]


def _run(run: Run) -> Figures:
    return measure_once(run.study, run.contestant, run.seed)


def _key(run: Run) -> tuple[str, Contestant, int]:
    return (run.study.name, run.contestant, run.seed)
