"""Tells the relayed paths, which are raw ASGI, from everything that the web framework answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from router.domain.errors import MethodNotAllowed
from router.gateway.errors import error_response
from router.gateway.requests import Receive, Scope, Send


class Application(Protocol):
    """An ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        ...


class Dispatcher:
    """Sends relayed paths to their endpoints and everything else to the framework.

    A web framework costs hundreds of microseconds a request and holds the body: the product's core
    does without (ADR 3).
    """

    def __init__(self, relayed: Mapping[str, Application], others: Application) -> None:
        """`relayed` is by path, for POST."""
        self._relayed = relayed
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        endpoint = self._relayed.get(scope["path"]) if scope["type"] == "http" else None
        if endpoint is None:
            await self._others(scope, receive, send)
        elif scope["method"] == "POST":
            await endpoint(scope, receive, send)
        else:
            await _refuse_method(send)


async def _refuse_method(send: Send) -> None:
    status, headers, body = error_response(MethodNotAllowed("this path takes POST"))
    headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
