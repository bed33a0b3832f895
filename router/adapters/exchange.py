"""A response on its way in: the connection fills it, the caller reads it.

It outlives its use of the connection, which is free for the next request as soon as the message
has ended on the wire, however slowly its reader goes on reading.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from router.adapters.alarms import Alarm
from router.domain.errors import UpstreamError, UpstreamTimeout
from router.domain.units import Seconds
from router.ports import EngineRequest, Headers

HIGH_WATER_BYTES: Final = 256 * 1024
"""Unread bytes at which reading from the engine stops: four times asyncio's write buffer."""


class Exchange:
    """A response as it arrives. Implements `router.ports.EngineResponse`."""

    __slots__ = (
        "_buffered",
        "_cut",
        "_ended",
        "_error",
        "_idle_timeout",
        "_instance",
        "_is_full",
        "_loop",
        "_pieces",
        "_resume",
        "_silence",
        "_waiter",
        "begun",
        "complete",
        "headers",
        "limit",
        "sink",
        "status",
    )

    def __init__(
        self,
        request: EngineRequest,
        loop: asyncio.AbstractEventLoop,
        cut: Callable[[], None],
        resume: Callable[[], None],
        silence: Alarm,
    ) -> None:
        """`silence` is the connection's; while the caller waits it goes off by `expire`.

        `sink` takes what comes at once, where somebody does; `limit` is how long the caller waits.
        """
        self.status = 0
        self.complete = False
        self.begun = False
        self._instance = request.instance
        self._idle_timeout = request.timeouts.idle
        self._loop = loop
        self._cut = cut
        self._resume = resume
        self._silence = silence
        self.limit: Seconds = 0.0
        self.headers: Headers = ()  # hop-by-hop ones removed, names in lower case
        self._pieces: deque[bytes] = deque()
        self._buffered = 0
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.sink: Callable[[bytes, bytes | None], bool] | None = None
        self._is_full = False
        self._ended = False

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over body bytes as they arrive; what is already there comes as one piece.

        Raises UpstreamBroken, UpstreamTimeout, which cut the connection, as being cancelled does.
        """
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._pieces:
            if self.complete:
                raise StopAsyncIteration
            try:
                await self.wait(self._idle_timeout)
            except BaseException:
                self.cut()
                raise
        return self._take()

    def take_whole(self) -> bytes | None:
        """Return the rest of the body if all of it is here (see `router.ports.EngineResponse`)."""
        if not self._ended:
            return None
        return self._take() if self._pieces else b""

    async def read(self) -> bytes:
        """Read the rest of the body whole. Raises as `chunks`."""
        return b"".join([piece async for piece in self])

    async def pour(
        self, take: Callable[[bytes, bytes | None], bool], drain: Callable[[], Awaitable[None]]
    ) -> None:
        """Give `take` the rest of the body as it arrives (see `router.ports.EngineResponse`)."""
        try:
            while self._pieces or not self.complete:
                if self._pieces:
                    self._is_full = not take(self._take(), None)
                if self._is_full:
                    await drain()
                    self._is_full = False
                elif not self.complete:
                    self.sink = take
                    await self.wait(self._idle_timeout)
        except BaseException:
            self.cut()
            raise
        finally:
            self.sink = None

    async def aclose(self) -> None:
        """Cut the connection when the body was not received to its end. Idempotent."""
        self.cut()

    def cut(self) -> None:
        """Give up the response: nothing of it is of use any more."""
        if not self.complete:
            self.complete = True
            self._cut()

    async def wait_head(self, limit: Seconds) -> None:
        """Wait for the response head, at most `limit` seconds (0: for ever)."""
        while not self.status:
            await self.wait(limit)

    async def wait(self, limit: Seconds) -> None:
        """Wait for what comes next, at most `limit` seconds (0: for ever)."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        self.limit = limit
        if limit:
            self._silence.set(limit)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if not self.complete:  # else the connection may serve somebody else by now
                self._silence.unset()

    def expire(self) -> None:
        """Give up waiting, after all the time that there was."""
        message = f"the engine sent nothing for {self.limit:g} s"
        self.fail(UpstreamTimeout(message, instance=self._instance, processed=True))

    def expire_after(self, limit: Seconds) -> None:
        """Give up waiting after `limit` seconds, which somebody else has measured."""
        self.limit = limit
        self.expire()

    def _take(self) -> bytes:
        piece = self._pieces.popleft() if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        held_back = self._buffered > HIGH_WATER_BYTES
        self._buffered = 0
        if held_back and not self.complete:
            self._resume()
        return piece

    # -- called by the connection

    def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The head is here."""
        self.status = status
        self.headers = headers
        self._wake()

    def receive(self, piece: bytes) -> bool:
        """Take a piece of the body; True when the engine should be held back."""
        self.begun = True
        self._pieces.append(piece)
        self._buffered += len(piece)
        if self._waiter is not None and self.sink is None:
            self._wake()
        return self._buffered > HIGH_WATER_BYTES

    def flush(self) -> None:
        """Hand over what came in this turn where somebody takes it at once."""
        if self.sink is not None and self._pieces and not self.sink(self._take(), None):
            self.stop()

    def stop(self) -> None:
        """Give nothing more at once: whoever takes it is full."""
        self._is_full, self.sink = True, None
        self._wake()

    def finish(self) -> None:
        """The body has ended as HTTP allows."""
        self.complete = self._ended = True
        if self._waiter is not None:
            self._wake()

    def fail(self, error: UpstreamError) -> None:
        """The response will not be completed; what was received can still be read."""
        if self._error is None and not self.complete:
            self._error = error
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(error)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
