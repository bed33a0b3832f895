"""What every `EngineClient` owes its callers, as one suite over real sockets.

A module that defines a fixture `make_client` (a function that makes a client) and subclasses
`EngineClientSuite` holds its implementation to it.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import pytest

from router.domain.errors import (
    UpstreamBroken,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from router.ports import EngineClient, EngineRequest, Timeouts
from tests.fakes.scripted_engine import (
    LAST_CHUNK,
    BlackHole,
    Close,
    Hold,
    Pause,
    RefusedPort,
    Reset,
    ScriptedEngine,
    Send,
    Until,
    answer,
    chunk,
    head,
    stream,
)

MakeClient = Callable[..., EngineClient]


def a_request(url: str, body: bytes = b"{}", **changes: object) -> EngineRequest:
    """A POST to `url` that fails rather than hangs."""
    fields: dict[str, object] = {
        "instance": "e0",
        "base_url": url,
        "path": "/v1/completions",
        "body": body,
        "timeouts": Timeouts(connect=2.0, first_byte=5.0, idle=5.0),
    }
    return EngineRequest(**(fields | changes))  # type: ignore[arg-type]


async def fetch(client: EngineClient, request: EngineRequest) -> bytes:
    """Send and read whole."""
    response = await client.send(request)
    return await response.read()


async def _never() -> None:
    """Stand for a drain that nobody has reason to ask for."""
    raise AssertionError("nothing was refused")


class Pieces:
    """An upload of pieces, with a gate before the last; `error` is raised instead of it."""

    def __init__(
        self,
        *pieces: bytes,
        declared: bool = True,
        gate: asyncio.Event | None = None,
        error: Exception | None = None,
    ) -> None:
        self.body = pieces
        self.length = sum(map(len, pieces)) if declared else None
        self.started = False
        self._gate = gate
        self._error = error

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        self.started = True
        *first, last = self.body
        for piece in first:
            yield piece
        if self._gate is not None:
            await self._gate.wait()
        if self._error is not None:
            raise self._error
        yield last


class EngineClientSuite:
    """The contract. Subclasses provide `make_client`."""

    @pytest.fixture
    async def client(self, make_client: MakeClient) -> AsyncIterator[EngineClient]:
        client = make_client()
        yield client
        await client.aclose()

    # -- requests and bodies

    async def test_sends_exactly_the_given_headers(self, client: EngineClient) -> None:
        """Nothing is added but host and content-length: no agent, no accept, no encoding."""
        async with ScriptedEngine() as engine:
            headers = [(b"x-request-id", b"a-1"), (b"content-type", b"application/json")]
            await fetch(client, a_request(engine.url, b'{"a":1}', headers=headers))
            sent = {name.lower() for name, _ in engine.requests[0].headers}
        assert sent <= {b"host", b"content-length", b"connection", b"x-request-id", b"content-type"}
        assert engine.requests[0].body == b'{"a":1}'
        assert engine.requests[0].header("x-request-id") == "a-1"

    async def test_keeps_the_prefix_and_query_of_an_address(self, client: EngineClient) -> None:
        """A base URL's path comes before the request's, a query stays."""
        async with ScriptedEngine() as engine:
            await fetch(client, a_request(engine.url + "/engine/", path="/health?x=1"))
        assert engine.requests[0].path == "/engine/health?x=1"

    @pytest.mark.parametrize("value", [b"a\r\nx: y", b"a\nb", b"a\rb", b"a\0b"])
    async def test_refuses_header_injection(self, client: EngineClient, value: bytes) -> None:
        """No value can begin a second field or a second request."""
        async with ScriptedEngine() as engine:
            with pytest.raises(ValueError, match="header"):
                await client.send(a_request(engine.url, headers=[(b"x-a", value)]))
            with pytest.raises(ValueError, match="header"):
                await client.send(a_request(engine.url, headers=[(value, b"x")]))
            with pytest.raises(ValueError, match="path"):
                await client.send(a_request(engine.url, path="/a HTTP/1.1\r\nx: y"))
        assert engine.requests == []

    async def test_refuses_to_have_its_framing_set(self, client: EngineClient) -> None:
        """A caller's content-length or transfer-encoding could desynchronise the connection."""
        async with ScriptedEngine() as engine:
            for name in (b"content-length", b"Transfer-Encoding", b"host"):
                with pytest.raises(ValueError, match="belongs"):
                    await client.send(a_request(engine.url, headers=[(name, b"1")]))

    @pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
    async def test_carries_bodies_of_any_size_both_ways(
        self, client: EngineClient, size: int
    ) -> None:
        """An empty body, a small one and megabytes arrive whole, both ways."""
        body = bytes(range(256)) * (size // 256 + 1)
        body = body[:size]
        async with ScriptedEngine(answer(200, body)) as engine:
            assert await fetch(client, a_request(engine.url, body)) == body
        assert engine.requests[0].body == body

    async def test_yields_chunks_on_arrival(self, client: EngineClient) -> None:
        """A chunk is readable before the next one exists."""
        more = asyncio.Event()
        steps = [head(200, [("transfer-encoding", "chunked")]), chunk(b"one"), Until(more)]
        async with ScriptedEngine([*steps, chunk(b"two"), LAST_CHUNK]) as engine:
            response = await client.send(a_request(engine.url))
            chunks = response.chunks()
            assert await anext(chunks) == b"one"
            more.set()
            assert await anext(chunks) == b"two"
            with pytest.raises(StopAsyncIteration):
                await anext(chunks)

    async def test_a_head_cut_into_single_bytes_is_still_a_head(self, client: EngineClient) -> None:
        """Where the network cuts means nothing."""
        whole = answer(201, b"body", [("x-a", "b")])[0]
        assert isinstance(whole, Send)
        steps = [step for byte in whole.payload for step in (Send(bytes([byte])), Pause(0))]
        async with ScriptedEngine(steps) as engine:
            response = await client.send(a_request(engine.url))
            assert (response.status, await response.read()) == (201, b"body")

    async def test_ends_a_body_without_length_with_the_connection(
        self, client: EngineClient
    ) -> None:
        """A close-delimited body ends cleanly at FIN, and the connection is not used again."""
        async with ScriptedEngine([head(200), Send(b"abc"), Pause(0.01), Close()]) as engine:
            assert await fetch(client, a_request(engine.url)) == b"abc"
            assert await fetch(client, a_request(engine.url)) == b"abc"
            assert engine.connections == 2

    async def test_accepts_trailers(self, client: EngineClient) -> None:
        """Trailers after the last chunk are dropped, the body and the connection are intact."""
        end = [Send(b"0\r\nx-sum: 1\r\n\r\n")]
        async with ScriptedEngine(stream(b"abc", end=end)) as engine:
            response = await client.send(a_request(engine.url))
            assert await response.read() == b"abc"
            assert b"x-sum" not in dict(response.headers)
            assert await fetch(client, a_request(engine.url)) == b"abc"
            assert engine.connections == 1

    @pytest.mark.parametrize("status", [204, 304])
    async def test_knows_statuses_without_body(self, client: EngineClient, status: int) -> None:
        """204 and 304 end with their head, and the connection lives on."""
        async with ScriptedEngine([head(status)]) as engine:
            for _ in range(2):
                response = await client.send(a_request(engine.url))
                assert (response.status, await response.read()) == (status, b"")
            assert engine.connections == 1

    async def test_knows_that_head_has_no_body(self, client: EngineClient) -> None:
        """The Content-Length of an answer to HEAD announces nothing that comes."""
        async with ScriptedEngine([head(200, [("content-length", "99")])]) as engine:
            for _ in range(2):
                request = a_request(engine.url, b"", method="HEAD")
                assert await fetch(client, request) == b""

    async def test_skips_informational_answers(self, client: EngineClient) -> None:
        """100 and 103 come before the answer; they are not the answer."""
        early = Send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n")
        async with ScriptedEngine([early, *answer(200, b"ok")]) as engine:
            for _ in range(2):
                response = await client.send(a_request(engine.url))
                assert (response.status, await response.read()) == (200, b"ok")
                assert b"link" not in dict(response.headers)
            assert engine.connections == 1

    async def test_r26_drops_hop_by_hop_headers_and_never_decodes(
        self, client: EngineClient
    ) -> None:
        """Fields of the connection stay on it; a gzip body stays gzip."""
        packed = gzip.compress(b'{"a":1}')
        headers = [
            ("Connection", "keep-alive, X-Hop"),
            ("X-Hop", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Content-Encoding", "gzip"),
            ("X-End", "2"),
        ]
        async with ScriptedEngine(stream(packed, headers=headers)) as engine:
            response = await client.send(a_request(engine.url))
            assert await response.read() == packed
            names = dict(response.headers)
        assert names[b"content-encoding"] == b"gzip"
        assert names[b"x-end"] == b"2"
        assert names.keys().isdisjoint(
            {b"connection", b"x-hop", b"keep-alive", b"transfer-encoding"}
        )

    async def test_follows_no_redirects(self, client: EngineClient) -> None:
        """A redirect is an answer like any other."""
        async with ScriptedEngine(answer(307, b"", [("location", "/x")])) as engine:
            response = await client.send(a_request(engine.url))
            assert response.status == 307
            await response.read()
        assert len(engine.requests) == 1

    async def test_speaks_to_ipv6_literals(self, client: EngineClient) -> None:
        """An IPv6 address connects, and is bracketed in Host."""
        async with ScriptedEngine(answer(200, b"6"), host="::1") as engine:
            assert await fetch(client, a_request(engine.url)) == b"6"
        assert (engine.requests[0].header("host") or "").startswith("[::1]:")

    # -- failures

    @pytest.mark.parametrize("end", [Reset(), Close()])
    async def test_r03_a_cut_body_is_broken(self, client: EngineClient, end: Reset | Close) -> None:
        """A chunked body without its last chunk is never taken for a whole one."""
        async with ScriptedEngine(stream(b"abc", end=[Pause(0.01), end])) as engine:
            response = await client.send(a_request(engine.url))
            chunks = response.chunks()
            assert await anext(chunks) == b"abc"
            with pytest.raises(UpstreamBroken) as caught:
                await anext(chunks)
        assert caught.value.processed

    async def test_a_short_body_is_broken(self, client: EngineClient) -> None:
        """A body shorter than its Content-Length is never taken for a whole one."""
        steps = [head(200, [("content-length", "10")]), Send(b"abc"), Pause(0.01), Close()]
        async with ScriptedEngine(steps) as engine:
            response = await client.send(a_request(engine.url))
            with pytest.raises(UpstreamBroken):
                await response.read()

    @pytest.mark.parametrize("end", [Reset(), Close()])
    async def test_a_connection_that_dies_before_the_head_is_broken(
        self, client: EngineClient, end: Reset | Close
    ) -> None:
        """On a fresh connection nothing is sent twice: the engine may have run it."""
        async with ScriptedEngine([Pause(0.01), end]) as engine:
            with pytest.raises(UpstreamBroken) as caught:
                await client.send(a_request(engine.url))
            assert len(engine.requests) == 1
        assert caught.value.processed

    async def test_a_request_that_was_seen_is_never_sent_again(self, client: EngineClient) -> None:
        """A used connection that dies once the engine has read the request is an error."""
        async with ScriptedEngine() as engine:
            await fetch(client, a_request(engine.url, b"first"))
            for end in (Reset(), Close()):
                engine.then([Pause(0.05), end], answer(200, b"again"))
                before = len(engine.requests)
                with pytest.raises(UpstreamBroken):
                    await client.send(a_request(engine.url, b"second"))
                assert len(engine.requests) == before + 1
                assert await fetch(client, a_request(engine.url)) == b"again"

    @pytest.mark.parametrize(
        "garbage",
        [
            b"SSH-2.0-OpenSSH_9.6\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000 + b"\r\n\r\n",
            b"".join([b"HTTP/1.1 200 OK\r\n", *(b"x-%d: aaaaaaaa\r\n" % n for n in range(20_000))]),
        ],
        ids=["ssh", "length", "both", "upgrade", "long-field", "many-fields"],
    )
    async def test_garbage_is_broken(self, client: EngineClient, garbage: bytes) -> None:
        """What is not HTTP, contradicts itself or never ends is refused within bounds."""
        async with ScriptedEngine([Send(garbage), Hold()]) as engine:
            with pytest.raises(UpstreamBroken):
                await client.send(a_request(engine.url))
            await engine.peer_closed(engine.requests[0])

    async def test_broken_chunk_framing_is_broken(self, client: EngineClient) -> None:
        """A chunk size that is none ends the body in an error."""
        async with ScriptedEngine(stream(b"abc", end=[Send(b"zz\r\n"), Hold()])) as engine:
            response = await client.send(a_request(engine.url))
            with pytest.raises(UpstreamBroken):
                await response.read()

    async def test_unasked_bytes_never_answer_a_request(self, client: EngineClient) -> None:
        """Bytes behind a response are not the next response: the connection is thrown away."""
        doubled = Send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nleft")
        async with ScriptedEngine() as engine:
            engine.then([*answer(200, b"one"), doubled], answer(200, b"two"))
            assert await fetch(client, a_request(engine.url)) == b"one"
            assert await fetch(client, a_request(engine.url)) == b"two"
            assert engine.connections == 2

    async def test_a_refused_connection_is_unreachable(self, client: EngineClient) -> None:
        """Nothing was processed where nobody listens, and the message names no host."""
        with RefusedPort() as url, pytest.raises(UpstreamUnreachable) as caught:
            await client.send(a_request(url))
        assert not caught.value.processed
        assert "127" not in str(caught.value)

    async def test_r18_a_black_hole_is_unreachable_within_the_connect_timeout(
        self, client: EngineClient
    ) -> None:
        """An address that answers no SYN costs the connect time-out, not minutes."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        with BlackHole() as url, pytest.raises(UpstreamUnreachable):
            await client.send(a_request(url, timeouts=Timeouts(connect=0.2)))
        assert loop.time() - began < 20

    async def test_r18_first_byte_and_idle_are_timeouts_of_their_own(
        self, client: EngineClient
    ) -> None:
        """Silence before the head and within the body are bounded apart; 0 switches off."""
        slow = [Pause(0.3), *stream(b"a", b"b", gap=0.3)]
        async with ScriptedEngine(slow) as engine:
            with pytest.raises(UpstreamTimeout) as caught:
                await client.send(
                    a_request(engine.url, timeouts=Timeouts(first_byte=0.1, idle=5.0))
                )
            assert caught.value.processed
            await engine.peer_closed(engine.requests[0])
            response = await client.send(
                a_request(engine.url, timeouts=Timeouts(first_byte=5.0, idle=0.1))
            )
            with pytest.raises(UpstreamTimeout):
                await response.read()
            await engine.peer_closed(engine.requests[1])
            off = Timeouts(connect=0.0, first_byte=0.0, idle=0.0)
            assert await fetch(client, a_request(engine.url, timeouts=off)) == b"ab"

    # -- leaving

    async def test_r08_cancelling_cuts_the_connection(self, client: EngineClient) -> None:
        """An abandoned call is seen by the engine at once, before the head and within the body."""
        async with ScriptedEngine([Hold()]) as engine:
            waiting = asyncio.create_task(client.send(a_request(engine.url)))
            request = await engine.received(1)
            waiting.cancel()
            await engine.peer_closed(request, within=10)
            engine.reply(stream(b"abc", end=[Hold()]))
            reading = asyncio.create_task(fetch(client, a_request(engine.url)))
            request = await engine.received(2)
            await asyncio.sleep(0.05)
            reading.cancel()
            await engine.peer_closed(request, within=10)
            for task in (waiting, reading):
                with pytest.raises(asyncio.CancelledError):
                    await task

    async def test_closing_an_unfinished_response_cuts_the_connection(
        self, client: EngineClient
    ) -> None:
        """A response that is not read to its end does not go on at the engine; twice is fine."""
        async with ScriptedEngine(stream(b"abc", end=[Hold()])) as engine:
            response = await client.send(a_request(engine.url))
            await response.aclose()
            await engine.peer_closed(engine.requests[0], within=10)
            await response.aclose()

    async def test_slow_readers_hold_the_engine_back(self, client: EngineClient) -> None:
        """Unread bytes are bounded: the engine is not read faster than the client reads."""
        size = 64_000_000
        async with ScriptedEngine(answer(200, bytes(size))) as engine:
            response = await client.send(a_request(engine.url))
            await asyncio.sleep(0.3)
            written = engine.unsent()
            assert written > size // 2
            total = 0
            async for piece in response.chunks():
                total += len(piece)
                assert len(piece) < 4_000_000
            assert total == size

    # -- bodies that are poured

    async def test_pours_what_arrives_in_the_turn_in_which_it_does(
        self, client: EngineClient
    ) -> None:
        """A body is given piece by piece, without being asked for, to its end."""
        sent = [b"one", b"two", b"three"]
        first, *rest = sent
        engine_goes_on = asyncio.Event()
        script = [
            head(200, [("transfer-encoding", "chunked")]),
            chunk(first),
            Until(engine_goes_on),
            *map(chunk, rest),
            LAST_CHUNK,
        ]
        async with ScriptedEngine(script) as engine:
            response = await client.send(a_request(engine.url))
            got: list[bytes] = []

            def take(piece: bytes, _chunks: bytes | None) -> bool:
                got.append(piece)
                engine_goes_on.set()
                return True

            await asyncio.wait_for(response.pour(take, _never), 30)
            assert b"".join(got) == b"".join(sent)
            assert got[0] == first
            assert await fetch(client, a_request(engine.url)) == b"".join(sent)

    async def test_pouring_waits_for_who_takes_no_more(self, client: EngineClient) -> None:
        """After a refusal nothing comes until it is drained; the engine is held back."""
        size = 64_000_000
        async with ScriptedEngine(answer(200, bytes(size))) as engine:
            response = await client.send(a_request(engine.url))
            got, refusing = 0, True

            def take(piece: bytes, _chunks: bytes | None) -> bool:
                nonlocal got
                got += len(piece)
                return not refusing

            async def drain() -> None:
                nonlocal refusing
                before = got
                await asyncio.sleep(0.3)
                assert got == before
                assert engine.unsent() > size // 2
                refusing = False

            await asyncio.wait_for(response.pour(take, drain), 60)
            assert got == size

    async def test_pouring_ends_as_reading_does(self, client: EngineClient) -> None:
        """What came is given before a cut or a silence is told; cancelling cuts the connection."""
        limits = Timeouts(connect=2.0, first_byte=5.0, idle=0.2)
        for end, error in ((Reset(), UpstreamBroken), (Hold(), UpstreamTimeout)):
            got: list[bytes] = []

            def take(piece: bytes, _chunks: bytes | None, got: list[bytes] = got) -> bool:
                got.append(piece)
                return True

            async with ScriptedEngine(stream(b"abc", end=[Pause(0.05), end])) as engine:
                response = await client.send(a_request(engine.url, timeouts=limits))
                with pytest.raises(error):
                    await response.pour(take, _never)
                assert b"".join(got) == b"abc"
        async with ScriptedEngine(stream(b"abc", end=[Hold()])) as engine:
            response = await client.send(a_request(engine.url))
            pouring = asyncio.create_task(response.pour(lambda *_: True, _never))
            await asyncio.sleep(0.05)
            pouring.cancel()
            await engine.peer_closed(engine.requests[0], within=10)
            with pytest.raises(asyncio.CancelledError):
                await pouring

    # -- the pool

    async def test_r15_survives_idle_closes(self, client: EngineClient) -> None:
        """Requests at the very age at which the engine closes are each processed once.

        The first wait is longer: the client has seen a close before it meets one half way.
        """
        async with ScriptedEngine(idle_close=0.05) as engine:
            for number in range(60):
                assert await fetch(client, a_request(engine.url, b"%d" % number)) == b"{}"
                await asyncio.sleep(0.1 if not number else 0.045 + 0.001 * (number % 11))
            bodies = [request.body for request in engine.requests]
        assert bodies == [b"%d" % number for number in range(60)]

    async def test_sequential_requests_share_one_connection(self, client: EngineClient) -> None:
        """Keep-alive is used."""
        async with ScriptedEngine() as engine:
            for _ in range(20):
                await fetch(client, a_request(engine.url))
            assert engine.connections == 1

    async def test_connections_are_bounded_and_waiting_is_fair(
        self, make_client: MakeClient
    ) -> None:
        """More requests than connections wait their turn; nobody is lost."""
        client = make_client(max_connections=3)
        async with ScriptedEngine([Pause(0.005), *answer(200, b"ok")]) as engine:
            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(fetch(client, a_request(engine.url))) for _ in range(60)]
            assert [call.result() for call in calls] == [b"ok"] * 60
            assert engine.connections <= 3
        await client.aclose()

    async def test_waiting_for_a_connection_is_bounded_in_number_and_time(
        self, make_client: MakeClient
    ) -> None:
        """Over the bounds a request is refused unprocessed, at once or after the connect time."""
        client = make_client(max_connections=1, max_waiting=1)
        async with ScriptedEngine([Hold()]) as engine:
            first = asyncio.create_task(client.send(a_request(engine.url)))
            await engine.received(1)
            short = a_request(engine.url, timeouts=Timeouts(connect=0.1))
            second = asyncio.create_task(client.send(short))
            await asyncio.sleep(0)
            with pytest.raises(UpstreamUnreachable):
                await client.send(short)
            with pytest.raises(UpstreamUnreachable):
                await second
            first.cancel()
            engine.reply(answer(200, b"free"))
            assert await fetch(client, a_request(engine.url)) == b"free"
        await client.aclose()

    async def test_cancelled_waiters_lose_no_connection(self, make_client: MakeClient) -> None:
        """Slots survive any mixture of cancelled, failed and finished calls."""
        client = make_client(max_connections=2)
        async with ScriptedEngine([Pause(0.01), *answer(200, b"ok")]) as engine:
            for round_number in range(15):
                calls = [
                    asyncio.create_task(fetch(client, a_request(engine.url))) for _ in range(8)
                ]
                await asyncio.sleep(0.002 * round_number)
                for number, call in enumerate(calls):
                    if (number + round_number) % 3:
                        call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
            assert await fetch(client, a_request(engine.url)) == b"ok"
            assert await fetch(client, a_request(engine.url)) == b"ok"
            assert engine.open_connections <= 2
        await client.aclose()

    async def test_an_early_answer_does_not_poison_the_next_request(
        self, client: EngineClient
    ) -> None:
        """An engine that answers before it read the body gets a new connection afterwards."""
        async with ScriptedEngine(answer(200, b"ok")) as engine:
            big = b"x" * 8_000_000
            assert await fetch(client, a_request(engine.url, big)) == b"ok"
            assert await fetch(client, a_request(engine.url, b"small")) == b"ok"
        assert [len(request.body) for request in engine.requests] == [len(big), 5]

    async def test_closing_the_client_breaks_what_is_running(self, make_client: MakeClient) -> None:
        """After aclose no connection is left, and readers are told."""
        client = make_client()
        async with ScriptedEngine([Hold()]) as engine:
            waiting = asyncio.create_task(client.send(a_request(engine.url)))
            request = await engine.received(1)
            await client.aclose()
            with pytest.raises(UpstreamError):
                await waiting
            await engine.peer_closed(request)

    # -- uploads

    @pytest.mark.parametrize("declared", [True, False], ids=["length", "chunked"])
    async def test_uploads_go_up_in_pieces(self, client: EngineClient, *, declared: bool) -> None:
        """An upload arrives whole, framed by its length where it has one, else in chunks."""
        upload = Pieces(b"a" * 100_000, b"", b"b" * 700_000, b"c", declared=declared)
        async with ScriptedEngine(answer(200, b"ok")) as engine:
            assert await fetch(client, a_request(engine.url, upload=upload)) == b"ok"
            [request] = engine.requests
            assert request.body == b"".join(upload.body)
            assert request.header("content-length") == ("800001" if declared else None)
            assert await fetch(client, a_request(engine.url)) == b"ok"
            assert engine.connections == 1, "its connection is good for the next request"

    async def test_an_upload_never_takes_a_used_connection(self, client: EngineClient) -> None:
        """What cannot be sent twice does not risk a connection that may just be closing."""
        async with ScriptedEngine(answer(200, b"ok")) as engine:
            await fetch(client, a_request(engine.url))
            await fetch(client, a_request(engine.url, upload=Pieces(b"a", b"b")))
            assert [each.connection for each in engine.requests] == [0, 1]

    async def test_an_early_answer_ends_an_upload(self, client: EngineClient) -> None:
        """An engine that refuses before the end is heard at once; its connection is not reused."""
        gate = asyncio.Event()
        async with ScriptedEngine(answer(200, b"ok")) as engine:
            engine.interrupt("/v1/files", answer(413, b"no")[0].payload)  # type: ignore[union-attr]
            upload = Pieces(b"a" * 1000, b"b", gate=gate)
            response = await client.send(a_request(engine.url, path="/v1/files", upload=upload))
            assert (response.status, await response.read()) == (413, b"no")
            await response.aclose()
            assert await fetch(client, a_request(engine.url)) == b"ok"
            assert engine.requests[0].connection == 1

    async def test_what_an_upload_raises_cuts_the_connection(self, client: EngineClient) -> None:
        """A source that fails fails the call by its own error; the engine sees no request."""
        async with ScriptedEngine(answer(200, b"ok")) as engine:
            upload = Pieces(b"a" * 1000, b"b", error=LookupError("gone"))
            with pytest.raises(LookupError, match="gone"):
                await client.send(a_request(engine.url, upload=upload))
            assert await fetch(client, a_request(engine.url)) == b"ok"
            assert [each.path for each in engine.requests] == ["/v1/completions"]

    async def test_an_engine_that_takes_nothing_holds_an_upload_back(
        self, client: EngineClient
    ) -> None:
        """Pieces are asked for at the pace at which they leave; cancelling ends it."""
        asked = 0

        class Endless(Pieces):
            async def pieces(self) -> AsyncGenerator[bytes, None]:
                nonlocal asked
                while True:
                    asked += 1
                    yield bytes(64 * 1024)

        async with ScriptedEngine(read=False) as engine:
            upload = Endless(b"", declared=False)
            call = asyncio.create_task(client.send(a_request(engine.url, upload=upload)))
            before = -1
            while asked != before or not asked:
                before = asked
                await asyncio.sleep(0.05)
            assert asked < 1000
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    async def test_the_first_byte_timeout_begins_after_the_upload(
        self, client: EngineClient
    ) -> None:
        """A slow sender is no silent engine; silence after the last piece is."""
        gate = asyncio.Event()
        timeouts = Timeouts(connect=2.0, first_byte=0.1, idle=5.0)
        async with ScriptedEngine([Hold()]) as engine:
            upload = Pieces(b"a", b"b", gate=gate)
            request = a_request(engine.url, upload=upload, timeouts=timeouts)
            call = asyncio.create_task(client.send(request))
            await asyncio.wait({call}, timeout=0.3)
            assert not call.done()
            gate.set()
            with pytest.raises(UpstreamTimeout):
                await call
