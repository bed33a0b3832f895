"""HTTP/1.1 from clients: uvicorn's protocol on the C parser, within the bounds of `client_limits`.

What uvicorn leaves open is closed here: a head or body that never comes, a reader that takes
nothing, heads without end, trailers among the fields of a request, pipelines that outrun their
answers, an `Upgrade` that costs the request its body, a fault behind a request that is being
answered. One timer looks at all connections; a request in order costs nothing for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.domain.errors import (
    BadRequest,
    Overloaded,
    RequestTimeout,
    RouterError,
)
from router.domain.units import Seconds
from router.gateway.client_limits import (
    FRAMING_SHARE,
    LINGER_BYTES,
    SURPLUS_CONNECTIONS,
    ClientLimits,
    ConnectionView,
    Overdue,
    Reading,
    judge,
)
from router.gateway.cycles import Cycle
from router.gateway.dispatch import Application
from router.gateway.errors import error_response, speaks_anthropic, write_response
from router.gateway.half_closes import ECHO_SECONDS, QUESTION, is_answerable, was_reset
from router.gateway.refusals import Refusal, RefusalLog, cause_of
from router.gateway.request_heads import (
    RefusedRequest,
    check_head,
    explain_fault,
    form_plain_head,
    large_head,
    malformed,
    split_target,
)
from router.gateway.requests import Receive, Scope, Send

_ALWAYS_ANSWERED: Final = ("/health", "/ready", "/metrics", "/admin/")
"""Answered on connections over the limit too: a busy gateway must not look dead."""

_MOST_PIPELINED: Final = 16
"""Requests that may wait on one connection behind the one that is answered."""


class ClientEdge:
    """All connections of one server, and the timer that looks at them while there are any."""

    def __init__(self, limits: ClientLimits, refusals: RefusalLog | None = None) -> None:
        """`refusals` takes note of what no application sees; None lets it pass unnoticed."""
        self.limits = limits
        self._refusals = refusals
        self.connections: set[ClientConnection] = set()
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, connection: ClientConnection) -> int:
        """Count a connection in; return how many there are over the limit."""
        self.connections.add(connection)
        if self._timer is None:
            self._timer = connection.loop.call_later(self.limits.tick, self._look, connection.loop)
        return max(0, len(self.connections) - self.limits.max_connections)

    def leave(self, connection: ClientConnection) -> None:
        """Count a connection out."""
        self.connections.discard(connection)
        if not self.connections and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def refuse(self, cause: Refusal, status: int | None, message: str) -> None:
        """Take note of what was refused on a connection."""
        if self._refusals is not None:
            self._refusals.tell(cause, status, message)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self.limits.tick, self._look, loop)
        now = loop.time()
        for connection in list(self.connections):
            connection.look(now)


class EdgeConfig(uvicorn.Config):
    """A server's configuration with the edge that its connections share."""

    def __init__(self, app: Any, *, edge: ClientEdge, **options: Any) -> None:  # noqa: ANN401 - uvicorn's own types
        super().__init__(app, http=ClientConnection, **options)
        self.edge = edge


class _Voice:
    """A connection's transport as its answers see it: closing is the connection's to do."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class ClientConnection(HttpToolsProtocol):
    """One client's connection.

    `cycle` (uvicorn's) is the request that was parsed last, `_running` the one that is answered.
    """

    config: EdgeConfig
    cycle: Cycle  # type: ignore[assignment]  # in place of uvicorn's own
    pipeline: deque[tuple[Cycle, Application]]  # type: ignore[assignment]  # of ours as well

    def __init__(
        self,
        config: EdgeConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._edge = config.edge
        self._limits = config.edge.limits
        self._reading = Reading.NOTHING
        self._since = self._heard = self.loop.time()
        self._application = cast("Application", config.app)  # as it was given, without wrappers
        self._running: Cycle | None = None
        self._surplus = False
        self._half_closed = False
        self._begun = self._upgrading = False
        self._head_bytes = self._body_bytes = self._framing = self._rest = 0
        self._unsent = 0
        self._stalled_since: Seconds | None = None

    # -- its life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection, unless there are too many."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._voice = _Voice(self.transport, self._close_gently)
        over = self._edge.enter(self)
        self._surplus = over > 0
        if over > SURPLUS_CONNECTIONS:
            self._answer(_too_many())
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is being answered, and forget those behind it."""
        self._edge.leave(self)
        self.pipeline.clear()
        self.connections.discard(self)
        if self._running is not None:
            self._running.depart()
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self.parser = None  # type: ignore[assignment]  # as uvicorn does: it refers to this object

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's lets all of them go
        """Keep a client that has sent all and may wait for its answer; True to keep it.

        One whose answer has begun has left: nothing could be sent amid it that tells otherwise.
        """
        if self._half_closed:
            return True
        running = self._running
        if (
            running is None
            or running.response_started
            or self._reading is not Reading.NOTHING
            or self.scope["http_version"] != "1.1"
            or not is_answerable(self.transport)
        ):
            return False
        self._half_closed = True
        self.cycle.keep_alive = False
        self.transport.write(QUESTION)
        self.loop.call_later(ECHO_SECONDS, self._look_for_reset)
        return True

    def _look_for_reset(self) -> None:
        if not self.transport.is_closing() and was_reset(self.transport):
            self.transport.abort()

    def look(self, now: Seconds) -> None:
        """Act on what is overdue."""
        if self._half_closed:
            self._look_for_reset()
        self._watch_writing(now)
        if self._reading is Reading.BODY and self.flow.read_paused:
            self._since = self._heard = now  # it is we who do not read
        view = ConnectionView(
            reading=self._reading,
            since=self._since,
            heard=self._heard,
            body_bytes=self._body_bytes,
            busy=self._running is not None,
            fresh=self.cycle is None,
            stalled_since=self._stalled_since,
        )
        match judge(view, self._limits, now):
            case None:
                pass
            case Overdue.BODY:
                self._expire_body()
            case Overdue.HEAD if self._begun:
                self._fail(RequestTimeout(Overdue.HEAD.value))
            case Overdue.READER:
                self._edge.refuse(Refusal.STALLED, None, Overdue.READER.value)
                self.transport.abort()
            case Overdue.REST:
                self.transport.abort()
            case Overdue.HEAD | Overdue.REQUEST:
                self.transport.close()

    def _watch_writing(self, now: Seconds) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0:
            self._stalled_since = None
        elif self._stalled_since is None or unsent != self._unsent:
            self._stalled_since = now
        self._unsent = unsent

    def _expire_body(self) -> None:
        cycle = self.cycle
        if cycle is not self._running or cycle.response_started:
            self._fail(RequestTimeout(Overdue.BODY.value))
            return
        cycle.expired = True
        cycle.keep_alive = False
        cycle.tell()
        self._turn_to(Reading.REST)

    # -- bytes in

    def data_received(self, data: bytes) -> None:
        """Parse what came, or drop it where nobody wants it."""
        self._heard = self.loop.time()
        if self._reading is Reading.REST:
            self._drop(len(data))
            return
        if self._reading is Reading.NOTHING:
            self._turn_to(Reading.HEAD)
            self._begun = False
        reading, cycle = self._reading, self.cycle
        try:
            self._parse(data)
            if self._reading is reading and self.cycle is cycle:
                self._bound(len(data))
        except RefusedRequest as refusal:
            self._fail(refusal.error)
        except httptools.HttpParserError as error:
            self._fail(explain_fault(error))

    def _parse(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                data = self._ignore_upgrade() + data[stopped.args[0] :]
            else:
                return

    def _ignore_upgrade(self) -> bytes:
        """Return the head without its wish for another protocol, for a parser that begins anew.

        The parser stops at any `Upgrade`, before the body. A server may ignore the wish and serve
        the request as it is (RFC 9110 7.8).
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise RefusedRequest(BadRequest("CONNECT is for proxies"))
        self.parser = httptools.HttpRequestParser(self)
        return form_plain_head(method, self.url, self.headers)

    def _bound(self, count: int) -> None:
        """Refuse what grows without becoming a request."""
        if self._reading is Reading.HEAD:  # less what the first read had of it
            self._head_bytes += count
            if self._head_bytes > self._limits.max_head_bytes:
                raise RefusedRequest(large_head(self._limits))
        elif self._reading is Reading.BODY:
            self._framing += count
            allowed = self._limits.max_head_bytes + (FRAMING_SHARE + 1) * self._body_bytes
            if self._framing > allowed or len(self.headers) > self._limits.max_head_fields:
                raise RefusedRequest(malformed("there is more framing than body"))

    def _turn_to(self, reading: Reading) -> None:
        self._reading = reading
        self._since = self._heard

    # -- what the parser finds

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._turn_to(Reading.HEAD)
        self._begun = True
        self._upgrading = False
        self._head_bytes = self._body_bytes = self._framing = self._rest = 0

    def on_headers_complete(self) -> None:
        """Check the head, and begin or queue its request."""
        self._upgrading = self.parser.should_upgrade()
        if self._upgrading:
            return
        check_head(self.url, self.headers, self.parser.get_http_version(), self._limits)
        self._turn_to(Reading.BODY)
        self._fill_scope()
        self.headers = []  # what comes now are trailers: none of the request's fields
        self.cycle = self._form_cycle()
        app = self._application
        if self._surplus and not self.scope["path"].startswith(_ALWAYS_ANSWERED):
            app = cast("Application", _refuse_surplus)
            self._edge.refuse(Refusal.TOO_MANY, 503, str(_too_many()))
        if self._running is None:
            self._serve(self.cycle, app)
            return
        if len(self.pipeline) >= _MOST_PIPELINED:
            raise RefusedRequest(BadRequest("too many requests wait on this connection"))
        self.pipeline.appendleft((self.cycle, app))

    def _fill_scope(self) -> None:
        scope = self.scope
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = self.parser.get_http_version()
        scope["path"], scope["raw_path"], scope["query_string"] = split_target(self.url)

    def _form_cycle(self) -> Cycle:
        # Whether the body of a request that expects 100-continue comes is open once it is
        # refused, so nothing can follow it on its connection.
        keep = not self._surplus and not self.expect_100_continue
        return Cycle(
            self.scope,  # type: ignore[arg-type]  # uvicorn's own type of it
            voice=self._voice,
            flow=self.flow,
            own_fields=self.server_state.default_headers,
            expects_continue=self.expect_100_continue,
            keep_alive=keep
            and self.scope["http_version"] == "1.1"
            and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )

    def _serve(self, cycle: Cycle, application: Application) -> None:
        self._running = cycle
        task = self.loop.create_task(cycle.run(application))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body; drop what comes after its answer, within bounds."""
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            self._rest += len(body)
            if self._rest > LINGER_BYTES:
                self._close_gently()
            return
        self.cycle.take(body)

    def on_message_complete(self) -> None:
        """End a request's body."""
        if self._upgrading:
            return
        if not self.cycle.response_complete:
            self.cycle.end_body()
        if self._reading is not Reading.REST:
            self._turn_to(Reading.NOTHING)

    # -- answers out

    def on_response_complete(self) -> None:
        """Answer the next request, or wait for one."""
        self.server_state.total_requests += 1
        self._running = None
        if self.transport.is_closing() or self._reading is Reading.REST:
            return
        if self._reading is Reading.NOTHING:
            self._since = self.loop.time()
        self.flow.resume_reading()
        if self.pipeline:
            self._serve(*self.pipeline.pop())

    def _close_gently(self) -> None:
        """Close after what was written; read on a little where the client still sends.

        Closed at once, the connection would be reset, and the answer lost with it.
        """
        self._running = None
        if self._reading is Reading.NOTHING or self.transport.is_closing():
            self.transport.close()
            return
        self._turn_to(Reading.REST)
        self._since = self.loop.time()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            try:
                self.transport.write_eof()
            except OSError:  # asyncio's own loop tells of a client that has just reset
                self.transport.abort()

    def _drop(self, count: int) -> None:
        self._rest += count
        if self._rest > LINGER_BYTES and self._running is None:
            self.transport.abort()

    def _fail(self, error: RouterError) -> None:
        """End the connection for a fault in what was read, but not a good answer before it."""
        running = self._running
        in_body = self._reading is Reading.BODY
        self.pipeline.clear()
        self._turn_to(Reading.REST)
        if running is not None and not (in_body and running is self.cycle):
            running.keep_alive = False  # its request is whole: the fault is behind it
            return
        if running is not None:
            running.depart()
            if running.response_started:
                self.transport.abort()
                return
        if running is not None or not in_body:  # else it was answered before its body broke
            self._answer(error)
        self._close_gently()

    def _answer(self, error: RouterError) -> None:
        """Answer what is no request, and take note of it."""
        response = error_response(error)
        self.transport.write(write_response(response))
        self._edge.refuse(cause_of(error), response[0], str(error))


def _too_many() -> Overloaded:
    return Overloaded("too many connections")


async def _refuse_surplus(scope: Scope, _receive: Receive, send: Send) -> None:
    named = speaks_anthropic(scope["path"])
    status, headers, body = error_response(_too_many(), named=named)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
