"""Tells the relayed paths, which are raw ASGI, from everything that the web framework answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from router.gateway.requests import Receive, Scope, Send


class Application(Protocol):
    """An ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        ...


class Dispatcher:
    """Sends a POST on a relayed path to its endpoint and everything else to the framework.

    A web framework costs hundreds of microseconds a request and holds the body: the product's core
    does without (ADR 3).
    """

    def __init__(self, relayed: Mapping[str, Application], others: Application) -> None:
        """`relayed` is by path, for POST."""
        self._relayed = relayed
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self._relayed.get(scope["path"])
            if endpoint is not None:
                await endpoint(scope, receive, send)
                return
        await self._others(scope, receive, send)
