"""Measure the simulator: `python -m bench.simulator [--requests N] [--rate R]`.

Prints simulated requests a second of CPU on one core, in the paper's case study under its own rule:
the best of some runs, since whatever else runs only slows it down. Nothing is left out: a request
is drawn, admitted, decided by the production rule on a snapshot, and recorded.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from router.compose.studies import build_study
from router.settings.scenarios import load_scenario
from router.sim.arrivals import PoissonArrivals
from router.sim.studies import Contestant, Study, simulate_once
from router.sim.traffic import SingleTraffic

CASE = Path(__file__).parent.parent / "examples/scenarios/case-study.yaml"
ROUNDS = 5


def measure(study: Study, contestant: Contestant) -> float:
    """Return requests a second of CPU time."""
    started = time.process_time()
    simulate_once(study, contestant, 1)
    return study.requests / (time.process_time() - started)


def main() -> int:
    """Print one line for each policy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=2.9)
    args = parser.parse_args()
    study = build_study(load_scenario(CASE, os.environ), requests=args.requests)
    assert isinstance(study.traffic, SingleTraffic)  # noqa: S101 - the case study's prompts share nothing
    study = replace(study, traffic=replace(study.traffic, arrivals=PoissonArrivals(args.rate)))
    gc.disable()  # records are kept, and nothing of a run is cyclic
    for contestant in (Contestant.PAPER, Contestant.EXPECTED, Contestant.SLACK):
        best = max(measure(study, contestant) for _ in range(ROUNDS))
        sys.stdout.write(f"{contestant}: {best:,.0f} requests/s of CPU\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
