"""`prfaas ctl conversion`: what the long loop found, and the conversion that it carries out."""

from __future__ import annotations

import typer

from router.commands.admin_client import (
    DryRun,
    Json,
    KeyOption,
    UrlOption,
    call_admin,
    settle_target,
)
from router.commands.ctl_calls import change, show_answer
from router.commands.ctl_views import rows_of, show_rows
from router.commands.output import AsJson

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
        show_answer(target, call_admin(target, "GET", "conversion"), _show_conversion)


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
    change(target, "DELETE", "conversion", view=_show_conversion, dry_run=dry_run)


def _show_conversion(document: Json) -> None:
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
