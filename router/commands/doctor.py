"""`prfaas doctor`: what would not work, and why."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from router.commands.output import FAILED, AsJson, print_json, print_table
from router.commands.process_environment import (
    ConfigOption,
    choose_config,
    read_process_environment,
)
from router.compose.doctoring import examine_configuration
from router.service.diagnoses import Finding, Verdict
from router.settings import load

_TIMEOUT: Final = 5.0
"""As long as a health probe waits (`upstream.probe.timeout_seconds`)."""


def register(app: typer.Typer) -> None:
    """Add `doctor`."""
    app.command("doctor")(doctor)


def doctor(
    config: ConfigOption = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=60, help="Seconds to wait for each answer.")
    ] = _TIMEOUT,
    *,
    all_checks: Annotated[bool, typer.Option("--all", help="Show what is fine, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask every engine, link and store that a configuration names; say what would not work.

    Engines: health, models, version, queue, blocks, KV events, tokenizer. Nothing is changed.
    Exit code 1 where something would fail.

    Example: prfaas doctor --config examples/two-clusters.yaml
    """
    loaded = load(choose_config(config, read_process_environment()), os.environ)
    findings = asyncio.run(examine_configuration(loaded, timeout=timeout))
    counts = Counter(finding.verdict for finding in findings)
    if as_json:
        print_json(
            {
                "ok": not counts[Verdict.FAULT],
                "findings": [
                    {
                        "subject": each.subject,
                        "check": each.check,
                        "verdict": each.verdict,
                        "told": each.told,
                    }
                    for each in findings
                ],
            }
        )
    else:
        _show(findings, everything=all_checks)
        print(
            f"{counts[Verdict.FAULT]} faults, {counts[Verdict.DOUBT]} doubts,"
            f" {counts[Verdict.FINE]} fine"
        )
    if counts[Verdict.FAULT]:
        raise typer.Exit(FAILED)


def _show(findings: Sequence[Finding], *, everything: bool) -> None:
    """Show the worst first."""
    order = (Verdict.FAULT, Verdict.DOUBT, *((Verdict.FINE,) if everything else ()))
    rows = [
        (each.verdict, each.subject, each.check, each.told)
        for verdict in order
        for each in findings
        if each.verdict is verdict
    ]
    if rows:
        print_table("", ("", "of", "check", "what was found"), rows)
        print()
