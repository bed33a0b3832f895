"""Laws of a body that is poured off a connection: neither cuts nor chunks change what is taken."""

from __future__ import annotations

import asyncio
import itertools

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.adapters.http1 import Connection
from router.domain.errors import UpstreamTimeout
from router.ports import EngineRequest, Timeouts
from tests.fakes.loops import Loop

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
PIECES = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=40) | st.sampled_from([b"\r\n", b"0\r\n\r\n", b"x" * 300]),
        st.sampled_from([b"%x", b"%X", b"0%x", b"%x;name=value"]),
    ),
    max_size=8,
)
ENDS = st.sampled_from([b"0\r\n\r\n", b"000\r\n\r\n", b"0\r\ntrailer: 1\r\n\r\n"])
CUTS = st.lists(st.integers(0, 500), max_size=10)


class Wire:
    """A connection's transport, which notes what becomes of it."""

    def __init__(self) -> None:
        self.aborted = False

    def write(self, _wire: bytes) -> None:
        """The request is of no interest."""

    def get_extra_info(self, _name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """More than comes here is needed for that."""

    def resume_reading(self) -> None:
        """It was never paused."""

    def abort(self) -> None:
        self.aborted = True


class Pouring:
    """A request on a connection of its own, whose answer is poured as it is received."""

    def __init__(self, loop: Loop | None = None) -> None:
        self.got = b""
        self.framed = 0
        self.wire = Wire()
        self.released = 0
        self.connection = Connection(
            loop=asyncio.get_running_loop() if loop is None else loop,  # type: ignore[arg-type]
            released=self._release,
            closed=lambda *_: None,
        )
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]  # what it uses of one

    def _release(self, _connection: Connection) -> None:
        self.released += 1

    async def run(
        self, reads: list[bytes], *, top: bytes = HEAD, idle: float = 0.0, refuse: int = 0
    ) -> None:
        """Receive `top`, which has the head, and `reads` one by one.

        Whoever takes the body is full after each `refuse`-th piece.
        """
        limits = Timeouts(connect=0.0, first_byte=0.0, idle=idle)
        request = EngineRequest("d0", "http://d0", "/", timeouts=limits)
        sending = asyncio.create_task(self.connection.send(request, b"request"))
        await asyncio.sleep(0)
        self.connection.data_received(top)
        response = await sending
        taken = itertools.count(1)

        def take(piece: bytes, chunks: bytes | None) -> bool:
            self.got += piece
            if chunks is not None:
                self.framed += 1
                assert decode(chunks) == piece
            return not refuse or next(taken) % refuse > 0

        async def drain() -> None:
            """There is room at once."""

        pouring = asyncio.create_task(response.pour(take, drain))
        for read in reads:
            await asyncio.sleep(0)
            self.connection.data_received(read)
        await pouring


class _Body:
    def __init__(self) -> None:
        self.whole = b""

    def on_body(self, piece: bytes) -> None:
        self.whole += piece


def decode(chunks: bytes) -> bytes:
    """Return what a parser takes chunks for."""
    body = _Body()
    httptools.HttpResponseParser(body).feed_data(HEAD + chunks)
    return body.whole


def cut(whole: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(whole), *(place for place in cuts if place < len(whole))})
    return [whole[start:end] for start, end in itertools.pairwise(places)]


@given(PIECES, ENDS, CUTS, st.integers(0, 3))
def test_cuts_and_chunks_change_nothing(
    pieces: list[tuple[bytes, bytes]], end: bytes, cuts: list[int], refuse: int
) -> None:
    """All of a body is taken once and in order, and its connection can be used again."""
    chunks = [size % len(piece) + b"\r\n" + piece + b"\r\n" for piece, size in pieces]
    body = b"".join(piece for piece, _ in pieces)

    async def pour_each_way() -> None:
        whole = b"".join([*chunks, end])
        for top, *reads in ([HEAD, *chunks, end], [HEAD, *cut(whole, cuts)], [HEAD + whole]):
            pouring = Pouring()
            await pouring.run(reads, top=top, refuse=refuse)
            assert pouring.got == body
            assert pouring.released == 1
            assert not pouring.wire.aborted

    asyncio.run(pour_each_way())


async def test_whole_chunks_come_as_they_came() -> None:
    """Once somebody takes them, each read of whole chunks is handed on in them."""
    pouring = Pouring()
    await pouring.run([b"1\r\na\r\n", b"2\r\nbc\r\n", b"1\r\nd\r\n1\r\ne\r\n", b"0\r\n\r\n"])
    assert (pouring.got, pouring.framed) == (b"abcde", 3)


async def test_an_engine_that_goes_on_is_not_silent() -> None:
    """The time-out for silence counts from the last chunk, although nobody waits anew for each."""
    loop = Loop()
    pouring = Pouring(loop)
    running = asyncio.create_task(pouring.run([b"1\r\na\r\n"], idle=2.0))
    for _ in range(10):  # turns of the loop; it needs five
        await asyncio.sleep(0)
    for second in range(1, 9):
        loop.run_until(second)
        pouring.connection.data_received(b"1\r\nb\r\n")
        await asyncio.sleep(0)
        assert not running.done()
    loop.run_until(9.9)
    assert pouring.framed == 9
    assert not pouring.wire.aborted
    loop.run_until(10.0)
    with pytest.raises(UpstreamTimeout, match="2 s"):
        await running
    assert pouring.got == b"a" + b"b" * 8
    assert pouring.wire.aborted
