"""The little HTTP that the stand-in needs: one exchange, one listener, work while connected.

Raw ASGI over uvicorn's httptools protocol, without a framework: bodies are large and many, and
nothing here needs one. `Listener` drives the protocol class itself, because a process serves
several ports in one loop and must close one of them, connections and all, without a pause.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from functools import partial
from typing import Any, TypeAlias, cast
from urllib.parse import parse_qsl

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_CLOSE_SECONDS = 1.0

_encode = msgspec.json.Encoder().encode


class ClientGoneError(Exception):
    """The client closed its connection; there is nobody to answer."""


class Exchange:
    """One request and its response."""

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
        self._query: bytes = scope["query_string"]
        self._receive = receive
        self._send = send
        self.extra_headers: list[tuple[bytes, bytes]] = []

    def header(self, name: bytes) -> str | None:
        """Return the first header of a lower-case name."""
        for key, value in self._headers:
            if key == name:
                return value.decode("latin-1")
        return None

    def query(self, name: str) -> str | None:
        """Return a parameter of the query string."""
        return dict(parse_qsl(self._query.decode("latin-1"))).get(name)

    async def read(self) -> bytes:
        """Return the whole body; raises ClientGoneError."""
        parts: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(parts)

    async def reply(
        self,
        status: int,
        body: bytes,
        content_type: bytes | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Send a whole response."""
        fields = [(b"content-length", str(len(body)).encode()), *self.extra_headers, *headers]
        if content_type is not None:
            fields.append((b"content-type", content_type))
        await self._send({"type": "http.response.start", "status": status, "headers": fields})
        await self._send({"type": "http.response.body", "body": body})

    async def reply_json(
        self, status: int, body: object, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Send a whole JSON response."""
        await self.reply(status, _encode(body), b"application/json", headers)

    async def start_stream(self) -> None:
        """Begin a response of server-sent events."""
        fields = [(b"content-type", b"text/event-stream; charset=utf-8"), *self.extra_headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": fields})

    async def send_part(self, body: bytes, *, last: bool = False) -> None:
        """Send a part of a response that was started."""
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})

    async def start_broken(self, length: int) -> None:
        """Promise `length` bytes; a fault that then sends fewer breaks the connection."""
        fields = [(b"content-length", str(length).encode()), (b"content-type", b"application/json")]
        await self._send({"type": "http.response.start", "status": 200, "headers": fields})

    async def wait_gone(self) -> None:
        """Return when the client has closed its connection."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def run_while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` to its end, or cancel it as soon as the client leaves."""
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self.wait_gone())
        try:
            await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone = not task.done()
            task.cancel()
            watch.cancel()
            await asyncio.gather(task, watch, return_exceptions=True)
        if gone:
            raise ClientGoneError
        task.result()


class Listener:
    """One HTTP port. `close` ends it and every connection on it, at once.

    `config` says how connections are served, where not as the stand-ins do.
    """

    def __init__(self, app: App, config: Config | None = None) -> None:
        self._config = config or Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_keep_alive=75,
        )
        self._state = ServerState()
        self._state.default_headers = [(b"server", b"uvicorn")]
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Listen on `port`, or a free one for 0. Raises OSError if it is taken."""
        config = self._config
        config.load()
        bound = socket.create_server((host, port), backlog=2048)
        # asyncio does this only for sockets that it made itself; accepted ones inherit it.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = bound.getsockname()[1]
        protocol = cast("type[HttpToolsProtocol]", config.http_protocol_class)
        make = partial(protocol, config=config, server_state=self._state, app_state={})
        self._server = await asyncio.get_running_loop().create_server(make, sock=bound)

    async def close(self) -> None:
        """Stop listening, break every connection and wait for the work on them to end."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._state.tasks:
            # Work ends by itself when its client is gone; cancelling is for what does not.
            _, left = await asyncio.wait(self._state.tasks, timeout=_CLOSE_SECONDS)
            for task in left:
                task.cancel()
