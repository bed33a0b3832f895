"""`prfaas ctl links` and `bandwidth`: what links bear, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from router.commands.admin_client import (
    DryRun,
    KeyOption,
    UrlOption,
    call_admin,
    settle_target,
)
from router.commands.ctl_calls import change, given, segment, show_answer
from router.commands.ctl_views import show_document, show_links
from router.commands.output import AsJson, Unusable

LinkOption = Annotated[str | None, typer.Option("--link", help="Only this link.")]
LinkName = Annotated[str, typer.Argument(metavar="LINK", help="The link's name.")]


class LinkHealth(StrEnum):
    """What an operator says of a link; `auto` leaves it to measurements."""

    UP = "up"
    DOWN = "down"
    AUTO = "auto"


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
        show_answer(target, call_admin(target, "GET", "links"), show_links)


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
    body = given(health=health, capacity_gbps=capacity_gbps)
    if not body:
        raise Unusable("nothing to set: give --health or --capacity-gbps")
    change(target, "PUT", f"links/{segment(name)}", body=body, view=show_links, dry_run=dry_run)


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
    body = given(
        egress_gbps=egress_gbps,
        available_gbps=available_gbps,
        loss_ratio=loss_ratio,
        retransmit_ratio=retransmit_ratio,
        rtt_ms=rtt_ms,
    )
    if not body:
        raise Unusable("nothing to report: give at least one measurement, such as --egress-gbps")
    body["observed_at"] = observed_at or datetime.now(UTC).isoformat()
    path = f"links/{segment(name)}/telemetry"
    show_answer(target, call_admin(target, "POST", path, body=body), show_links)


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
        show_answer(target, document, show_document)
    elif link:
        raise Unusable(f"write --link after `{context.invoked_subcommand}`")


def bandwidth_mode(mode: str) -> Callable[..., None]:
    """Make the command that fixes the bandwidth regime, or leaves it to utilisation."""

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
        change(
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
