"""`prfaas plan`: does a link pay, with which threshold and which division of instances."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from router.commands.output import FAILED, AsJson, Unusable, check_writable, print_json
from router.commands.pages import write_page
from router.commands.plan_page import render_page
from router.commands.plan_view import show_plan
from router.compose.models import CompositionError
from router.compose.scenarios import build_scenario
from router.planning.documents import describe_plan
from router.planning.plans import make_plan
from router.settings.scenarios import load_scenario
from router.throughput.curves import CurveError
from router.throughput.planner import TooManyAllocations
from router.throughput.workloads import WorkloadError


def register(app: typer.Typer) -> None:
    """Add `plan`."""
    app.command("plan")(plan)


def plan(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="The scenario, in YAML.")],
    *,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a report with plots, one file.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 where a gate refuses to offload.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plan a deployment: gates, threshold, N_p and N_d, throughput, and what it is compared with.

    Nothing is measured: profiles, traffic and prices are the scenario's, each figure says how it is
    known. Exit code 2 where the scenario cannot be used.

    Examples: prfaas plan examples/scenarios/case-study.yaml --html plan.html ·
    prfaas plan s.yaml --json --check
    """
    if html is not None:
        check_writable(html)
    loaded = load_scenario(scenario, os.environ)
    try:
        made = make_plan(build_scenario(loaded))
    except (CompositionError, CurveError, WorkloadError, TooManyAllocations) as error:
        raise Unusable(f"{loaded.shown}: {error}") from error
    if html is not None:
        write_page(html, render_page(made))
    if as_json:
        print_json(describe_plan(made))
    else:
        show_plan(made)
    if check and not made.verdicts.passed:
        raise typer.Exit(FAILED)
