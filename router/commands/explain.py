"""`prfaas explain`: where would a prompt go now, and why."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from router.commands.admin_client import Json, KeyOption, UrlOption, call_admin, settle_target
from router.commands.output import AsJson, CommandFailed, Unusable, print_json
from router.commands.wording import describe_decision


class WhatIf(StrEnum):
    """A regime to suppose."""

    SCARCE = "scarce"
    ABUNDANT = "abundant"


def register(app: typer.Typer) -> None:
    """Add `explain`."""
    app.command("explain")(explain)


def explain(
    context: typer.Context,
    *,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, help="Length of a supposed prompt.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="A request body with `messages` or `prompt`; - reads stdin."),
    ] = None,
    cached: Annotated[
        list[str] | None,
        typer.Option(metavar="CLUSTER=N", help="What is cached there; `unknown` for N too."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model.")] = None,
    tenant: Annotated[str | None, typer.Option(help="The tenant.")] = None,
    threshold: Annotated[int | None, typer.Option(min=0, help="Suppose this threshold.")] = None,
    regime: Annotated[WhatIf | None, typer.Option(help="Suppose this bandwidth.")] = None,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Say where a prompt would go now, and why. Nothing is sent to an engine or counted.

    Examples: prfaas explain --tokens 64000 --cached pd-east=12000 ·
    prfaas explain --file body.json --threshold 8000 --json
    """
    target = settle_target(context, url, key, as_json=as_json)
    if (tokens is None) == (file is None):
        raise Unusable("give either --tokens or --file")
    body = _read_body(file) if file is not None else {}
    if tokens is not None:
        body["total_tokens"] = tokens
        body["cached_tokens"] = parse_cached(cached or [])
    elif cached:
        raise Unusable("--cached goes with --tokens: for a real prompt the index is asked")
    asked = {"model": model, "tenant": tenant, "threshold": threshold, "regime": regime}
    body |= {name: value for name, value in asked.items() if value is not None}
    document = call_admin(target, "POST", "decisions:explain", body=body)
    if target.as_json:
        print_json(document)
        return
    if not isinstance(document, dict):
        raise CommandFailed(f"{target.url} did not answer with a decision")
    for sentence in describe_decision(document):
        print(sentence)


def parse_cached(pairs: list[str]) -> dict[str, Json]:
    """Read `CLUSTER=N` pairs; N may be `unknown`. Raises Unusable."""
    result: dict[str, Json] = {}
    for pair in pairs:
        cluster, separator, number = pair.rpartition("=")
        if not separator or not cluster:
            raise Unusable(f"--cached {pair!r}: write CLUSTER=N")
        if number in {"unknown", "null"}:
            result[cluster] = None
        elif number.isascii() and number.isdigit():
            result[cluster] = int(number)
        else:
            raise Unusable(f"--cached {pair!r}: {number!r} is no number of tokens")
    return result


def _read_body(file: Path) -> dict[str, Json]:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
        document = json.loads(text)
    except OSError as error:
        raise Unusable(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Unusable(f"{file} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise Unusable(f"{file} holds no JSON object")
    return document
