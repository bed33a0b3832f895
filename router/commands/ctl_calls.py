"""What the commands of `prfaas ctl` share: the shapes of their options, a look and a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from router.commands.admin_client import Json, Target, call_admin
from router.commands.ctl_views import show_preview
from router.commands.output import Unusable, print_json

ModelOption = Annotated[str | None, typer.Option("--model", help="Only this model.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="Only this tenant.")]
PrfaasOption = Annotated[str | None, typer.Option("--prfaas", help="Only this PrfaaS cluster.")]
PdOption = Annotated[str | None, typer.Option("--pd", help="Only this PD cluster.")]


def show_answer(target: Target, document: Json, view: Callable[[Json], None]) -> None:
    """Show a document as its caller wants it: for machines, or by `view`."""
    if target.as_json:
        print_json(document)
    else:
        view(document)


def change(
    target: Target,
    method: str,
    path: str,
    *,
    view: Callable[[Json], None],
    dry_run: bool,
    query: Mapping[str, str | int | None] | None = None,
    body: Json = None,
) -> None:
    """Make a change and show what came of it, or what it would change."""
    asked = {**(query or {}), "dry_run": "true" if dry_run else None}
    document = call_admin(target, method, path, query=asked, body=body)
    show_answer(target, document, show_preview if dry_run else view)


def given(**values: str | float | None) -> dict[str, Json]:
    """Return those values that were given."""
    return {
        name: str(value) if isinstance(value, str) else value
        for name, value in values.items()
        if value is not None
    }


def segment(name: str) -> str:
    """Return a name as one segment of a path. Raises Unusable for what is none."""
    if not name or "/" in name or name in {".", ".."}:
        raise Unusable(f"{name!r} is no name")
    return name
