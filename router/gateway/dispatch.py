"""Tells the relayed paths, which are raw ASGI, from everything that the web framework answers."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

import msgspec

from router.domain.errors import BadRequest, ClientGone, MethodNotAllowed, RouterError
from router.gateway.errors import error_response, speaks_anthropic
from router.gateway.requests import BodyBudget, Message, Receive, Scope, Send, read_body


class Application(Protocol):
    """An ASGI application."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Serve one connection."""
        ...


class Switch:
    """An application that may be exchanged: what it began to serve, it serves to the end."""

    def __init__(self, application: Application) -> None:
        self.application = application

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Serve one connection by the application of now."""
        return self.application(scope, receive, send)


class Dispatcher:
    """Sends relayed paths to their endpoints and everything else to the framework.

    A web framework costs hundreds of microseconds a request and holds the body: the product's core
    does without (ADR 3).
    """

    def __init__(
        self,
        relayed: Mapping[str, Application],
        others: Application,
        *,
        families: Mapping[str, Application],
    ) -> None:
        """`relayed` is by path, for POST; `families` by what paths begin with, for every method."""
        self._relayed = relayed
        self._others = others
        self._families = families

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        endpoint = self._relayed.get(scope["path"]) if scope["type"] == "http" else None
        if endpoint is None:
            await self._find_other(scope)(scope, receive, send)
        elif scope["method"] == "POST":
            await endpoint(scope, receive, send)
        else:
            await _refuse(scope, send, MethodNotAllowed("this path takes POST", allow="POST"))

    def _find_other(self, scope: Scope) -> Application:
        if scope["type"] == "http":
            for prefix, family in self._families.items():
                if scope["path"].startswith(prefix):
                    return family
        return self._others


class BoundedBodies:
    """Reads a request's body within bounds before the framework sees any of it.

    The framework would read it whole, of any size, before it asks who sends it.
    """

    def __init__(self, application: Application, limit: int, budget: BodyBudget) -> None:
        self._application = application
        self._limit = limit
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # what GET would say, without its body
            scope = {**scope, "method": "GET"}
        with self._budget.share() as share:
            try:
                body = await read_body(scope, receive, self._limit, share)
                if body and scope["method"] != "GET":
                    _check_json(body)
            except ClientGone:
                return
            except RouterError as error:
                await _refuse(scope, send, error)
            else:
                await self._application(scope, _Replay(body, receive), send)


def _check_json(body: bytes) -> None:
    """Raise BadRequest for what is no JSON, and for an object that names a member twice.

    Python's own reader takes `NaN` and halves of surrogate pairs, which nothing can write again,
    and the last of two equal names: another reader, before us, may have believed the first.
    """
    try:
        msgspec.json.decode(body)
        json.loads(body, object_pairs_hook=_refuse_repeated)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply", code="invalid_json") from error


def _refuse_repeated(members: list[tuple[str, object]]) -> None:
    """Raise BadRequest for an object that names a member twice."""
    names: set[str] = set()
    for name, _ in members:
        if name in names:
            raise BadRequest(f"{name[:100]} is given twice", param=name[:100], code="invalid_json")
        names.add(name)


class _Replay:
    """Gives a body that was read already, then what comes after it."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


async def _refuse(scope: Scope, send: Send, error: RouterError) -> None:
    status, headers, body = error_response(error, named=speaks_anthropic(scope["path"]))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
