"""`prfaas ctl conversion`: what the long loop found, and the conversion that it carries out."""

from __future__ import annotations

import typer

from router.commands.admin_client import (
    DryRun,
    Json,
    KeyOption,
    Target,
    UrlOption,
    call_admin,
    settle_target,
)
from router.commands.ctl_views import rows_of, show_preview, show_rows
from router.commands.output import AsJson, print_json

_BALANCE = ("model", "pd", "verdict", "binding", "balance_residual")
_PROPOSAL = ("instance", "source", "target", "rate", "next_rate", "best_rate", "gain")
_CONVERSION = ("instance", "source", "target", "phase", "since", "aborted_by", "cause")


def conversion(
    context: typer.Context,
    *,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Show what the long loop found and how far a conversion is, or abort it.

    Examples: prfaas ctl conversion · prfaas ctl conversion abort
    """
    target = settle_target(context, url, key, as_json=as_json)
    if context.invoked_subcommand is None:
        _show(target, call_admin(target, "GET", "conversion"))


def conversion_abort(
    context: typer.Context,
    *,
    url: UrlOption = None,
    key: KeyOption = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Have the conversion under way put back: its instance keeps its old role.

    Example: prfaas ctl conversion abort
    """
    target = settle_target(context, url, key, as_json=as_json)
    query = {"dry_run": "true" if dry_run else None}
    document = call_admin(target, "DELETE", "conversion", query=query)
    if dry_run and not target.as_json:
        show_preview(document)
    else:
        _show(target, document)


def _show(target: Target, document: Json) -> None:
    if target.as_json:
        print_json(document)
        return
    found = [each for each in rows_of(document, "balance") if isinstance(each, dict)]
    if found:
        verdicts = [
            {name: value for name, value in each.items() if name != "proposal"} for each in found
        ]
        show_rows("", verdicts, _BALANCE)
    else:
        print("nothing found yet: no window is over, or a conversion is under way")
    proposed = [proposal for each in found if (proposal := each.get("proposal")) is not None]
    if proposed:
        show_rows("proposal", proposed, _PROPOSAL)
    latest = document.get("conversion") if isinstance(document, dict) else None
    if isinstance(latest, dict):
        show_rows("conversion", [latest], _CONVERSION)
    else:
        print("no conversion")
