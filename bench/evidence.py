"""Compare ways to route, in simulation: `python -m bench.evidence [--seeds N] [--requests N]`.

Reads every scenario in `examples/scenarios/simulated` and writes docs/evidence.md. Minutes of CPU;
`--jobs` processes share them, and change nothing in the figures.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from router.compose.studies import build_study
from router.settings.scenarios import load_scenario
from router.sim.statistics import Interval
from router.sim.studies import Contestant, Study, with_aging
from router.sim.tournaments import Run, Standing, compare, list_runs, rank, run_all

SCENARIOS = Path(__file__).parent.parent / "examples/scenarios/simulated"
PAGE = Path(__file__).parent.parent / "docs/evidence.md"
FRONT = ("2-poisson-2.4.yaml", "3-poisson-2.9.yaml", "4-gamma-cv4.yaml")
WANTED = (1.1, 1.5, 1.8)
"""Goodput of `slack` over the paper's rule that was asked of each, at most 1.5 times its P99."""
AGINGS = (5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 1e9)

HEAD = """# Evidence

Made by `make evidence`; every figure here is **modelled**: simulated by `router/sim`, which drives
the production rule (`router.policy`), queues and link states (`router.control`) against simulated
engines. The scenarios are files in `examples/scenarios/simulated`; `prfaas simulate` runs any.

- Hardware: 4 x 8 H200 prefill for 8 x 8 H20 (3 prefill, 5 decode) over 100 Gbit/s. The H200
  profile is quoted (arXiv 2604.15039, table 5); the H20 profile is unpublished and a fit to the
  paper's table 6.
- `homogeneous` is 12 H20 instances divided at their best, `naive` prefills all on the H200. Both
  sustain less (2.03 and 2.34 requests/s in the exact form): they drown from 2.4 requests/s on.
- `paper` is the static rule at t = 19.4K, `tuned` the same with t by the exact form, solved again
  when a link changes; `total` compares a prompt's total instead of its uncached tokens with that
  t; `expected` and `slack` are values of `scheduler.policy`, with the tuned t as prior.
  The gateway binds as `slack` does here: `tests/property/test_slack_oracle.py` compares them.
- Goodput counts requests whose first token comes within max(2 x unloaded, 2 s), unloaded as the
  tuned rule would serve them in an empty system. TTFT in seconds; rejected requests take for ever.
- {seeds} seeds of {requests:,} requests each, every contestant on the same ones; the first tenth
  and the last twentieth are not counted. Intervals (±) are Student's 95 % over seeds; ratios are
  of means.
"""

NOTES = """
## What to take from it

- *When* a prompt is let in matters more than where. `expected` corrects the side and gains where
  one is busy; `slack` orders and binds late, and keeps far more promises at a tail that `aging`
  bounds. Its order is: who has aged, who can be in time, who cannot.
- A link that starves: the link's budget (thirty seconds of what it carries) decides before t does.
  What does not fit spills, and spilled long prompts fill the home's lines; a t solved again for 5
  Gbit/s spills fewer ([at several loads and budgets](benchmarks/starved-link.md)). `slack` lets
  short ones pass.
- Without caches `total` is `tuned`, since total and uncached tokens are the same. With them it
  pays for prefixes that are there: on the trace it keeps a fifth of the promises of `tuned`.
- A t solved for one traffic is wrong for another: 19.4K drowns the home under agents and the trace,
  whose uncached lengths are a fraction of the case study's. Under agents the tuned t sends nearly
  all away, since a scarce link lets only the home's own prefix count, and only the limit on PrfaaS
  queues (16 prompts) turns any back; queues tell `expected` and `slack` better.
- Decode slots are granted before the decision, as in production, so a prompt holds one while it
  waits, and decode-bound systems stay under equation 5.
- Not simulated: chunked prefill and batching inside an instance, time-outs and retries of clients,
  prefixes that travel (`ships_prefix`), and what a decode instance holds of a prompt.
"""

_FRONT_WORDS = """Goodput and P99 over the paper's rule's with the tuned t, as the bound on the tail
varies: whoever has waited for `aging` goes before all others. Without it (∞) the tail is free."""


def main() -> int:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    files = sorted(SCENARIOS.glob("*.yaml"), key=lambda path: int(path.name.split("-")[0]))
    studies = {
        path.name: build_study(load_scenario(path, os.environ), requests=args.requests)
        for path in files
    }
    fronts = {name: [_aged(studies[name], aging) for aging in AGINGS] for name in FRONT}
    contestants = list(Contestant)
    runs = [
        *(run for study in studies.values() for run in list_runs(study, contestants, args.seeds)),
        *(
            run
            for front in fronts.values()
            for study in front
            for run in list_runs(study, [Contestant.SLACK], args.seeds)
        ),
    ]
    results = run_all(runs, args.jobs, _Progress(len(runs)).note)
    lines = [HEAD.format(seeds=args.seeds, requests=args.requests)]
    standings = {
        name: rank(study, contestants, args.seeds, results) for name, study in studies.items()
    }
    for name, study in studies.items():
        lines += _write_table(name, study, standings[name])
    lines += ["## The front of `slack`", "", _FRONT_WORDS, ""]
    for name, wanted in zip(FRONT, WANTED, strict=True):
        tuned = next(each for each in standings[name] if each.contestant is Contestant.TUNED)
        aged = [rank(study, [Contestant.SLACK], args.seeds, results)[0] for study in fronts[name]]
        lines += _write_front(studies[name], tuned, aged, wanted)
    lines.append(NOTES.strip())
    args.page.write_text("\n".join(lines) + "\n", "utf-8")
    return 0


class _Progress:
    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def note(self, run: Run) -> None:
        self._done += 1
        told = f"{self._done}/{self._total} {run.study.name}: {run.contestant}"
        sys.stderr.write(f"{told}\n")


def _aged(study: Study, aging: float) -> Study:
    return replace(with_aging(study, aging), name=f"{study.name}, aging {aging:g} s")


def _write_table(file: str, study: Study, standings: Sequence[Standing]) -> Iterator[str]:
    rate = standings[0].figures["arrival_rate"].mean
    yield f"## {study.name}"
    yield ""
    yield f"{study.note} ({file}; {rate:.2f} requests/s came)"
    yield ""
    yield "| | goodput, 1/s | in time | mean | P50 | P90 | P99 | offloaded | link, Gbit/s |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for each in standings:
        figures = each.figures
        cells = [
            _pm(figures["goodput"], 3),
            f"{figures['attainment'].mean:.1%}",
            *(_pm(figures[name], 2) for name in ("mean", "p50", "p90", "p99")),
            f"{figures['offloaded'].mean:.0%}",
            f"{figures['kv_bytes_rate'].mean * 8e-9:.1f}",
        ]
        yield f"| {each.contestant} | " + " | ".join(cells) + " |"
    yield ""


def _write_front(
    study: Study, tuned: Standing, aged: Sequence[Standing], wanted: float
) -> Iterator[str]:
    yield f"### {study.name}"
    yield ""
    yield "| aging, s | goodput x | P99 x | in time |"
    yield "|---|---|---|---|"
    best = 0.0
    for aging, standing in zip(AGINGS, aged, strict=True):
        goodput, tail = (compare(standing, tuned, name) for name in ("goodput", "p99"))
        if tail.mean <= 1.5:
            best = max(best, goodput.mean)
        told = "∞" if aging >= 1e9 else f"{aging:g}"
        kept = standing.figures["attainment"].mean
        yield f"| {told} | {_pm(goodput, 2)} | {_pm(tail, 2)} | {kept:.1%} |"
    yield ""
    verdict = "reached" if best >= wanted else "not reached"
    yield f"Wanted x{wanted:g} at a P99 of at most x1.5: {verdict}, the best is x{best:.2f}."
    yield ""


def _pm(interval: Interval, digits: int) -> str:
    if not math.isfinite(interval.mean):
        return "∞"
    return f"{interval.mean:.{digits}f} ± {interval.half:.{digits}f}"


if __name__ == "__main__":
    raise SystemExit(main())
