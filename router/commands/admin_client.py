"""The admin API for commands: one call, one document, failures in one line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import urlsplit

import httpx
import typer

from router.commands.output import CommandFailed, Unusable

DEFAULT_URL: Final = "http://127.0.0.1:8000"
TIMEOUT_SECONDS: Final = 10.0
"""The admin API answers from memory; ten seconds are a gateway in trouble."""

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help=f"The gateway. (env PRFAAS_URL; default {DEFAULT_URL})"
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="The admin key. (env PRFAAS_ADMIN_KEY)"),
]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Check it and show what it would change.")]


@dataclass(frozen=True, slots=True)
class Target:
    """Which gateway is asked, and how the answer is shown."""

    url: str
    key: str | None
    as_json: bool


def settle_target(
    context: typer.Context, url: str | None, key: str | None, *, as_json: bool
) -> Target:
    """Join what stands before and after a command's name; the later word wins.

    Remembers the outcome for the commands below. Raises Unusable for an address that is none.
    """
    outer = context.obj if isinstance(context.obj, Target) else None
    chosen_url = url or (outer.url if outer else os.environ.get("PRFAAS_URL") or DEFAULT_URL)
    chosen_key = key or (outer.key if outer else os.environ.get("PRFAAS_ADMIN_KEY"))
    target = Target(
        check_url(chosen_url), chosen_key or None, as_json or (outer is not None and outer.as_json)
    )
    context.obj = target
    return target


def check_url(url: str, *, option: str = "--url") -> str:
    """Return the address without a final slash. Raises Unusable for what is no HTTP address."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise Unusable(f"{option} {url!r} is no http:// or https:// address")
    return url.rstrip("/")


def call_admin(
    target: Target,
    method: str,
    path: str,
    *,
    query: Mapping[str, str | int | None] | None = None,
    body: Json = None,
) -> Json:
    """Call `/admin/v1/{path}` and return the answer's document, None for an empty one.

    Raises CommandFailed that says what to do about it.
    """
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    parameters = {name: value for name, value in (query or {}).items() if value is not None}
    try:
        with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as client:
            response = client.request(
                method,
                f"{target.url}/admin/v1/{path}",
                params=parameters,
                headers=headers,
                json=body if body is not None else None,
            )
    except httpx.TimeoutException as error:
        raise CommandFailed(f"{target.url} did not answer in {TIMEOUT_SECONDS:g} s") from error
    except httpx.HTTPError as error:
        raise CommandFailed(f"cannot reach {target.url}: {_reason(error)}") from error
    except (UnicodeError, httpx.InvalidURL) as error:
        raise Unusable(
            "the address or the key holds characters that HTTP does not allow"
        ) from error
    return _read(target, path, response)


def _read(target: Target, path: str, response: httpx.Response) -> Json:
    document = _decode(response)
    if response.is_success:
        if document is None and response.content.strip() not in {b"", b"null"}:
            raise CommandFailed(f"{target.url} did not answer in JSON: is it a PrfaaS gateway?")
        return document
    said = _message(document)
    match response.status_code:
        case 401 if target.key is None:
            raise CommandFailed(f"{target.url} wants an admin key: use --key or PRFAAS_ADMIN_KEY")
        case 401:
            raise CommandFailed(f"{target.url} does not accept this admin key")
        case 403:
            raise CommandFailed(f"not allowed: {said or 'this key has not that right'}")
        case 404 if said is None:
            raise CommandFailed(f"{target.url} has no /admin/v1/{path}: is it a PrfaaS gateway?")
        case status:
            raise CommandFailed(said or f"{target.url} answered {status}")


def _decode(response: httpx.Response) -> Json:
    try:
        document: Json = response.json()
    except ValueError:
        return None
    return document


def _message(document: Json) -> str | None:
    """The words of `{"error": {"message": …}}`, on one line."""
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return " ".join(message.split()) if isinstance(message, str) and message.strip() else None


def _reason(error: httpx.HTTPError) -> str:
    text = " ".join(str(error).split())
    if "refused" in text:
        return "connection refused"
    if "Name or service not known" in text or "getaddrinfo" in text or "resolution" in text:
        return "unknown host"
    return text or type(error).__name__
