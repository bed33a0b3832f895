"""`prfaas ctl threshold`, `policy` and `override`: by what rule requests are routed."""

from __future__ import annotations

from collections.abc import Callable
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
from router.commands.ctl_calls import (
    ModelOption,
    PdOption,
    PrfaasOption,
    TenantOption,
    change,
    given,
    show_answer,
)
from router.commands.ctl_views import show_document, show_overrides, show_threshold
from router.commands.output import AsJson, Unusable
from router.domain.decision import Route


def threshold(
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
        show_answer(target, call_admin(target, "GET", "threshold", query=scope), show_threshold)
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
    change(target, "PUT", "threshold", query=scope, body=body, view=show_threshold, dry_run=dry_run)


def threshold_mode(mode: str) -> Callable[..., None]:
    """Make the command that puts the threshold into a mode."""

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
        change(
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
        show_answer(target, call_admin(target, "GET", "policy"), show_document)


def policy_choice(word: str) -> Callable[..., None]:
    """Make the command that chooses a rule."""

    def command(
        context: typer.Context,
        *,
        url: UrlOption = None,
        key: KeyOption = None,
        dry_run: DryRun = False,
        as_json: AsJson = False,
    ) -> None:
        target = settle_target(context, url, key, as_json=as_json)
        change(target, "PUT", "policy", body={"policy": word}, view=show_document, dry_run=dry_run)

    command.__doc__ = {
        "paper": "Compare uncached tokens with the threshold.",
        "expected": "Take the threshold as prior, and the side that is done clearly sooner.",
        "slack": "Let prompts wait at the gateway in order of slack, for an instance that is free.",
        "config": "Give the choice of the rule back to the configuration.",
    }[word]
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
        show_answer(target, call_admin(target, "GET", "override"), show_overrides)


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
    body = given(route=route, model=model, tenant=tenant, ttl_seconds=ttl)
    change(target, "PUT", "override", body=body, view=show_overrides, dry_run=dry_run)


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
    change(target, "DELETE", "override", query=scope, view=show_overrides, dry_run=dry_run)
