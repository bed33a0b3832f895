"""The answer of a relayed request, while it is on its way to the client.

An event stream is passed on as it comes; if its engine breaks off, an error event ends it. A JSON
answer is held whole up to a bound, so that a broken one can still become a 502 and every member
that must not reach the client is found wherever it stands. What is longer, or compressed with a
coding nobody here reads, streams as it is; if that breaks off the client's connection has to be.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Self

from msgspec import Struct

from router.domain.decision import Decision
from router.domain.errors import UpstreamBroken
from router.ports import EngineResponse, Headers
from router.service.answers import Rewriter
from router.service.codings import can_unpack, unpack
from router.service.flows import AnswerStream, AnswerWatch, CopiedBody, EventFlow, Outlet
from router.service.legs import find_header, select_headers
from router.service.sse import EventStream


class WholeAnswer(Struct, frozen=True, gc=False):
    """A response read to its end and unpacked; `sent` are its header fields."""

    status: int
    sent: Headers
    body: bytes

    @property
    def headers(self) -> Headers:
        """Those of the header fields that are for the client."""
        return select_answer_headers(self.sent)


async def read_whole(response: EngineResponse, instance: str) -> WholeAnswer:
    """Read a response to its end. Raises UpstreamBroken, UpstreamTimeout.

    What cannot be read to its end is cut: a coding may break long before its response does.
    """
    coding = find_header(response.headers, b"content-encoding")
    packed = bool(coding) and can_unpack(coding)
    body = None if packed else response.take_whole()
    if body is None:
        chunks = response.chunks()
        try:
            plain = _unpack(chunks, instance) if packed else chunks
            body = b"".join([piece async for piece in plain])
        except BaseException:
            await response.aclose()
            raise
    return WholeAnswer(response.status, response.headers, body)


def select_answer_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the header fields for the client, with the coding that the body will still have."""
    coding = find_header(headers, b"content-encoding")
    kept = select_headers(headers)
    return kept if _is_readable(coding) else [*kept, (b"content-encoding", coding)]


class RelayedResponse:
    """What the client gets. `decision` is the final one, after every fallback.

    `body` is the whole body where it is known, else None and `chunks` streams it. Slots, bookings
    and the engine's connection are free once the stream has ended; use this as an asynchronous
    context manager, or call `aclose`, so that they are however the reader leaves.
    """

    def __init__(
        self,
        *,
        status: int,
        headers: Headers,
        decision: Decision,
        body: bytes | None = None,
        source: AnswerStream | None = None,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.status = status
        self.headers = headers
        self.decision = decision
        self.body = body
        self._source = source
        self._close = close

    def __repr__(self) -> str:
        kind = "streaming" if self.body is None else f"{len(self.body)} bytes"
        return f"<RelayedResponse {self.status}, {kind}>"

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body's pieces as they arrive.

        Raises UpstreamBroken or UpstreamTimeout where the body was cut and nothing in it can say
        so: the client's connection must then be aborted, never ended.
        """
        return _one_piece(self.body or b"") if self._source is None else self._source.chunks()

    async def pour(self, outlet: Outlet) -> None:
        """Write the body into an outlet, every piece in the turn in which it arrives.

        Raises as `chunks`.
        """
        if self._source is not None:
            await self._source.pour(outlet)
        elif self.body:
            outlet.write(self.body)

    async def aclose(self) -> None:
        """Cut what is still running and free everything. Idempotent."""
        if self._source is not None:
            await self._source.aclose()
        if self._close is not None:
            await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


class AnswerReader:
    """Reads one engine response whose head is here, for the client."""

    def __init__(
        self,
        *,
        response: EngineResponse,
        instance: str,
        rewriter: Rewriter,
        watch: AnswerWatch,
        whole_limit: int,
        named_errors: bool,
        any_end: bool = False,
    ) -> None:
        """`any_end` takes a stream for whole wherever HTTP says that it is.

        Without it a stream must end with the last word of its API. Once `is_done` the response was
        read to its end, and the watch has been told.
        """
        self._response = response
        self._instance = instance
        self._rewriter = rewriter
        self._watch = watch
        self._whole_limit = whole_limit
        self._named_errors = named_errors
        self._any_end = any_end
        self.is_done = False
        coding = find_header(response.headers, b"content-encoding")
        self._opaque = bool(coding) and not _is_readable(coding)
        self._plain = None if coding and can_unpack(coding) else response
        self.headers = select_headers(response.headers)
        if self._opaque:
            self.headers.append((b"content-encoding", coding))

    async def read(self) -> bytes | AnswerStream:
        """Return the body, whole if it may be held, else as what streams it.

        Raises UpstreamBroken or UpstreamTimeout where nothing was passed on yet; the watch is then
        told nothing.
        """
        kind = find_header(self._response.headers, b"content-type")
        kind = kind.partition(b";")[0].strip().lower()
        chunks = self._response.chunks()
        if self._plain is None:
            chunks = _unpack(chunks, self._instance)
        if self._opaque:
            return self._copy(chunks)
        if kind == b"text/event-stream":
            return self._stream(chunks)
        # What has no type may be JSON; audio and text are not.
        if kind and not kind.endswith((b"/json", b"+json")):
            return self._copy(chunks)
        if self._plain is not None and (body := self._plain.take_whole()) is not None:
            if body:
                self._watch.began()
            if len(body) > self._whole_limit:
                return self._copy(chunks, body)
            self.is_done = True
            return self._rewrite(body)
        held: list[bytes] = []
        size = 0
        async for chunk in chunks:
            if not held:
                self._watch.began()
            held.append(chunk)
            size += len(chunk)
            if size > self._whole_limit:
                return self._copy(chunks, b"".join(held))
        return self._rewrite(b"".join(held))

    def _rewrite(self, body: bytes) -> bytes:
        rewritten = self._rewriter.rewrite(body)
        self._watch.ended(rewritten.usage, 0, complete=True)
        return rewritten.text

    def _copy(self, chunks: AsyncIterator[bytes], held: bytes = b"") -> AnswerStream:
        flow = CopiedBody(self._watch, began=bool(held))
        return AnswerStream(flow, chunks, plain=self._plain, held=held)

    def _stream(self, chunks: AsyncIterator[bytes]) -> AnswerStream:
        flow = EventFlow(
            EventStream(self._rewriter),
            self._watch,
            instance=self._instance,
            named_errors=self._named_errors,
            any_end=self._any_end,
        )
        return AnswerStream(flow, chunks, plain=self._plain)


def _is_readable(coding: bytes) -> bool:
    """Whether a body with this Content-Encoding is plain here, or made so."""
    return not coding or coding.strip().lower() in {b"", b"identity"} or can_unpack(coding)


async def _unpack(chunks: AsyncIterator[bytes], instance: str) -> AsyncIterator[bytes]:
    try:
        async with aclosing(unpack(chunks)) as plain:
            async for chunk in plain:
                yield chunk
    except ValueError as error:
        raise UpstreamBroken(str(error), instance=instance, processed=True) from error


async def _one_piece(body: bytes) -> AsyncIterator[bytes]:
    yield body
