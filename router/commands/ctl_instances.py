"""`prfaas ctl instances`: who belongs to a running gateway, and as what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from router.commands.admin_client import (
    DryRun,
    Json,
    KeyOption,
    UrlOption,
    call_admin,
    settle_target,
)
from router.commands.ctl_calls import change, given, segment, show_answer
from router.commands.ctl_views import show_instances
from router.commands.output import AsJson, Unusable
from router.domain.topology import InstanceState, Role

InstanceName = Annotated[str, typer.Argument(metavar="INSTANCE", help="The instance's name.")]


def instances(
    context: typer.Context,
    *,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Show instances, or change them: set, add, remove.

    Examples: prfaas ctl instances · prfaas ctl instances set pd-p0 --state draining
    """
    target = settle_target(context, url, key, as_json=as_json)
    if context.invoked_subcommand is None:
        show_answer(target, call_admin(target, "GET", "instances"), show_instances)


def instances_set(
    context: typer.Context,
    *,
    name: InstanceName,
    state: Annotated[InstanceState | None, typer.Option(help="What it may do.")] = None,
    role: Annotated[Role | None, typer.Option(help="What it does for a request.")] = None,
    url: UrlOption = None,
    key: KeyOption = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Drain, disable or reactivate an instance, or change its role."""
    target = settle_target(context, url, key, as_json=as_json)
    body = given(state=state, role=role)
    if not body:
        raise Unusable("nothing to set: give --state or --role")
    change(
        target,
        "PATCH",
        f"instances/{segment(name)}",
        body=body,
        view=show_instances,
        dry_run=dry_run,
    )


def instances_add(
    context: typer.Context,
    *,
    name: Annotated[str | None, typer.Argument(metavar="[INSTANCE]")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="A configuration entry plus `cluster`, as JSON.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="The cluster that it joins.")] = None,
    endpoint: Annotated[str | None, typer.Option("--endpoint", help="The engine's URL.")] = None,
    role: Annotated[Role | None, typer.Option(help="What it does for a request.")] = None,
    model: Annotated[str | None, typer.Option(help="The one model it serves.")] = None,
    kv_events: Annotated[
        str | None, typer.Option(help="Where it publishes KV events, or auto.")
    ] = None,
    kv_replay: Annotated[str | None, typer.Option(help="Where it replays them.")] = None,
    url: UrlOption = None,
    key: KeyOption = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Add an instance to a running gateway.

    Example: prfaas ctl instances add pd-d2 --cluster pd-east --role decode
    --endpoint http://10.0.0.7:8000 --kv-events tcp://10.0.0.7:5557
    """
    target = settle_target(context, url, key, as_json=as_json)
    entry = _read_entry(file) if file is not None else {}
    entry |= given(
        name=name,
        cluster=cluster,
        url=endpoint,
        role=role,
        model=model,
        kv_events=kv_events,
        kv_replay=kv_replay,
    )
    missing = [word for word in ("name", "cluster", "url", "role") if word not in entry]
    if missing:
        raise Unusable(f"an instance needs {', '.join(missing)} (--endpoint gives its url)")
    change(target, "POST", "instances", body=entry, view=show_instances, dry_run=dry_run)


def instances_remove(
    context: typer.Context,
    *,
    name: InstanceName,
    url: UrlOption = None,
    key: KeyOption = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove an instance from a running gateway. Drain it first to keep its streams."""
    target = settle_target(context, url, key, as_json=as_json)
    change(target, "DELETE", f"instances/{segment(name)}", view=show_instances, dry_run=dry_run)


def _read_entry(file: Path) -> dict[str, Json]:
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise Unusable(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Unusable(f"{file} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise Unusable(f"{file} holds no JSON object")
    return document
