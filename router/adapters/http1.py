"""One HTTP/1.1 connection to an engine: bytes in, one response at a time out.

`Connection` is an `asyncio.Protocol` fed by the event loop; llhttp (httptools) parses; what comes
goes into an `Exchange`. Whole chunks of a body go past the parser, which misses nothing by it.

Where a body may end is decided here and nowhere else: at Content-Length, at the last chunk, or,
with neither, at the end of the connection. Any other end is `UpstreamBroken`.
"""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import termios
from collections.abc import Callable, Sequence
from contextlib import aclosing
from enum import Enum
from fcntl import ioctl
from typing import Final, cast

import httptools

from router.adapters.alarms import Alarm
from router.adapters.chunks import read_chunks
from router.adapters.exchange import Exchange
from router.adapters.http_fields import read_head
from router.domain.errors import UpstreamBroken, UpstreamError, UpstreamLost, UpstreamUnreachable
from router.domain.units import Seconds
from router.ports import EngineRequest, Upload

MAX_HEAD_BYTES: Final = 64 * 1024
"""Bound of a response head (and of trailers). nginx allows 8 KiB, aiohttp 8 KiB a line."""

_HEAD_END: Final = b"\r\n\r\n"
_CHUNKED: Final = b"chunked"


class NotProcessed(UpstreamBroken):
    """The connection died and the engine provably has not seen the whole request."""


class _Phase(Enum):
    """What a connection is doing."""

    IDLE = "idle"
    HEAD = "awaiting a response head"
    BODY = "receiving a body"
    CLOSED = "closed"


class Connection(asyncio.Protocol):
    """A connection, used for one request after the other.

    `released` is called when it can be used again, `closed` (once) when it is gone; the latter's
    second argument tells whether the engine closed it while it was idle.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        released: Callable[[Connection], None],
        closed: Callable[[Connection, bool], None],
    ) -> None:
        self._loop = loop
        self._released = released
        self._closed = closed
        self._parser = httptools.HttpResponseParser(self)
        self._phase = _Phase.IDLE
        self._exchange: Exchange | None = None
        self._instance = ""
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._head_only = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._until_eof = False
        self._after_chunk = self._at_chunk = False
        self._barren = 0
        self._surplus = False
        self._paused = False
        self._uploading = False
        self._writable: asyncio.Future[None] | None = None
        self._poll = select.poll()
        self._silence = Alarm(loop, self._expire)
        self._doubt = Alarm(loop, self._judge_doubt)
        self._size = 0
        self.used = False
        self.heard_at: Seconds | None = None
        self.idle_since: Seconds = 0.0
        self.keep_alive: Seconds | None = None

    @property
    def made(self) -> bool:
        """Whether the connection was ever there: `closed` is then called for it."""
        return self._socket is not None

    def __repr__(self) -> str:
        return f"<Connection {self._phase.value}{', used' if self.used else ''}>"

    # -- for the pool

    async def send(self, request: EngineRequest, wire: bytes) -> Exchange:
        """Write an encoded request, wait for its response's head.

        Raises NotProcessed, UpstreamUnreachable, UpstreamBroken, UpstreamTimeout; cuts the
        connection on these and when cancelled.
        """
        transport = self._transport
        if transport is None or self._phase is not _Phase.IDLE:
            raise NotProcessed("the connection is gone", instance=request.instance, processed=False)
        exchange = Exchange(request, self._loop, self.cut, self._resume, self._silence)
        self._exchange = exchange
        self._instance = request.instance
        self._phase = _Phase.HEAD
        self._head_only = request.method == "HEAD"
        self._headers = []
        self._barren = 0
        self._size = len(wire)
        transport.write(wire)
        if request.timeouts.connect:
            self._doubt.set(request.timeouts.connect)
        try:
            if request.upload is None:
                while not exchange.status:
                    await exchange.wait(request.timeouts.first_byte)
            else:
                await self._send_upload(exchange, request, request.upload)
        except BaseException:
            exchange.cut()
            raise
        return exchange

    async def _send_upload(
        self, exchange: Exchange, request: EngineRequest, upload: Upload
    ) -> None:
        """Send a body as it comes and wait for the head; one that comes early ends the sending.

        The time-out for the head begins when the body is sent: a slow client is no silent engine.
        """
        self._uploading = upload.length != 0
        sending = asyncio.create_task(self._write_pieces(upload))
        heading = asyncio.create_task(exchange.wait_head(0))
        try:
            await asyncio.wait({sending, heading}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
                limit = request.timeouts.first_byte
                if not (await asyncio.wait({heading}, timeout=limit or None))[0]:
                    exchange.expire_after(limit)
            await heading
        finally:
            sending.cancel()
            heading.cancel()
            await asyncio.gather(sending, heading, return_exceptions=True)

    async def _write_pieces(self, upload: Upload) -> None:
        """Write a body at the pace at which the engine takes it; stop when the connection goes.

        The upload counts as over with its last byte, which is all that the engine waits for.
        """
        framed = upload.length is None
        left = upload.length
        async with aclosing(upload.pieces()) as pieces:
            async for piece in pieces:
                if self._transport is None:
                    return
                if piece:
                    frame = b"%x\r\n%s\r\n" % (len(piece), piece) if framed else piece
                    self._size += len(frame)
                    self._transport.write(frame)
                if left is not None:
                    left -= len(piece)
                    self._uploading = left > 0
                await asyncio.sleep(0)  # uvloop writes, and finds that it cannot, between turns
                if self._writable is not None:
                    await self._writable
        if framed and self._transport is not None:
            self._transport.write(b"0\r\n\r\n")
            self._uploading = False

    def watch_peer(self, options: Sequence[tuple[str, int]]) -> None:
        """Let the kernel find out that a silent peer is gone; options it does not know are left."""
        if self._socket is None:
            return
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options:
            if (option := getattr(socket, name, None)) is not None:
                self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

    def is_stale(self) -> bool:
        """Whether the peer has closed an idle connection, or talked out of turn.

        Asks the kernel: the event loop may not have told us yet. No idle HTTP/1.1 connection has
        anything to read. Costs one system call.
        """
        if self._transport is None or self._socket is None or self._transport.is_closing():
            return True
        return bool(self._poll.poll(0))

    def give_up(self, *, begun: bool) -> bool:
        """Fail the call under way, whose engine is lost; True if there was one to fail.

        One whose body has begun only with `begun`.
        """
        exchange = self._exchange
        if exchange is None or (exchange.begun and not begun):
            return False
        error: UpstreamError = UpstreamLost("the engine is down", instance=self._instance)
        if self._is_unheard():
            error = self._unheard()
        exchange.fail(error)
        self.cut()
        return True

    def _expire(self) -> None:
        """Nothing came for as long as the caller of the call under way would wait.

        Unless somebody takes it without waiting anew: then the time since the last byte counts.
        """
        exchange = self._exchange
        if exchange is None:
            return
        left = 0.0
        if exchange.sink is not None and self.heard_at is not None:
            left = self.heard_at + exchange.limit - self._loop.time()
        if left > 0:
            self._silence.set(left)
        else:
            exchange.expire()

    def _judge_doubt(self) -> None:
        """Give up a connection of which no byte of the request was acknowledged in time.

        Its host is gone, or a stopped engine's queue of connections is full: one that seemed to be
        made then never was. The failure is that of a connection that cannot be made within the
        same time: an engine that vanished costs the connect time-out (R36).
        """
        if self._exchange is not None and self._is_unheard():
            self._exchange.fail(self._unheard())
            self.cut()

    def _is_unheard(self) -> bool:
        """Whether the peer has neither acknowledged a byte of the request nor answered it."""
        return self._phase is _Phase.HEAD and self._unacknowledged() >= self._size

    def _unheard(self) -> UpstreamUnreachable:
        return UpstreamUnreachable("the engine acknowledges nothing", instance=self._instance)

    def _unacknowledged(self) -> int:
        """How many bytes the kernel and we hold that the peer has not acknowledged."""
        if self._transport is None or self._socket is None:
            return 0
        queued = ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4))
        return self._transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)

    def cut(self) -> None:
        """Close at once; nothing that is buffered is sent."""
        if self._transport is not None:
            self._transport.abort()
        self._gone(by_peer=False)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self._socket = transport.get_extra_info("socket")
        if self._socket is not None:
            self._poll.register(self._socket.fileno(), select.POLLIN)

    def pause_writing(self) -> None:
        """The engine takes no more for now."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """The engine takes more, or the connection is gone."""
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self.heard_at = self._loop.time()
        exchange = self._exchange
        if self._at_chunk and exchange is not None:
            data = self._take_chunks(exchange, data)
            if not data:
                return
        if not self._expects_bytes():
            self.cut()  # it speaks unasked: whatever this is, it answers no request of ours
            return
        try:
            if self._phase is _Phase.HEAD and exchange is not None:
                data = self._read_chunked_head(exchange, data)
            if data:
                self._parse(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            # Behind a complete message it is only the connection that is of no use any more.
            self._break("the engine does not speak HTTP/1.1")
        else:
            if self._barren > MAX_HEAD_BYTES:
                self._break("the response head or trailer is too large")
        if exchange is not None:
            exchange.flush()
        if self._phase is _Phase.IDLE:
            self._offer()

    def _parse(self, data: bytes) -> None:
        self._barren += len(data)
        self._parser.feed_data(data)
        # Behind a head or a chunk, a line end that begins nothing else can only be its own.
        self._at_chunk = self._after_chunk and data.endswith(b"\n")

    def _read_chunked_head(self, exchange: Exchange, data: bytes) -> bytes:
        """Parse a head by itself where chunks may follow it; return what is behind them."""
        end = data.find(_HEAD_END) + len(_HEAD_END)
        if end < len(_HEAD_END) or data.find(_CHUNKED, 0, end) < 0:
            return data
        self._parse(data[:end])
        rest = data[end:]
        return self._take_chunks(exchange, rest) if self._at_chunk else rest

    def _take_chunks(self, exchange: Exchange, data: bytes) -> bytes:
        """Hand over the whole chunks that there are first; return what is behind them."""
        piece, length = read_chunks(data)
        if not length:
            return data
        self._barren = 0
        take = exchange.sink
        if take is None:
            self._hand_over(exchange, piece)
        elif not take(piece, data[:length]):
            exchange.stop()
        return data[length:]

    def _hand_over(self, exchange: Exchange, piece: bytes) -> None:
        """Keep a piece of the body for its reader; stop reading when too much of it is unread."""
        if exchange.receive(piece) and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _expects_bytes(self) -> bool:
        # By identity: a look-up in a set would hash the member, in Python.
        return self._phase is _Phase.HEAD or self._phase is _Phase.BODY

    def eof_received(self) -> None:
        """The peer will send no more."""
        if self._phase is _Phase.BODY and self._until_eof:
            self._complete(reusable=False)
            return
        self._lose("the engine closed the connection", unseen=self._is_unsent(acknowledged=True))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, with an error or without."""
        reason = "the connection was reset" if exc else "the engine closed the connection"
        self._lose(reason, unseen=self._is_unsent(acknowledged=False))

    # -- llhttp

    def on_message_begin(self) -> None:
        """A second message without a second request makes the connection useless."""
        self._surplus = self._phase is not _Phase.HEAD

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a field of the head; trailers are dropped."""
        if self._phase is _Phase.HEAD:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Hand over a final head; forget an informational one."""
        exchange = self._exchange
        status = self._parser.get_status_code()
        if exchange is None or self._phase is not _Phase.HEAD:
            return
        headers, self._headers = self._headers, []
        if status < 200:
            return
        self._barren = 0
        self._phase = _Phase.BODY
        self._doubt.unset()
        head = read_head(status, headers)
        self._until_eof = not head.framed
        self._after_chunk = head.chunked
        self.keep_alive = head.keep_alive
        exchange.begin(status, head.fields)
        if self._head_only:
            self._complete(reusable=False)  # the parser would wait for a body

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body on."""
        exchange = self._exchange
        if exchange is None or self._phase is not _Phase.BODY:
            return
        self._barren = 0
        self._hand_over(exchange, body)

    def on_chunk_header(self) -> None:
        """A chunk has begun."""
        self._after_chunk = False

    def on_chunk_complete(self) -> None:
        """A chunk has ended."""
        self._after_chunk = True

    def on_message_complete(self) -> None:
        """A message has ended; informational ones do not count."""
        if self._phase is _Phase.BODY:
            self._complete(reusable=self._parser.should_keep_alive())

    # -- state

    def _complete(self, *, reusable: bool) -> None:
        """The response is whole: free the connection, or close it."""
        exchange, self._exchange = self._exchange, None
        self._after_chunk = False
        self._silence.unset()
        transport = self._transport
        if exchange is not None:
            exchange.finish()
        # An answer before the whole request was sent leaves a half request on the wire.
        unsent = self._uploading or transport is None or transport.get_write_buffer_size()
        if not reusable or unsent:
            self.cut()
            return
        self._phase = _Phase.IDLE
        self.used = True
        self.idle_since = self._loop.time()
        self._surplus = False
        if self._paused:
            self._resume()

    def _offer(self) -> None:
        """Offer itself for reuse, now that all that came with the response was looked at."""
        if self._surplus:
            self.cut()
        else:
            self._released(self)

    def _resume(self) -> None:
        self._paused = False
        if self._transport is not None:
            self._transport.resume_reading()

    def _break(self, message: str) -> None:
        if self._exchange is not None:
            self._exchange.fail(
                UpstreamBroken(message, instance=self._instance, processed=True),
            )
        self.cut()

    def _lose(self, message: str, *, unseen: bool) -> None:
        """The peer has closed: decide what that means for a response that is under way."""
        if self._phase is _Phase.HEAD and self._exchange is not None and unseen:
            self._exchange.fail(NotProcessed(message, instance=self._instance, processed=False))
        elif self._exchange is not None:
            self._exchange.fail(UpstreamBroken(message, instance=self._instance, processed=True))
        by_peer = self._phase is _Phase.IDLE
        if self._transport is not None:
            self._transport.abort()
        self._gone(by_peer=by_peer)

    def _gone(self, *, by_peer: bool) -> None:
        if self._phase is _Phase.CLOSED:
            return
        if self._exchange is not None:
            self._exchange.fail(
                UpstreamBroken("the connection was cut", instance=self._instance, processed=True)
            )
        self._phase = _Phase.CLOSED
        self._silence.close()
        self._doubt.close()
        self._exchange = None
        self._transport = None
        self.resume_writing()
        self._closed(self, by_peer)

    def _is_unsent(self, *, acknowledged: bool) -> bool:
        """Whether a part of the request provably never reached the engine.

        Bytes in our own buffer never left. At a FIN (`acknowledged`) the kernel's queue counts
        too: a FIN acknowledges all that its sender had received, so what is unacknowledged then
        came to a closed socket. A reset proves nothing of the kind.
        """
        if self._transport is None or self._barren:
            return False
        if acknowledged:
            return self._unacknowledged() > 0
        return self._transport.get_write_buffer_size() > 0
