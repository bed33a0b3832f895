"""`prfaas ctl decisions`: what was decided, and what had been decided otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from router.commands.admin_client import (
    Json,
    KeyOption,
    Target,
    UrlOption,
    call_admin,
    settle_target,
)
from router.commands.ctl_calls import ModelOption, TenantOption
from router.commands.ctl_views import show_decisions
from router.commands.output import AsJson, Unusable, print_json, print_table
from router.domain.decision import Reason, Regime, Route, Rule

_UNITS: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

_WHEN = "RFC 3339, or how long ago: 30s, 15m, 2h, 1d."

_RECENT: Final = 20
_MOVED_SHOWN: Final = 10


def decisions(
    context: typer.Context,
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = _RECENT,
    route: Annotated[Route | None, typer.Option(help="Only this route.")] = None,
    reason: Annotated[Reason | None, typer.Option(help="Only this reason.")] = None,
    blocked_by: Annotated[Reason | None, typer.Option(help="Only what this kept back.")] = None,
    model: ModelOption = None,
    tenant: TenantOption = None,
    since: Annotated[str | None, typer.Option(metavar="WHEN", help=_WHEN)] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help=_WHEN)] = None,
    cursor: Annotated[str | None, typer.Option(help="Go on after a page: its `next`.")] = None,
    replay_threshold: Annotated[
        int | None, typer.Option(min=0, help="Decide them again with this t.")
    ] = None,
    replay_regime: Annotated[
        Regime | None, typer.Option(help="Decide them again in this regime.")
    ] = None,
    replay_policy: Annotated[
        Rule | None, typer.Option(help="Decide them again by this rule.")
    ] = None,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the latest decisions, newest first, or what they had been otherwise.

    Examples: prfaas ctl decisions --limit 5 --route prfaas
    · prfaas ctl decisions --since 1h --replay-threshold 12000
    """
    target = settle_target(context, url, key, as_json=as_json)
    now = datetime.now(UTC)
    scope: dict[str, str | int | None] = {
        "model": model,
        "tenant": tenant,
        "since": _read_when("--since", since, now),
        "until": _read_when("--until", until, now),
    }
    page = {"route": route, "reason": reason, "blocked_by": blocked_by, "cursor": cursor}
    instead = {"threshold": replay_threshold, "regime": replay_regime, "policy": replay_policy}
    if any(value is not None for value in instead.values()):
        if any(value is not None for value in page.values()):
            raise Unusable("a replay takes --model, --tenant, --since and --until alone")
        _replay(target, scope | instead)
        return
    document = call_admin(target, "GET", "decisions", query={"limit": limit, **page, **scope})
    if target.as_json:
        print_json(document)
        return
    show_decisions(document)
    following = document.get("next") if isinstance(document, dict) else None
    if following is not None:
        print(f"\nolder ones: --cursor '{following}'")


def _replay(target: Target, given: Mapping[str, str | int | None]) -> None:
    body: Json = {name: value for name, value in given.items() if value is not None}
    document = call_admin(target, "POST", "decisions:replay", body=body)
    if target.as_json:
        print_json(document)
    elif isinstance(document, dict):
        show_replay(document)


def _read_when(option: str, text: str | None, now: datetime) -> str | None:
    """Read a moment, or how long ago it is. Raises Unusable."""
    if text is None:
        return None
    ago = re.fullmatch(r"(\d{1,7})([smhd])", text)
    if ago is not None:
        return (now - timedelta(seconds=int(ago[1]) * _UNITS[ago[2]])).isoformat()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Unusable(f"{option} {text!r} is no moment: {_WHEN}") from None
    return (moment if moment.tzinfo else moment.astimezone()).isoformat()


def show_replay(document: Mapping[str, Json]) -> None:
    """Show both sides of a replay, and who would have moved."""
    covers, moved = _object(document, "covers"), _object(document, "moved")
    if not covers.get("decisions"):
        print("no decisions yet")
        return
    print(f"{covers['decisions']:,} decisions from {covers.get('from')} to {covers.get('to')}\n")
    recorded, replayed = _object(document, "recorded"), _object(document, "replayed")
    print_table("", ("", "recorded", "replayed", "how known"), _rows(recorded, replayed))
    print(
        f"\n{moved.get('to_prfaas', 0):,} would have gone to PrfaaS,"
        f" {moved.get('to_local', 0):,} would have stayed"
    )
    requests = moved.get("requests")
    for each in requests[:_MOVED_SHOWN] if isinstance(requests, list) else ():
        if isinstance(each, dict):
            print(
                f"  {each.get('request_id')}  {each.get('uncached_tokens'):,} uncached:"
                f" {each.get('recorded')} -> {each.get('replayed')}"
            )
    notes = document.get("notes")
    for note in notes if isinstance(notes, list) else ():
        print(f"- {note}")


def _rows(recorded: Mapping[str, Json], replayed: Mapping[str, Json]) -> list[Sequence[Json]]:
    rows: list[Sequence[Json]] = []
    for group in ("routes", "reasons"):
        before, after = _object(recorded, group), _object(replayed, group)
        rows += [
            (name, before.get(name, 0), after.get(name, 0), "counted")
            for name in dict.fromkeys([*before, *after])
        ]
    rows.append(
        (
            "offloaded tokens",
            recorded.get("offloaded_tokens"),
            replayed.get("offloaded_tokens"),
            "counted",
        )
    )
    for name, label in (
        ("link_bytes", "bytes over links"),
        ("link_gbps", "mean Gbit/s over links"),
        ("ttft_mean_seconds", "TTFT mean, s"),
    ):
        one, other = _object(recorded, name), _object(replayed, name)
        rows.append((label, one.get("value"), other.get("value"), one.get("source")))
    return rows


def _object(document: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}
