"""Cross-origin access for browsers, by `server.cors` (CASES R31)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.middleware.cors import CORSMiddleware

from router.gateway.dispatch import Application
from router.gateway.requests import Receive, Scope, Send

_OPERATORS: Final = ("/admin", "/metrics")
"""Never for pages: an admin API without keys answers loopback, which is where browsers run."""

_EXPOSED: Final = (
    "x-request-id",
    "retry-after",
    "x-prfaas-route",
    "x-prfaas-reason",
    "x-prfaas-prefill",
    "x-prfaas-decode",
    "x-prfaas-total-tokens",
    "x-prfaas-uncached-tokens",
    "x-prfaas-cached-tokens",
    "x-prfaas-threshold",
)


@dataclass(frozen=True, slots=True)
class CorsRules:
    """Who may call from a page, and what browsers may send along. No origins: nobody."""

    allow_origins: tuple[str, ...] = ()
    allow_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    max_age: int = 600


class CrossOrigin:
    """Answers preflights and marks answers for the origins that may read them.

    It stands before authentication, since browsers send no key with a preflight.
    """

    def __init__(self, application: Application, rules: CorsRules) -> None:
        self._plain = application
        self._shared = CORSMiddleware(
            application,
            allow_origins=rules.allow_origins,
            allow_methods=("GET", "POST"),
            allow_headers=rules.allow_headers,
            allow_credentials=rules.allow_credentials,
            expose_headers=_EXPOSED,
            max_age=rules.max_age,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        ours = scope["type"] == "http" and not scope["path"].startswith(_OPERATORS)
        await (self._shared if ours else self._plain)(scope, receive, send)
