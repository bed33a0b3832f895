"""`prfaas ctl`: the admin API (DESIGN 10) for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from router.commands.admin_client import KeyOption, UrlOption, call_admin, settle_target
from router.commands.ctl_calls import show_answer
from router.commands.ctl_conversions import conversion, conversion_abort
from router.commands.ctl_decisions import decisions
from router.commands.ctl_instances import instances, instances_add, instances_remove, instances_set
from router.commands.ctl_links import bandwidth, bandwidth_mode, links, links_set, links_telemetry
from router.commands.ctl_plans import plan, plan_solve
from router.commands.ctl_rules import (
    override,
    override_clear,
    override_set,
    policy,
    policy_choice,
    threshold,
    threshold_mode,
    threshold_set,
)
from router.commands.ctl_views import show_audit, show_document
from router.commands.output import AsJson


def register(app: typer.Typer) -> None:
    """Add `ctl` and its commands."""
    ctl = typer.Typer(no_args_is_help=True, help="See and steer a running gateway.")
    ctl.callback()(_settle)
    ctl.command("state")(state)
    ctl.command("decisions")(decisions)
    ctl.command("audit")(audit)
    _add_group(
        ctl,
        "threshold",
        threshold,
        {
            "set": threshold_set,
            "auto": threshold_mode("auto"),
            "off": threshold_mode("off"),
            "config": threshold_mode("config"),
        },
    )
    _add_group(
        ctl,
        "policy",
        policy,
        {word: policy_choice(word) for word in ("paper", "expected", "slack", "config")},
    )
    _add_group(ctl, "links", links, {"set": links_set, "telemetry": links_telemetry})
    _add_group(
        ctl,
        "bandwidth",
        bandwidth,
        {mode: bandwidth_mode(mode) for mode in ("auto", "scarce", "abundant")},
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


def state(
    context: typer.Context,
    *,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Show everything that the gateway knows, with ages."""
    target = settle_target(context, url, key, as_json=as_json)
    show_answer(target, call_admin(target, "GET", "state"), show_document)


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
    show_answer(target, call_admin(target, "GET", "audit", query={"limit": limit}), show_audit)
