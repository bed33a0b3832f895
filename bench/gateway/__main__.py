"""Measure this gateway beside vllm-router, and write docs/benchmarks/gateway.md.

Usage: make bench [ARGS="--rounds 5"], or python -m bench.gateway --help

Router on processor 0, everything else on processor 1. Without options it runs the whole table,
which is written only if the machine was quiet and nothing was left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.gateway.contestants import CONTESTANTS, ENGINES, Contestant, Mode, Ours
from bench.gateway.native import RigError, build, run_engine
from bench.gateway.processes import call, name_machine, watch_machine
from bench.gateway.profiles import Share, profile, tell_profile
from bench.gateway.reports import (
    Circumstances,
    find_disturbance,
    tell_goals,
    tell_page,
    tell_workload,
)
from bench.gateway.runs import (
    LOAD_CPU,
    Bench,
    Row,
    measure,
    run_contestant,
    run_events,
)
from bench.gateway.workloads import CHUNKS, WORKLOADS, Form, Workload, write_bodies

PAGE = Path("docs/benchmarks/gateway.md")
WORK = Path("build/bench")
PEER = WORK / "vllm-router" / "bin" / "vllm-router"
_START_SECONDS = 3.0
"""What starting and ending a contestant takes about."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    names = sorted({*Mode, *Form, *WORKLOADS, *(each.name for each in CONTESTANTS)})
    parser = argparse.ArgumentParser(
        prog="python -m bench.gateway", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all contestants (3)")
    parser.add_argument("--quick", action="store_true", help="one round of short windows")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=names,
        default=[],
        metavar="NAME",
        help=f"modes, contestants, workloads and forms, of: {' '.join(names)}",
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--profile", action="store_true", help="tell where our time goes, too")
    parser.add_argument("--anyway", action="store_true", help="write from a busy machine, too")
    parser.add_argument("--output", type=Path, default=PAGE, help=f"the page ({PAGE})")
    parser.add_argument("--peer", type=Path, default=PEER, help=f"vllm-router ({PEER})")
    parser.add_argument("--work", type=Path, default=WORK, help=f"for what is built ({WORK})")
    return parser.parse_args(arguments)


def say(text: str) -> None:
    """Tell how it goes, beside the results."""
    sys.stderr.write(text + "\n")


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and how often. `whole` if nothing is left out."""

    contestants: tuple[Contestant, ...]
    workloads: dict[str, Workload]
    forms: frozenset[Form]
    rounds: int
    whole: bool

    def of(self, contestant: Contestant) -> Iterator[tuple[Workload, Form]]:
        """Yield a contestant's runs of one round."""
        for form, names in contestant.workloads.items():
            for name in names:
                if name in self.workloads and form in self.forms:
                    yield self.workloads[name], form

    def seconds(self) -> float:
        """Return about how long it takes."""
        runs = [run for each in self.contestants for run, _ in self.of(each)]
        runs += self.workloads.values()
        each_round = sum(run.seconds + run.warm_up + 0.2 for run in runs)
        return self.rounds * (each_round + _START_SECONDS * len(self.contestants))


def make_plan(options: argparse.Namespace) -> Plan:
    """Choose what `--only` and `--quick` leave."""
    only = set(options.only)
    names = only & {each.name for each in CONTESTANTS}
    modes = only & set(Mode)
    contestants = tuple(
        each
        for each in CONTESTANTS
        if (not names or each.name in names) and (not modes or each.mode in modes)
    )
    workloads = {
        name: shorten(each) if options.quick else each
        for name, each in WORKLOADS.items()
        if not only & WORKLOADS.keys() or name in only
    }
    return Plan(
        contestants,
        workloads,
        frozenset(only & set(Form) or Form),
        1 if options.quick else options.rounds,
        whole=not only and not options.quick,
    )


def shorten(workload: Workload) -> Workload:
    """Return a workload with a window just long enough that answers end in it."""
    stream = CHUNKS * workload.interval_us / 1e6
    return dataclasses.replace(workload, seconds=0.7 + stream, warm_up=0.2)


def check_ground(plan: Plan, peer: Path) -> None:
    """Refuse what cannot work, in one line. Raises RigError."""
    if (os.cpu_count() or 1) < 2 or shutil.which("taskset") is None:
        raise RigError("two processors and taskset (Linux) are needed: the router has its own")
    if not peer.exists() and not all(isinstance(each.product, Ours) for each in plan.contestants):
        raise RigError(f"{peer} is missing: run `make bench`, which installs it, or use --only")


def run_rounds(plan: Plan, bench: Bench) -> Iterator[Row]:
    """Yield every row. The contestants' order turns with each round, so none is always first."""
    for number in range(plan.rounds):
        for workload in plan.workloads.values():
            yield measure(bench, None, workload, Form.IDS, number)
        turn = number % max(1, len(plan.contestants))
        for contestant in (*plan.contestants[turn:], *plan.contestants[:turn]):
            runs = list(plan.of(contestant))
            if not runs:
                continue
            say(f"round {number + 1} of {plan.rounds}: {contestant.mode}, {contestant.name}")
            with run_contestant(bench, contestant) as running:
                for workload, form in runs:
                    yield measure(bench, running, workload, form, number)


def tell_row(row: Row) -> None:
    """Tell one run as it ends."""
    rate = row.events_per_second or row.requests_per_second
    unit = "events/s" if row.events_per_second else "requests/s"
    errors = f"  VOID: {'; '.join(row.errors)}" if row.errors else ""
    say(
        f"  {row.contestant:24} {row.form:5} {row.workload:10} {rate:10,.0f} {unit:10}"
        f" p50 {row.p50_us or 0:>9,} us  CPU {row.cpu_us:8.1f} us"
        f"  others {row.others:.2f}{errors}"
    )


def describe_versions(peer: Path) -> str:
    """Return the versions of what is compared."""
    ours = f"prfaas-router {version('prfaas-router')} on Python {platform.python_version()}"
    if not peer.exists():
        return ours
    python = peer.with_name("python")
    code = "from importlib.metadata import version; print(version('vllm-router'))"
    told = call([python, "-c", code], 30)
    return f"{ours}, vllm-router {told.stdout.strip() or 'unknown'}"


def describe_commit() -> str:
    """Return the commit that was measured, marked where files differ from it."""
    git = shutil.which("git")
    if git is None:
        return "an unknown commit"
    told = call([git, "describe", "--always", "--dirty", "--exclude=*"], 30)
    return told.stdout.strip() or "an unknown commit"


def run(options: argparse.Namespace) -> int:
    """Measure and tell."""
    plan = make_plan(options)
    check_ground(plan, options.peer)
    native = build(options.work)
    # The direct runs have token ids, whatever contestants get.
    write_bodies(options.work / "bodies", plan.workloads.values(), {Form.IDS, *plan.forms})
    quiet = watch_machine(0.5 if options.quick else 3.0)
    if plan.whole and quiet.disturbed and not options.anyway:
        raise RigError(
            f"this machine is not quiet: {quiet.disturbed}; --anyway measures all the same"
        )
    say(f"about {plan.seconds() / 60:.1f} minutes; load average {quiet.load_average:.2f}")
    rows: list[Row] = []
    shares: list[Share] = []
    began = time.monotonic()
    with ExitStack() as stack:
        engine = stack.enter_context(run_engine(native, LOAD_CPU, ENGINES))
        publisher, events = stack.enter_context(run_events())
        aides = [engine.pid, publisher]
        work = options.work.resolve()
        bench = Bench(native, engine, events, work, options.peer.resolve(), aides)
        for row in run_rounds(plan, bench):
            rows.append(row)
            tell_row(row)
        if plan.whole or options.profile:
            say("where the time goes: ours under the profiler")
            shares = profile(bench, CONTESTANTS[0], WORKLOADS["small-32"], Form.IDS)
    told = Circumstances(
        machine=name_machine(),
        versions=describe_versions(options.peer),
        commit=describe_commit(),
        date=datetime.now(UTC).date().isoformat(),
        rounds=plan.rounds,
        load_average=quiet.load_average,
        disturbed=quiet.disturbed or find_disturbance(rows),
    )
    say(f"done in {(time.monotonic() - began) / 60:.1f} minutes")
    print_results(rows, plan, shares, as_json=options.json)
    return write_page(tell_page(rows, told, tell_profile(shares)), rows, plan, told, options)


def print_results(rows: Sequence[Row], plan: Plan, shares: list[Share], *, as_json: bool) -> None:
    """Print the rows, for machines or people."""
    if as_json:
        document = {
            "rows": [dataclasses.asdict(row) for row in rows],
            "profile": [dataclasses.asdict(share) for share in shares],
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    lines = [line for name in plan.workloads for line in ("", name, *tell_workload(rows, name))]
    told = ["", *tell_profile(shares)] if shares else []
    sys.stdout.write("\n".join([*lines, "", *tell_goals(rows), *told, ""]))


def write_page(
    page: str,
    rows: Sequence[Row],
    plan: Plan,
    told: Circumstances,
    options: argparse.Namespace,
) -> int:
    """Write the page where the run is worth it; 1 where a whole run is not, or a row is void."""
    void = any(row.errors for row in rows)
    if not plan.whole:
        return int(void)
    if told.disturbed is not None and not options.anyway:
        say(f"{options.output} is left as it was: {told.disturbed}; --anyway writes it")
        return 1
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(page)
    say(f"wrote {options.output}")
    return int(void)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 0 if every row is sound, 1 if not, 2 if it cannot be done here."""
    try:
        return run(parse(arguments))
    except RigError as error:
        say(f"bench: {error}")
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
