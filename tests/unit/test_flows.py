"""An answer's way to the client is the same whether it is read or poured."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from router.domain.errors import UpstreamBroken, UpstreamError, UpstreamTimeout
from router.ports import Headers
from router.service.answers import Edits, Rewriter
from router.service.flows import AnswerStream, CopiedBody, EventFlow, Flow
from router.service.relay_ports import Usage
from router.service.sse import EventStream

_WORD = b'data: {"choices":[{"text":"word"}]}\n\n'
_DONE = b"data: [DONE]\n\n"
_LOST = UpstreamBroken("lost", instance="d0", processed=True)
_SLOW = UpstreamTimeout("slow", instance="d0", processed=True)


class Script:
    """A response of given chunks, which then ends or fails."""

    status = 200
    headers: Headers = ()

    def __init__(self, *chunks: bytes, error: UpstreamError | None = None) -> None:
        self._chunks = chunks
        self._error = error

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if self._error is not None:
            raise self._error

    def take_whole(self) -> bytes | None:
        return None

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def pour(
        self, take: Callable[[bytes, bytes | None], bool], drain: Callable[[], Awaitable[None]]
    ) -> None:
        async for chunk in self.chunks():
            if not take(chunk, None):
                await drain()

    async def aclose(self) -> None:
        """Nothing is held."""


class Watch:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def began(self) -> None:
        self.told.append("began")

    def broke(self, error: UpstreamError) -> None:
        self.told.append(error)

    def ended(self, usage: Usage | None, content_events: int, *, complete: bool) -> None:
        self.told.append((usage, content_events, complete))


class Sink:
    """An outlet that takes one piece at a time."""

    def __init__(self) -> None:
        self.got = b""
        self.drained = 0

    def write(self, piece: bytes, _chunks: bytes | None = None) -> bool:
        self.got += piece
        return False

    async def drain(self) -> None:
        self.drained += 1


def _events(watch: Watch) -> EventFlow:
    return EventFlow(
        EventStream(Rewriter(Edits())), watch, instance="d0", named_errors=False, any_end=False
    )


def _copy(watch: Watch) -> CopiedBody:
    return CopiedBody(watch, began=False)


@pytest.mark.parametrize("flow", [_events, _copy])
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    "script",
    [
        Script(_WORD, _WORD[:9], _WORD[9:], _DONE),
        Script(_WORD, _DONE, error=_LOST),
        Script(_WORD, _WORD[:9], error=_SLOW),
        Script(_WORD),
        Script(),
    ],
)
async def test_a_body_that_is_poured_is_that_which_is_read(
    script: Script, flow: Callable[[Watch], Flow], *, plain: bool
) -> None:
    """Bytes, errors and what the watch is told are the same on both ways."""

    def stream(watch: Watch) -> AnswerStream:
        return AnswerStream(flow(watch), script.chunks(), plain=script if plain else None)

    read, reader = Sink(), Watch()
    read_error = await _outcome(_read(stream(reader), read))
    poured, pourer = Sink(), Watch()
    assert await _outcome(stream(pourer).pour(poured)) is read_error
    assert poured.got == read.got
    assert [str(each) for each in pourer.told] == [str(each) for each in reader.told]
    assert poured.drained or not read.got.startswith(_WORD)


async def _read(stream: AnswerStream, sink: Sink) -> None:
    async for chunk in stream.chunks():
        sink.write(chunk)


async def _outcome(work: Awaitable[None]) -> UpstreamError | None:
    try:
        await work
    except UpstreamError as error:
        return error
    return None


async def test_only_what_passes_unchanged_keeps_its_chunks() -> None:
    """The chunks in which a piece came are offered with it, unless the piece has changed."""
    secret = b'data: {"kv_transfer_params":{"host":"p0"}}\n\n'
    told: list[tuple[bytes, bytes | None]] = []

    class Chunked(Script):
        async def pour(
            self,
            take: Callable[[bytes, bytes | None], bool],
            drain: Callable[[], Awaitable[None]],
        ) -> None:
            for piece in (_WORD, secret, _WORD[:9], _WORD[9:]):
                if not take(piece, b"chunks of " + piece):
                    await drain()

    class Noting(Sink):
        def write(self, piece: bytes, chunks: bytes | None = None) -> bool:
            told.append((piece, chunks))
            return True

    script = Chunked()
    stream = AnswerStream(_events(Watch()), script.chunks(), plain=script)
    await stream.pour(Noting())
    hidden = b'data: {"kv_transfer_params":null}\n\n'
    assert told[:3] == [
        (_WORD, b"chunks of " + _WORD),
        (hidden, None),
        (_WORD, None),
    ]
