"""One request on a client's connection and its answer, as ASGI: cheap where nothing is special.

What uvicorn does for every request, and few need: an event, two searches for each field of the
head, a task that waits for the client to leave. Here nobody waits who need not, a head is checked
and written as a whole, and who wants to know when the client leaves is called (ADR 12).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from router.gateway.dispatch import Application
from router.gateway.requests import DEPARTURES, OUTLET, Message, Scope

_LOG = logging.getLogger(__name__)

READ_AHEAD_BYTES: Final = 64 * 1024
"""How much of a body is read before anybody asks for it."""

_NOT_IN_NAMES: Final = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_NOT_IN_VALUES: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_FAILED: Final = b"Internal Server Error"
_LATE: Final[Message] = {"type": "http.disconnect", "late": True}
_GONE: Final[Message] = {"type": "http.disconnect"}

Fields = Sequence[tuple[bytes, bytes]]


class Voice(Protocol):
    """What an answer may do with its connection."""

    def write(self, data: bytes) -> None:
        """Send bytes."""
        ...

    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        ...

    def close(self) -> None:
        """End the connection when all was sent."""
        ...


class Cycle:
    """One request and its answer.

    Implements `router.gateway.requests.Departures` and `router.service.flows.Outlet`.
    `expired` tells whoever reads the body that it is late; it can still be answered.
    """

    __slots__ = (
        "_chunked",
        "_flow",
        "_has_news",
        "_head",
        "_is_head",
        "_knows_chunks",
        "_left",
        "_on_departure",
        "_on_response",
        "_own_fields",
        "_parts",
        "_request",
        "_size",
        "_transport",
        "_waiter",
        "disconnected",
        "expired",
        "keep_alive",
        "more_body",
        "response_complete",
        "response_started",
        "waiting_for_100_continue",
    )

    def __init__(
        self,
        scope: Scope,
        *,
        voice: Voice,
        flow: FlowControl,
        own_fields: Fields,
        keep_alive: bool,
        expects_continue: bool,
        on_response: Callable[[], None],
    ) -> None:
        """`own_fields` go with every head; `on_response` is called when the answer is complete."""
        self._request = scope
        self._flow = flow
        self._transport = voice
        self._own_fields = own_fields
        self._on_response = on_response
        self._parts: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._on_departure: Callable[[], None] | None = None
        self._has_news = False
        self._head = b""
        self._is_head = scope["method"] == "HEAD"
        self._knows_chunks = scope["http_version"] != "1.0"
        self._left: int | None = None
        self._chunked = False  # whether chunks may be sent now
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = expects_continue
        self.disconnected = False
        self.expired = False
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        scope["extensions"] = {DEPARTURES: self, OUTLET: self}

    # -- called by the connection

    def take(self, piece: bytes) -> None:
        """Keep a piece of the body until it is asked for; hold the client back over a bound."""
        self._parts.append(piece)
        self._size += len(piece)
        if self._size > READ_AHEAD_BYTES:
            self._flow.pause_reading()
        self._has_news = True
        if self._waiter is not None:
            self.tell()

    def end_body(self) -> None:
        """The body is whole."""
        self.more_body = False
        self._has_news = True
        if self._waiter is not None:
            self.tell()

    def depart(self) -> None:
        """The client has left."""
        if not self.response_complete:
            self.disconnected = True
            self._chunked = False
            if self._on_departure is not None:
                self._on_departure()
        self.tell()

    def tell(self) -> None:
        """Wake whoever waits for a message."""
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- ASGI

    def on_departure(self, callback: Callable[[], None] | None) -> bool:
        """Call `callback` when the client leaves, None nobody; False where it has left already."""
        self._on_departure = callback
        return not self.disconnected

    async def run(self, app: Application) -> None:
        """Let the application answer; whatever it leaves undone breaks the connection."""
        try:
            await app(self._request, self.receive, self.send)
        except Exception:  # noqa: BLE001 - a request's root: whatever broke, the client is told
            _LOG.exception("the application failed")
        finally:
            if not self.response_started and not self.disconnected:
                await self._send_failure()
            if not self.response_complete and not self.disconnected:
                if self._head:
                    self._transport.write(self._head)
                self._transport.close()

    async def _send_failure(self) -> None:
        fields = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(_FAILED)),
            (b"connection", b"close"),
        ]
        await self.send({"type": "http.response.start", "status": 500, "headers": fields})
        await self.send({"type": "http.response.body", "body": _FAILED})

    async def receive(self) -> Message:
        """Return what came of the body since, or that the client has left or is answered."""
        if self.waiting_for_100_continue and not self._transport.is_closing():
            self._transport.write(_CONTINUE)
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete and not self.expired:
            self._flow.resume_reading()
            if not self._has_news:
                await self._wait()
            self._has_news = False
        if self.disconnected or self.response_complete:
            return _GONE
        if self.expired:
            return _LATE
        parts, self._parts = self._parts, []
        self._size = 0
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def send(self, message: Message) -> None:
        """Write a part of the response, at the pace at which the client takes it."""
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if self.disconnected:
            # Told once more: Python 3.11's `wait_for`, with which redis-py writes, loses one
            # cancellation in a thousand, and an answer to nobody would run to its end.
            if self._on_departure is not None:
                self._on_departure()
            return
        kind = message["type"]
        if self.response_complete:
            raise RuntimeError(f"{kind} after the end of the response")
        if not self.response_started:
            if kind != "http.response.start":
                raise RuntimeError(f"{kind} before the head of the response")
            self._write_head(message["status"], message.get("headers", ()))
        elif kind == "http.response.body":
            self._write_body(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"{kind} amid a response")

    def write(self, piece: bytes, chunks: bytes | None = None) -> bool:
        """Send a piece of a body that has begun and goes on, as `send` would, at once.

        `chunks` is the piece in the chunks in which it came: they are sent as they are.
        """
        if chunks is not None and self._chunked:
            self._transport.write(chunks)
            return not self._flow.write_paused
        if self.disconnected:
            if self._on_departure is not None:
                self._on_departure()  # as in `send`
            return True
        if self.response_complete or not self.response_started:
            raise RuntimeError("a piece of a body outside of a response")
        self._write_body(piece, more=True)
        return not self._flow.write_paused

    async def drain(self) -> None:
        """Wait until the client takes more, or has left."""
        await self._flow.drain()

    def _write_head(self, status: int, fields: Fields) -> None:
        """Write the head. Raises RuntimeError for a field that HTTP does not allow."""
        self.response_started = True
        self.waiting_for_100_continue = False
        names, values = zip(*fields, strict=True) if fields else ((), ())
        if _NOT_IN_NAMES.search(b"".join(names)) or _NOT_IN_VALUES.search(b"".join(values)):
            raise RuntimeError("a response header has characters that HTTP does not allow")
        lines = [STATUS_LINE[status]]
        if self._own_fields:
            lines += [b"%b: %b\r\n" % field for field in self._own_fields]
        lines += [b"%b: %b\r\n" % field for field in fields]
        if self._is_head or status in (204, 304):
            self._left = 0
        elif b"content-length" in names:
            self._left = int(values[names.index(b"content-length")])
        elif self._knows_chunks:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            self.keep_alive = False  # to HTTP/1.0 the end of the connection is that of the body
        if b"connection" in names and b"close" in values[names.index(b"connection")].lower():
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        if self._left:
            self._head = b"".join(lines)  # a body of a told length is at hand: both go at once
        else:
            self._transport.write(b"".join(lines))

    def _write_body(self, body: bytes, *, more: bool) -> None:
        """Write a piece of the body. Raises RuntimeError where it is not as long as was said."""
        if self._is_head:
            pass
        elif self._left is None:
            if not self._knows_chunks:
                self._transport.write(body)
            elif body:
                end = b"\r\n" if more else b"\r\n0\r\n\r\n"
                self._transport.write(b"%x\r\n%b%b" % (len(body), body, end))
            elif not more:
                self._transport.write(b"0\r\n\r\n")
        else:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the body is not as long as its content-length")
            if body:
                self._transport.write(self._head + body)
                self._head = b""
        if not more:
            self.response_complete = True
            self._chunked = False
            self.tell()
            if not self.keep_alive:
                self._transport.close()
            self._on_response()
