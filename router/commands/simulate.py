"""`prfaas simulate`: what users would feel, under several rules, on the same simulated requests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from router.commands.output import (
    AsJson,
    CommandFailed,
    Unusable,
    check_writable,
    print_json,
    print_table,
)
from router.commands.pages import write_page
from router.commands.simulate_view import (
    COLUMNS,
    StudyResult,
    describe_results,
    list_rows,
    render_page,
)
from router.compose.models import CompositionError
from router.compose.studies import build_study
from router.settings.scenarios import load_scenario
from router.sim.arrivals import ArrivalFault
from router.sim.plants import PlantFault
from router.sim.records import write_csv
from router.sim.statistics import StatisticsFault
from router.sim.studies import Contestant, Study, simulate_once
from router.sim.tournaments import Run, list_runs, rank, run_all
from router.throughput.curves import CurveError
from router.throughput.planner import TooManyAllocations
from router.throughput.workloads import WorkloadError

_DEFAULT = (Contestant.PAPER, Contestant.TUNED, Contestant.EXPECTED, Contestant.SLACK)
_UNUSABLE = (
    ArrivalFault,
    CompositionError,
    CurveError,
    PlantFault,
    TooManyAllocations,
    WorkloadError,
)


def register(app: typer.Typer) -> None:
    """Add `simulate`."""
    app.command("simulate")(simulate)


def simulate(
    scenarios: Annotated[
        list[Path], typer.Argument(metavar="SCENARIO…", help="Scenarios, in YAML.")
    ],
    *,
    policies: Annotated[
        list[Contestant] | None,
        typer.Option(
            "--policy",
            help="What serves them, once for each; else paper, tuned, expected and slack.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Independent runs of each.")] = 5,
    requests: Annotated[
        int | None, typer.Option(min=40, help="Requests of a run; else the scenario's number.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes that share the runs.")
    ] = os.cpu_count() or 1,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a report with plots, one file.")
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option("--records", help="Write the first seed's requests as CSV to a directory."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate scenarios by discrete events around the router's own rule, queues and link states.

    Everything is modelled: the scenario's profiles and traffic, on simulated engines and links.
    Equal seeds give equal figures, and every policy serves the same requests. `homogeneous`,
    `naive` and `total` are there to compare with. Exit code 2 where a scenario cannot be used.

    Examples: prfaas simulate examples/scenarios/case-study.yaml --seeds 3 ·
    prfaas simulate s.yaml --policy paper --policy slack --json --html s.html
    """
    if html is not None:
        check_writable(html)
    chosen = list(dict.fromkeys(policies or _DEFAULT))
    studies = [_load(path, requests) for path in scenarios]
    if len({study.name for study in studies}) < len(studies):
        raise Unusable("two scenarios have one name")
    runs = [run for study in studies for run in list_runs(study, chosen, seeds)]
    try:
        with _show_progress(len(runs)) as note:
            figures = run_all(runs, jobs, note)
    except (PlantFault, StatisticsFault) as error:
        raise Unusable(str(error)) from error
    results = [StudyResult(study, rank(study, chosen, seeds, figures)) for study in studies]
    if records is not None:
        _write_records(records, studies, chosen)
    if html is not None:
        write_page(html, render_page(results, seeds))
    if as_json:
        print_json(describe_results(results, seeds))
        return
    for result in results:
        print_table(f"{result.study.name} (modelled)", COLUMNS, list_rows(result))
        print()


def _load(path: Path, requests: int | None) -> Study:
    loaded = load_scenario(path, os.environ)
    try:
        return build_study(loaded, requests=requests)
    except _UNUSABLE as error:
        raise Unusable(f"{loaded.shown}: {error}") from error


def _write_records(
    directory: Path, studies: Sequence[Study], contestants: Sequence[Contestant]
) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number, study in enumerate(studies, start=1):
            for contestant in contestants:
                path = directory / f"{number}-{contestant}.csv"
                path.write_bytes(write_csv(simulate_once(study, contestant, 0)))
    except OSError as error:
        raise CommandFailed(f"{directory} cannot be written: {error.strerror}") from error


@contextmanager
def _show_progress(total: int) -> Iterator[Callable[[Run], None]]:
    """Show on stderr how many runs are over, where somebody watches a terminal."""
    if not sys.stderr.isatty():
        yield lambda _run: None
        return
    columns = (TextColumn("simulate"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulate", total=total)
        yield lambda _run: bar.update(task, advance=1)
