"""Requests and answers on clients' connections, over loopback: framing, order, departures."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn

from router.compose.running import build_server, listen
from router.domain.errors import ClientGone
from router.gateway.client_limits import ClientLimits
from router.gateway.clients import ClientEdge
from router.gateway.half_closes import ECHO_SECONDS, QUESTION
from router.gateway.requests import (
    DEPARTURES,
    OUTLET,
    BodyBudget,
    Message,
    Receive,
    Scope,
    Send,
    read_body,
    unless_gone,
)

Answer = Callable[[Scope, Receive, Send], Awaitable[None]]


def head(length: int | None = None, status: int = 200) -> Message:
    """The start of a response."""
    fields = [] if length is None else [(b"content-length", b"%d" % length)]
    return {"type": "http.response.start", "status": status, "headers": fields}


def part(body: bytes = b"", *, more: bool = False) -> Message:
    """A piece of a response's body."""
    return {"type": "http.response.body", "body": body, "more_body": more}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the method, the path, the query and the body."""
    body = await read_body(scope, receive, 1 << 24, BodyBudget(1 << 24).share())
    told = b"%b %b ?%b %b" % (
        scope["method"].encode(),
        scope["path"].encode(),
        scope["query_string"],
        body,
    )
    await send(head(len(told)))
    await send(part(told))


@asynccontextmanager
async def serving(
    answer: Answer, *, idle: float = 30.0
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, uvicorn.Server]]:
    """Serve an application and connect to it."""
    edge = ClientEdge(ClientLimits(idle=idle))
    server = build_server(answer, edge, 5.0)  # type: ignore[arg-type]
    with listen("127.0.0.1", 0) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            yield reader, writer, server
        finally:
            writer.close()
            server.should_exit = True
            await asyncio.wait_for(running, 30)


async def until_idle(server: uvicorn.Server) -> None:
    """Wait until a server has no connection."""
    async with asyncio.timeout(30):
        while server.server_state.connections:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


async def read_response(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read one response of a told length; return its head and its body."""
    top = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    length = int(top.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return top, await asyncio.wait_for(reader.readexactly(length), 30)


def request(path: str, body: bytes = b"", *, method: str = "POST", fields: str = "") -> bytes:
    """A request's bytes."""
    top = f"{method} {path} HTTP/1.1\r\nhost: x\r\n{fields}content-length: {len(body)}\r\n\r\n"
    return top.encode() + body


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    """Requests that come at once are answered one after the other, each with its own body."""
    async with serving(echo) as (reader, writer, _):
        writer.write(request("/a", b"1") + request("/b?q=2", b"2") + request("/c%20d", b"3"))
        bodies = [(await read_response(reader))[1] for _ in range(3)]
        assert bodies == [b"POST /a ? 1", b"POST /b ?q=2 2", b"POST /c d ? 3"]


@pytest.mark.parametrize("asked", ["", "connection: keep-alive\r\n"])
async def test_to_http_1_0_a_body_of_untold_length_ends_with_the_connection(asked: str) -> None:
    """HTTP/1.0 knows no chunks: pieces go as they are, poured ones too, and then the end."""

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(scope, receive, 1 << 24, BodyBudget(1 << 24).share())
        await send(head())
        await send(part(b"one ", more=True))
        scope["extensions"][OUTLET].write(b"two ", b"4\r\ntwo \r\n")
        await send(part(b"three"))

    async with serving(stream) as (reader, writer, server):
        writer.write(f"POST / HTTP/1.0\r\n{asked}content-length: 2\r\n\r\nhi".encode())
        top, body = (await asyncio.wait_for(reader.read(), 30)).split(b"\r\n\r\n")
        assert body == b"one two three"
        assert b"transfer-encoding" not in top
        assert b"connection: close" in top
        await until_idle(server)


@pytest.mark.parametrize("size", [0, 1, 300_000, 3_000_000])
async def test_bodies_of_any_size_arrive_whole(size: int) -> None:
    """A body larger than what is read ahead is taken piece by piece and arrives unchanged."""
    body = bytes(range(251)) * (size // 251) + b"x" * (size % 251)
    async with serving(echo) as (reader, writer, _):
        writer.write(request("/", body))
        assert (await read_response(reader))[1] == b"POST / ? " + body


async def test_a_body_without_length_is_sent_in_chunks() -> None:
    """Without content-length the pieces are chunks, and the last one ends the response."""

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send(head())
        await send(part(b"one", more=True))
        await send(part(b"", more=True))
        await send(part(b"two"))

    async with serving(answer) as (reader, writer, _):
        writer.write(request("/"))
        top = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in top
        assert await reader.readuntil(b"0\r\n\r\n") == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


@pytest.mark.parametrize("length", [None, 5])
async def test_chunks_are_sent_as_they_came_where_the_body_is_in_chunks(length: int | None) -> None:
    """An outlet's pieces go in the chunks that are given with them; a told length needs none."""

    async def answer(scope: Scope, _receive: Receive, send: Send) -> None:
        outlet = scope["extensions"][OUTLET]
        await send(head(length))
        assert outlet.write(b"one", b"1\r\no\r\n02\r\nne\r\n")
        assert outlet.write(b"tw")
        await send(part())

    async with serving(answer) as (reader, writer, _):
        writer.write(request("/"))
        if length is not None:
            assert (await read_response(reader))[1] == b"onetw"
            return
        await reader.readuntil(b"\r\n\r\n")
        sent = await reader.readuntil(b"0\r\n\r\n")
        assert sent == b"1\r\no\r\n02\r\nne\r\n2\r\ntw\r\n0\r\n\r\n"


async def test_a_head_request_gets_no_body() -> None:
    """The body of an answer to HEAD is left out, and its length is told."""
    async with serving(echo) as (reader, writer, _):
        writer.write(request("/", method="HEAD") + request("/next"))
        top = await reader.readuntil(b"\r\n\r\n")
        assert b"content-length: 9" in top
        assert (await read_response(reader))[1] == b"POST /next ? "


async def test_continue_is_sent_only_when_the_body_is_asked_for() -> None:
    """`Expect: 100-continue` is answered as soon as the application reads."""
    async with serving(echo) as (reader, writer, _):
        writer.write(request("/", b"12", fields="expect: 100-continue\r\n")[:-2])
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"12")
        assert (await read_response(reader))[1] == b"POST / ? 12"


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    """The connection lives from request to request, and is closed once it was idle for long."""
    async with serving(echo, idle=0.3) as (reader, writer, _):
        for _ in range(3):
            writer.write(request("/"))
            await read_response(reader)
            await asyncio.sleep(0.1)
        assert await asyncio.wait_for(reader.read(), 30) == b""


async def test_connection_close_is_obeyed() -> None:
    """A client that says `connection: close` is told so and sees the end."""
    async with serving(echo) as (reader, writer, _):
        writer.write(request("/", fields="connection: close\r\n"))
        top, _body = await read_response(reader)
        assert b"connection: close" in top
        assert await asyncio.wait_for(reader.read(), 30) == b""


async def test_malformed_http_is_a_400() -> None:
    """What is no HTTP gets a 400 and the end of the connection."""
    async with serving(echo) as (reader, writer, _):
        writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 400")


async def test_a_failing_application_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    """An application that raises before its answer is a 500; the connection ends."""

    async def answer(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ValueError("broken")

    with caplog.at_level(logging.CRITICAL, "router"):
        async with serving(answer) as (reader, writer, _):
            writer.write(request("/"))
            assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 500")


@pytest.mark.parametrize(
    "messages",
    [
        [head(10), part(b"short")],
        [head(3), part(b"much too long")],
        [head(), part(b"half", more=True)],
        [head(2), {"type": "http.response.trailers"}],
    ],
)
async def test_an_answer_that_is_not_finished_breaks_the_connection(
    messages: list[Message], caplog: pytest.LogCaptureFixture
) -> None:
    """A body that is not as long as was said, or has no end, never looks whole to the client."""

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    with caplog.at_level(logging.CRITICAL, "router"):
        async with serving(answer) as (reader, writer, _):
            writer.write(request("/"))
            got = await asyncio.wait_for(reader.read(), 30)
            assert not got.partition(b"\r\n\r\n")[2].endswith(b"0\r\n\r\n")
            assert b"much too long" not in got


@pytest.mark.parametrize(
    "field", [(b"bad name", b"x"), (b"x", b"a\r\nset-cookie: b"), (b"x", b"\0")]
)
async def test_fields_that_would_split_a_head_are_never_sent(
    field: tuple[bytes, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """A header field with characters that HTTP does not allow fails the answer."""

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [field]})
        await send(part(b""))

    with caplog.at_level(logging.CRITICAL, "router"):
        async with serving(answer) as (reader, writer, _):
            writer.write(request("/"))
            assert b"set-cookie" not in await asyncio.wait_for(reader.read(), 30)


async def test_work_is_cancelled_at_once_when_its_client_leaves() -> None:
    """A client that leaves cancels the work; what the work holds is freed before ClientGone."""
    steps: list[str] = []
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            steps.append("freed")

    async def answer(scope: Scope, receive: Receive, _send: Send) -> None:
        await read_body(scope, receive, 100, BodyBudget(100).share())
        try:
            await unless_gone(scope, receive, work())
        except ClientGone:
            steps.append("gone")
        await asyncio.sleep(0)  # the cancellation is over: this waits as usual
        ended.set()

    async with serving(answer) as (_, writer, _server):
        writer.write(request("/"))
        await asyncio.wait_for(begun.wait(), 30)
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 30)
    assert steps == ["freed", "gone"]


async def test_a_client_that_ends_its_writing_side_gets_its_answers() -> None:
    """After whole requests a half-close is no departure; an interim answer asks (RFC 9112 9.6)."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await unless_gone(scope, receive, go_on.wait())
        await echo(scope, receive, send)

    async with serving(answer) as (reader, writer, server):
        writer.write(request("/a", b"1") + request("/b", b"2"))
        await asyncio.wait_for(begun.wait(), 30)
        writer.write_eof()
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30) == QUESTION
        await asyncio.sleep(2 * ECHO_SECONDS)
        go_on.set()
        assert (await read_response(reader))[1] == b"POST /a ? 1"
        top, body = await read_response(reader)
        assert (b"connection: close" in top, body) == (True, b"POST /b ? 2")
        assert await asyncio.wait_for(reader.read(), 30) == b""
        await until_idle(server)


@pytest.mark.parametrize("asked", [b"", b"GET /a HTTP/1.1\r\nhost: x", b"POST / HTTP/1.0\r\n\r\n"])
async def test_an_end_that_no_answer_can_follow_is_a_departure(asked: bytes) -> None:
    """Between requests, amid one, or from HTTP/1.0, which knows no interim answer."""

    async def answer(scope: Scope, receive: Receive, _send: Send) -> None:
        with contextlib.suppress(ClientGone):
            await unless_gone(scope, receive, asyncio.Event().wait())

    async with serving(answer) as (reader, writer, server):
        writer.write(asked)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 30) == b""
        await until_idle(server)


async def test_an_end_amid_an_answer_is_a_departure() -> None:
    """Once the head of an answer is out nothing can ask the client, so its work ends."""
    ended = asyncio.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head())
        try:
            await unless_gone(scope, receive, asyncio.Event().wait())
        except ClientGone:
            ended.set()

    async with serving(answer) as (reader, writer, _):
        writer.write(request("/"))
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        writer.write_eof()
        await asyncio.wait_for(ended.wait(), 30)


async def test_a_client_that_closed_after_its_request_has_left() -> None:
    """A full close sends the same FIN as a half-close; its reset tells, and the work ends."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def answer(scope: Scope, receive: Receive, _send: Send) -> None:
        begun.set()
        try:
            await unless_gone(scope, receive, asyncio.Event().wait())
        except ClientGone:
            ended.set()

    async with serving(answer) as (_, writer, _server):
        writer.write(request("/"))
        await asyncio.wait_for(begun.wait(), 30)
        writer.close()
        await asyncio.wait_for(ended.wait(), 30)


class _Departure:
    """A client that leaves when told to, and says so again at each `send`, as a cycle does."""

    def __init__(self) -> None:
        self.leave: Callable[[], None] | None = None

    def on_departure(self, callback: Callable[[], None] | None) -> bool:
        self.leave = callback
        return True


@pytest.mark.parametrize("sends_more", [True, False])
async def test_a_departure_that_a_library_loses_is_told_again(*, sends_more: bool) -> None:
    """Work that goes on after its cancellation ends at its next send, and nothing is left over."""
    client = _Departure()

    async def work() -> None:
        assert client.leave is not None
        client.leave()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        client.leave()
        if sends_more:
            await asyncio.Event().wait()

    async def receive() -> Message:
        raise AssertionError("nobody asks")

    scope: Scope = {"extensions": {DEPARTURES: client}}
    with pytest.raises(ClientGone):
        await unless_gone(scope, receive, work())
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_shutdown_is_no_departure() -> None:
    """A server that ends cancels work as its own end, not as a client's."""
    begun, ended = asyncio.Event(), asyncio.Event()
    seen: list[type[BaseException]] = []

    async def answer(scope: Scope, receive: Receive, _send: Send) -> None:
        await read_body(scope, receive, 100, BodyBudget(100).share())

        async def work() -> None:
            begun.set()
            await asyncio.sleep(3600)

        try:
            await unless_gone(scope, receive, work())
        except BaseException as error:
            seen.append(type(error))
            ended.set()
            raise

    async with serving(answer) as (_, writer, server):
        writer.write(request("/"))
        await asyncio.wait_for(begun.wait(), 30)
        for task in server.server_state.tasks:
            task.cancel()
        await asyncio.wait_for(ended.wait(), 30)
    assert seen == [asyncio.CancelledError]
