"""An answer's body on its way to the client: what is done to its bytes, and how they get there.

Either its reader asks for piece after piece (`AnswerStream.chunks`), or each piece goes into an
`Outlet` in the very turn in which it came from the engine (`AnswerStream.pour`): a stream of tokens
then wakes no task, which costs more than all else that is done for a token.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from router.domain.errors import UpstreamBroken, UpstreamError, UpstreamTimeout
from router.ports import EngineResponse
from router.service.relay_ports import Usage
from router.service.sse import EventStream


class AnswerWatch(Protocol):
    """Told of an answer's course."""

    def began(self) -> None:
        """The first body byte is here."""
        ...

    def broke(self, error: UpstreamError) -> None:
        """The engine broke off."""
        ...

    def ended(self, usage: Usage | None, content_events: int, *, complete: bool) -> None:
        """The body has ended; `complete` is False where it was cut or its reader has left."""
        ...


class Outlet(Protocol):
    """Where the pieces of a body go at once."""

    def write(self, piece: bytes, chunks: bytes | None = None) -> bool:
        """Send a piece; False where no more should come until `drain` has returned.

        `chunks` is the same piece in HTTP's chunked coding, for a body that is sent in it.
        """
        ...

    async def drain(self) -> None:
        """Wait until more is taken, or nothing ever will be."""
        ...


class Flow(Protocol):
    """What becomes of a body's bytes, from first to last. Empty bytes are nothing to send."""

    def take(self, chunk: bytes) -> bytes:
        """Return what is to be sent now that `chunk` has come."""
        ...

    def end(self) -> bytes:
        """Return what is left to send after an end that HTTP allows."""
        ...

    def fail(self, error: UpstreamError) -> bytes:
        """Return how the body ends after a failure; raise it where nothing in the body can tell."""
        ...

    def close(self) -> None:
        """The body has ended, one way or another, or its reader has left."""
        ...


class CopiedBody:
    """A body that passes as it is. `began` where its first byte was seen before."""

    def __init__(self, watch: AnswerWatch, *, began: bool) -> None:
        self._watch = watch
        self._began = began
        self._complete = False

    def take(self, chunk: bytes) -> bytes:
        """Return the chunk."""
        if not self._began:
            self._began = True
            self._watch.began()
        return chunk

    def end(self) -> bytes:
        """Nothing is left."""
        self._complete = True
        return b""

    def fail(self, error: UpstreamError) -> bytes:
        """Raise it."""
        self._watch.broke(error)
        raise error

    def close(self) -> None:
        """Tell the watch."""
        self._watch.ended(None, 0, complete=self._complete)


class EventFlow:
    """A stream of events. It must end with the last word of its API, unless `any_end` will do."""

    def __init__(
        self,
        events: EventStream,
        watch: AnswerWatch,
        *,
        instance: str,
        named_errors: bool,
        any_end: bool,
    ) -> None:
        self._events = events
        self._watch = watch
        self._instance = instance
        self._named_errors = named_errors
        self._any_end = any_end
        self._began = False
        self._complete = False

    def take(self, chunk: bytes) -> bytes:
        """Return the lines that are whole, rewritten where they must be."""
        if not self._began:
            self._began = True
            self._watch.began()
        return self._events.feed(chunk)

    def end(self) -> bytes:
        """Return what is left, or an error event where the stream is not complete."""
        rest = self._events.finish()
        self._complete = self._events.ended or self._any_end
        if self._complete:
            return rest
        message = "the engine ended the stream before its end"
        return self._break_off(UpstreamBroken(message, instance=self._instance, processed=True))

    def fail(self, error: UpstreamError) -> bytes:
        """Return an error event; after its last word an engine may hang up as it likes."""
        self._complete = self._events.ended
        return b"" if self._complete else self._break_off(error)

    def close(self) -> None:
        """Tell the watch."""
        events = self._events
        self._watch.ended(events.usage, events.content_events, complete=self._complete)

    def _break_off(self, error: UpstreamError) -> bytes:
        self._watch.broke(error)
        slow = isinstance(error, UpstreamTimeout)
        return self._events.break_off(
            str(error),
            kind="upstream_timeout" if slow else "upstream_error",
            code=504 if slow else 502,
            named=self._named_errors,
        )


class AnswerStream:
    """The rest of a body, through a flow. Read once, in one of two ways."""

    def __init__(
        self,
        flow: Flow,
        pieces: AsyncIterator[bytes],
        *,
        plain: EngineResponse | None,
        held: bytes = b"",
    ) -> None:
        """`pieces` are what comes, after `held`: the chunks of `plain`, if that is not None."""
        self._flow = flow
        self._pieces = pieces
        self._plain = plain
        self._held = held
        self._reading: AsyncGenerator[bytes, None] | None = None

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over what is to be sent. Raises UpstreamBroken, UpstreamTimeout."""
        self._reading = self._read()
        return self._reading

    async def _read(self) -> AsyncGenerator[bytes, None]:
        flow = self._flow
        try:
            try:
                if self._held:
                    yield self._held
                async for chunk in self._pieces:
                    if ready := flow.take(chunk):
                        yield ready
                rest = flow.end()
            except UpstreamError as error:
                rest = flow.fail(error)
            if rest:
                yield rest
        finally:
            await _close(self._pieces)
            flow.close()

    async def pour(self, outlet: Outlet) -> None:
        """Write all of it into an outlet. Raises as `chunks`."""
        flow = self._flow

        def take(piece: bytes, chunks: bytes | None = None) -> bool:
            ready = flow.take(piece)
            if ready is piece:
                return outlet.write(piece, chunks)
            return outlet.write(ready) if ready else True

        try:
            try:
                if self._held and not outlet.write(self._held):
                    await outlet.drain()
                if self._plain is not None:
                    await self._plain.pour(take, outlet.drain)
                else:
                    async for chunk in self._pieces:
                        if not take(chunk):
                            await outlet.drain()
                rest = flow.end()
            except UpstreamError as error:
                rest = flow.fail(error)
            if rest:
                outlet.write(rest)
        finally:
            await _close(self._pieces)
            flow.close()

    async def aclose(self) -> None:
        """End a reading that its reader leaves early; the connection below is the caller's."""
        if self._reading is not None:
            await self._reading.aclose()


async def _close(pieces: AsyncIterator[bytes]) -> None:
    """End a generator that its reader leaves early; the connection below is cut by `aclose`."""
    if isinstance(pieces, AsyncGenerator):
        await pieces.aclose()
