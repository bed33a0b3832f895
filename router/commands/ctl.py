"""`prfaas ctl`: the admin API (DESIGN 10) for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

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
from router.commands.ctl_conversions import conversion, conversion_abort
from router.commands.ctl_decisions import decisions
from router.commands.ctl_plans import plan, plan_solve
from router.commands.ctl_views import (
    show_audit,
    show_document,
    show_instances,
    show_links,
    show_overrides,
    show_preview,
    show_threshold,
)
from router.commands.output import AsJson, Unusable, print_json
from router.domain.decision import Route
from router.domain.topology import InstanceState, Role

ModelOption = Annotated[str | None, typer.Option("--model", help="Only this model.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="Only this tenant.")]
LinkOption = Annotated[str | None, typer.Option("--link", help="Only this link.")]
PrfaasOption = Annotated[str | None, typer.Option("--prfaas", help="Only this PrfaaS cluster.")]
PdOption = Annotated[str | None, typer.Option("--pd", help="Only this PD cluster.")]
LinkName = Annotated[str, typer.Argument(metavar="LINK", help="The link's name.")]
InstanceName = Annotated[str, typer.Argument(metavar="INSTANCE", help="The instance's name.")]


class LinkHealth(StrEnum):
    """What an operator says of a link; `auto` leaves it to measurements."""

    UP = "up"
    DOWN = "down"
    AUTO = "auto"


def register(app: typer.Typer) -> None:
    """Add `ctl` and its commands."""
    ctl = typer.Typer(no_args_is_help=True, help="See and steer a running gateway.")
    ctl.callback()(_settle)
    ctl.command("state")(_view("state", show_document))
    ctl.command("decisions")(decisions)
    ctl.command("audit")(audit)
    _add_group(
        ctl,
        "threshold",
        show_threshold_command,
        {
            "set": threshold_set,
            "auto": _threshold_mode("auto"),
            "off": _threshold_mode("off"),
            "config": _threshold_mode("config"),
        },
    )
    _add_group(
        ctl,
        "policy",
        policy,
        {word: _policy_choice(word) for word in ("paper", "expected", "slack", "config")},
    )
    _add_group(ctl, "links", links, {"set": links_set, "telemetry": links_telemetry})
    _add_group(
        ctl,
        "bandwidth",
        bandwidth,
        {mode: _bandwidth_mode(mode) for mode in ("auto", "scarce", "abundant")},
    )
    _add_group(ctl, "override", override, {"set": override_set, "clear": override_clear})
    _add_group(
        ctl,
        "instances",
        instances,
        {"set": instances_set, "add": instances_add, "remove": instances_remove},
    )
    _add_group(ctl, "plan", plan, {"solve": plan_solve})
    _add_group(ctl, "conversion", conversion, {"abort": conversion_abort})
    app.add_typer(ctl, name="ctl")


def _add_group(
    parent: typer.Typer,
    name: str,
    view: Callable[..., None],
    commands: dict[str, Callable[..., None]],
) -> None:
    group = typer.Typer()
    group.callback(invoke_without_command=True)(view)
    for word, command in commands.items():
        group.command(word)(command)
    parent.add_typer(group, name=name)


def _settle(
    context: typer.Context, *, url: UrlOption = None, key: KeyOption = None, as_json: AsJson = False
) -> None:
    """See and steer a running gateway.

    Examples: prfaas ctl state · prfaas ctl threshold set 19400 · prfaas ctl links
    """
    settle_target(context, url, key, as_json=as_json)


def _show(target: Target, document: Json, view: Callable[[Json], None]) -> None:
    if target.as_json:
        print_json(document)
    else:
        view(document)


def _change(
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
    _show(target, document, show_preview if dry_run else view)


def _view(path: str, view: Callable[[Json], None]) -> Callable[..., None]:
    """Make a command that shows one document of the API."""

    def command(
        context: typer.Context,
        *,
        url: UrlOption = None,
        key: KeyOption = None,
        as_json: AsJson = False,
    ) -> None:
        target = settle_target(context, url, key, as_json=as_json)
        _show(target, call_admin(target, "GET", path), view)

    command.__doc__ = _VIEW_HELP[path]
    return command


_VIEW_HELP = {
    "state": "Show everything that the gateway knows, with ages.",
}


def show_threshold_command(
    context: typer.Context,
    *,
    model: ModelOption = None,
    prfaas: PrfaasOption = None,
    pd: PdOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the threshold, or change it: set N, auto, off, config.

    Examples: prfaas ctl threshold · prfaas ctl threshold set 19400 · prfaas ctl threshold auto
    """
    target = settle_target(context, url, key, as_json=as_json)
    if context.invoked_subcommand is None:
        scope = {"model": model, "prfaas": prfaas, "pd": pd}
        _show(target, call_admin(target, "GET", "threshold", query=scope), show_threshold)
    elif model or prfaas or pd:
        raise Unusable(f"write --model, --prfaas and --pd after `{context.invoked_subcommand}`")


def threshold_set(
    context: typer.Context,
    *,
    tokens: Annotated[int, typer.Argument(min=0, help="Offload above this; 0 offloads all.")],
    model: ModelOption = None,
    prfaas: PrfaasOption = None,
    pd: PdOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Fix the threshold: prompts with more uncached tokens are prefilled in a PrfaaS cluster."""
    target = settle_target(context, url, key, as_json=as_json)
    body: Json = {"mode": "manual", "tokens": tokens}
    scope = {"model": model, "prfaas": prfaas, "pd": pd}
    _change(
        target, "PUT", "threshold", query=scope, body=body, view=show_threshold, dry_run=dry_run
    )


def _threshold_mode(mode: str) -> Callable[..., None]:
    def command(
        context: typer.Context,
        *,
        model: ModelOption = None,
        prfaas: PrfaasOption = None,
        pd: PdOption = None,
        url: UrlOption = None,
        key: KeyOption = None,
        dry_run: DryRun = False,
        as_json: AsJson = False,
    ) -> None:
        target = settle_target(context, url, key, as_json=as_json)
        scope = {"model": model, "prfaas": prfaas, "pd": pd}
        _change(
            target,
            "PUT",
            "threshold",
            query=scope,
            body={"mode": mode},
            view=show_threshold,
            dry_run=dry_run,
        )

    command.__doc__ = {
        "auto": "Let the short loop solve the threshold.",
        "off": "Offload nothing.",
        "config": "Give the threshold back to the configuration.",
    }[mode]
    return command


def policy(
    context: typer.Context,
    *,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the rule in force, or choose one: paper, expected, slack, config.

    Examples: prfaas ctl policy · prfaas ctl policy slack · prfaas ctl policy config
    """
    target = settle_target(context, url, key, as_json=as_json)
    if context.invoked_subcommand is None:
        _show(target, call_admin(target, "GET", "policy"), show_document)


def _policy_choice(word: str) -> Callable[..., None]:
    def command(
        context: typer.Context,
        *,
        url: UrlOption = None,
        key: KeyOption = None,
        dry_run: DryRun = False,
        as_json: AsJson = False,
    ) -> None:
        target = settle_target(context, url, key, as_json=as_json)
        _change(target, "PUT", "policy", body={"policy": word}, view=show_document, dry_run=dry_run)

    command.__doc__ = {
        "paper": "Compare uncached tokens with the threshold.",
        "expected": "Take the threshold as prior, and the side that is done clearly sooner.",
        "slack": "Let prompts wait at the gateway in order of slack, for an instance that is free.",
        "config": "Give the choice of the rule back to the configuration.",
    }[word]
    return command


def links(
    context: typer.Context,
    *,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Show links and their load, or change one: set, telemetry.

    Examples: prfaas ctl links · prfaas ctl links set west-east --health down
    """
    target = settle_target(context, url, key, as_json=as_json)
    if context.invoked_subcommand is None:
        _show(target, call_admin(target, "GET", "links"), show_links)


def links_set(
    context: typer.Context,
    *,
    name: LinkName,
    health: Annotated[LinkHealth | None, typer.Option(help="Whether it may be used.")] = None,
    capacity_gbps: Annotated[
        float | None, typer.Option(min=0, help="Its bandwidth in Gbit/s.")
    ] = None,
    url: UrlOption = None,
    key: KeyOption = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Close or open a link, or change its capacity."""
    target = settle_target(context, url, key, as_json=as_json)
    body = _given(health=health, capacity_gbps=capacity_gbps)
    if not body:
        raise Unusable("nothing to set: give --health or --capacity-gbps")
    _change(target, "PUT", f"links/{_segment(name)}", body=body, view=show_links, dry_run=dry_run)


def links_telemetry(
    context: typer.Context,
    *,
    name: LinkName,
    egress_gbps: Annotated[float | None, typer.Option(min=0, help="Bytes sent, Gbit/s.")] = None,
    available_gbps: Annotated[float | None, typer.Option(min=0, help="Usable, Gbit/s.")] = None,
    loss_ratio: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    retransmit_ratio: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    rtt_ms: Annotated[float | None, typer.Option(min=0)] = None,
    observed_at: Annotated[str | None, typer.Option(help="RFC 3339; left out, now.")] = None,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Report a measurement of a link, as `prfaas link-agent` does."""
    target = settle_target(context, url, key, as_json=as_json)
    body = _given(
        egress_gbps=egress_gbps,
        available_gbps=available_gbps,
        loss_ratio=loss_ratio,
        retransmit_ratio=retransmit_ratio,
        rtt_ms=rtt_ms,
    )
    if not body:
        raise Unusable("nothing to report: give at least one measurement, such as --egress-gbps")
    body["observed_at"] = observed_at or datetime.now(UTC).isoformat()
    path = f"links/{_segment(name)}/telemetry"
    _show(target, call_admin(target, "POST", path, body=body), show_links)


def bandwidth(
    context: typer.Context,
    *,
    link: LinkOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the bandwidth regime, or fix it: scarce, abundant, auto.

    Examples: prfaas ctl bandwidth · prfaas ctl bandwidth scarce --link west-east
    """
    target = settle_target(context, url, key, as_json=as_json)
    if context.invoked_subcommand is None:
        document = call_admin(target, "GET", "bandwidth", query={"link": link})
        _show(target, document, show_document)
    elif link:
        raise Unusable(f"write --link after `{context.invoked_subcommand}`")


def _bandwidth_mode(mode: str) -> Callable[..., None]:
    def command(
        context: typer.Context,
        *,
        link: LinkOption = None,
        url: UrlOption = None,
        key: KeyOption = None,
        dry_run: DryRun = False,
        as_json: AsJson = False,
    ) -> None:
        target = settle_target(context, url, key, as_json=as_json)
        _change(
            target,
            "PUT",
            "bandwidth",
            query={"link": link},
            body={"mode": mode},
            view=show_document,
            dry_run=dry_run,
        )

    command.__doc__ = {
        "auto": "Let utilisation decide.",
        "scarce": "Take bandwidth for scarce: each cluster uses its own prefix.",
        "abundant": "Take bandwidth for abundant: prefixes may travel.",
    }[mode]
    return command


def override(
    context: typer.Context,
    *,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Show overrides of the route, or change them: set, clear.

    Examples: prfaas ctl override set local --ttl 60 --tenant acme · prfaas ctl override clear
    """
    target = settle_target(context, url, key, as_json=as_json)
    if context.invoked_subcommand is None:
        _show(target, call_admin(target, "GET", "override"), show_overrides)


def override_set(
    context: typer.Context,
    *,
    route: Annotated[Route, typer.Argument(help="Where prefills are to run.")],
    ttl: Annotated[
        float | None, typer.Option("--ttl", min=0.001, help="Seconds; left out, until cleared.")
    ] = None,
    model: ModelOption = None,
    tenant: TenantOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Send prefills one way, whatever their length. A dead path is never chosen."""
    target = settle_target(context, url, key, as_json=as_json)
    body = _given(route=route, model=model, tenant=tenant, ttl_seconds=ttl)
    _change(target, "PUT", "override", body=body, view=show_overrides, dry_run=dry_run)


def override_clear(
    context: typer.Context,
    *,
    model: ModelOption = None,
    tenant: TenantOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Drop the override of a model or tenant, or all of them."""
    target = settle_target(context, url, key, as_json=as_json)
    scope = {"model": model, "tenant": tenant}
    _change(target, "DELETE", "override", query=scope, view=show_overrides, dry_run=dry_run)


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
        _show(target, call_admin(target, "GET", "instances"), show_instances)


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
    body = _given(state=state, role=role)
    if not body:
        raise Unusable("nothing to set: give --state or --role")
    _change(
        target,
        "PATCH",
        f"instances/{_segment(name)}",
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
    entry |= _given(
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
    _change(target, "POST", "instances", body=entry, view=show_instances, dry_run=dry_run)


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
    _change(target, "DELETE", f"instances/{_segment(name)}", view=show_instances, dry_run=dry_run)


def audit(
    context: typer.Context,
    *,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Show who changed what, when, from what to what; newest first."""
    target = settle_target(context, url, key, as_json=as_json)
    _show(target, call_admin(target, "GET", "audit", query={"limit": limit}), show_audit)


def _given(**values: str | float | None) -> dict[str, Json]:
    """Return those values that were given."""
    return {
        name: str(value) if isinstance(value, str) else value
        for name, value in values.items()
        if value is not None
    }


def _segment(name: str) -> str:
    """A name as one segment of a path."""
    if not name or "/" in name or name in {".", ".."}:
        raise Unusable(f"{name!r} is no name")
    return name


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
