"""The pooled HTTP/1.1 client, held to the contract of engine clients on both event loops."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from router.adapters.engine_http import HttpEngineClient
from router.adapters.http1 import Connection
from router.adapters.http_fields import encode_request, encode_start
from router.domain.errors import UpstreamBroken, UpstreamLost, UpstreamUnreachable
from router.ports import Timeouts
from tests.contract.engine_client_suite import (
    EngineClientSuite,
    MakeClient,
    Pieces,
    a_request,
    fetch,
)
from tests.fakes.scripted_engine import Hold, ScriptedEngine, answer, stream

CERTIFICATE = Path(__file__).parent.parent / "fakes" / "localhost.pem"


@pytest.fixture
def make_client() -> MakeClient:
    return HttpEngineClient


class TestHttpEngineClient(EngineClientSuite):
    """Every claim of the suite, and what is this implementation's own."""

    async def test_its_repr_shows_every_pool(
        self, make_client: Callable[..., HttpEngineClient]
    ) -> None:
        """Active, idle, connecting and waiting are visible: debugging needs no debugger."""
        client = make_client(max_connections=1)
        async with ScriptedEngine([Hold()]) as engine:
            waiting = asyncio.create_task(client.send(a_request(engine.url)))
            await engine.received(1)
            behind = asyncio.create_task(client.send(a_request(engine.url)))
            for _ in range(3):
                await asyncio.sleep(0)
            assert "1 active, 0 idle, 0 connecting, 1 waiting" in repr(client)
            waiting.cancel()
            behind.cancel()
            await asyncio.gather(waiting, behind, return_exceptions=True)
            assert "0 active, 0 idle, 0 connecting, 0 waiting" in repr(client)
            engine.reply(answer(200, b""))
            await fetch(client, a_request(engine.url))
            assert "0 active, 1 idle" in repr(client)
        await client.aclose()

    async def test_idle_connections_are_swept(
        self, make_client: Callable[..., HttpEngineClient]
    ) -> None:
        """Nothing is kept open for longer than the idle expiry."""
        client = make_client(idle_expiry=0.05)
        async with ScriptedEngine() as engine:
            await fetch(client, a_request(engine.url))
            await engine.peer_closed(engine.requests[0], within=10)
        await client.aclose()

    async def test_an_announced_keep_alive_time_is_kept(
        self, make_client: Callable[..., HttpEngineClient]
    ) -> None:
        """An engine that says when it closes is not raced."""
        client = make_client()
        async with ScriptedEngine(answer(200, b"", [("keep-alive", "timeout=0")])) as engine:
            await fetch(client, a_request(engine.url))
            await fetch(client, a_request(engine.url))
            assert engine.connections == 2
        await client.aclose()

    async def test_https_is_verified(self, make_client: Callable[..., HttpEngineClient]) -> None:
        """A known certificate connects and keeps alive, an unknown one is unreachable."""
        served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served.load_cert_chain(CERTIFICATE)
        async with ScriptedEngine(answer(200, b"tls"), tls=served) as engine:
            url = engine.url.replace("127.0.0.1", "localhost")
            client = make_client(tls=ssl.create_default_context(cafile=str(CERTIFICATE)))
            for _ in range(3):
                assert await fetch(client, a_request(url)) == b"tls"
            await client.aclose()
            stranger = make_client()
            with pytest.raises(UpstreamUnreachable):
                await stranger.send(a_request(url))
            await stranger.aclose()

    @pytest.mark.long
    @pytest.mark.timeout(120)
    async def test_r15_at_full_length(self, make_client: Callable[..., HttpEngineClient]) -> None:
        """200 requests 0.9 to 1.1 s apart at engines that close after 1.0 s: each runs once."""

        async def ask_one_engine(lane: int) -> None:
            client, numbers = make_client(), range(lane, 200, 8)
            async with ScriptedEngine(idle_close=1.0) as engine:
                for number in numbers:
                    assert await fetch(client, a_request(engine.url, b"%d" % number)) == b"{}"
                    await asyncio.sleep(0.9 + 0.2 * (number * 37 % 100) / 100)
                bodies = [request.body for request in engine.requests]
            assert bodies == [b"%d" % number for number in numbers]
            await client.aclose()

        async with asyncio.TaskGroup() as group:
            for lane in range(8):
                group.create_task(ask_one_engine(lane))

    @pytest.mark.parametrize("seen", [False, True])
    async def test_r15_tells_a_close_that_crossed_the_request(self, *, seen: bool) -> None:
        """A FIN sent before the request came proves it unseen; one sent afterwards does not."""
        loop = asyncio.get_running_loop()
        connection = Connection(loop=loop, released=lambda _: None, closed=lambda *_: None)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host, port = listener.getsockname()
            await loop.create_connection(lambda: connection, host, port)
            accepted, _ = listener.accept()
            assert not connection.is_stale()
            if not seen:
                accepted.close()  # the event loop has had no turn to notice
                assert connection.is_stale()
            request = a_request(f"http://{host}:{port}")
            wire = encode_request(request, encode_start("POST", request.path, b"engine", b""))
            sending = asyncio.create_task(connection.send(request, wire))
            if seen:
                accepted.setblocking(False)
                await loop.sock_recv(accepted, 65536)
                accepted.close()
            with pytest.raises(UpstreamBroken) as caught:
                await sending
        assert caught.value.processed is seen

    async def test_silence_is_told_by_address(
        self, make_client: Callable[..., HttpEngineClient]
    ) -> None:
        """It is the time since the last byte, also of connections that are gone."""
        client = make_client()
        async with ScriptedEngine(stream(b"a", b"b", gap=0.1)) as engine:
            assert client.silence(engine.url) is None
            waiting = asyncio.create_task(client.send(a_request(engine.url)))
            await (await waiting).read()
            at_first = client.silence(engine.url)
            assert at_first is not None
            await engine.stop()
            await asyncio.sleep(0.15)
            afterwards = client.silence(engine.url)
            assert afterwards is not None
            assert afterwards >= at_first + 0.15
        await client.aclose()

    @pytest.mark.parametrize("used", [False, True])
    async def test_r36_calls_at_a_lost_engine_are_cut(
        self, make_client: Callable[..., HttpEngineClient], *, used: bool
    ) -> None:
        """Without a byte of the body at once, else only when told so; other engines are left."""
        client = make_client()
        async with ScriptedEngine() as engine, ScriptedEngine([Hold()]) as other:
            if used:
                await fetch(client, a_request(engine.url))
            spared = asyncio.create_task(client.send(a_request(other.url)))
            engine.then(stream(b"a", end=[Hold()]), stream(end=[Hold()]), [Hold()])
            begun = await client.send(a_request(engine.url))
            pieces = begun.chunks()
            assert await anext(pieces) == b"a"
            headed = await client.send(a_request(engine.url))
            silent = asyncio.create_task(client.send(a_request(engine.url)))
            await engine.received(3 + used)
            assert client.cut(engine.url, begun=False) == 2
            with pytest.raises(UpstreamLost) as caught:
                await silent
            assert caught.value.processed
            with pytest.raises(UpstreamLost):
                await headed.read()
            assert client.cut(engine.url, begun=False) == 0
            assert client.cut(engine.url, begun=True) == 1
            with pytest.raises(UpstreamLost):
                await anext(pieces)
            assert client.cut("http://127.0.0.1:1", begun=True) == 0
            assert not spared.done()
            spared.cancel()
            await asyncio.gather(spared, return_exceptions=True)
        assert "0 active" in repr(client)
        await client.aclose()

    async def test_r36_an_upload_that_is_slowly_taken_is_not_given_up(
        self, make_client: Callable[..., HttpEngineClient]
    ) -> None:
        """An engine whose window is full has acknowledged the request's beginning: it is there."""
        client = make_client()
        async with ScriptedEngine(read=False) as engine:
            upload = Pieces(*[bytes(1_000_000)] * 20)
            request = a_request(engine.url, timeouts=Timeouts(0.2, 0.0, 0.0), upload=upload)
            sending = asyncio.create_task(client.send(request))
            await asyncio.sleep(0.6)
            assert not sending.done()
            assert client.cut(engine.url, begun=False) == 1
            with pytest.raises(UpstreamLost):
                await sending
        await client.aclose()

    @pytest.mark.parametrize("used", [False, True])
    @pytest.mark.parametrize("cut", [False, True])
    async def test_r36_a_kept_connection_to_a_vanished_host_is_given_up(
        self, *, used: bool, cut: bool
    ) -> None:
        """Where not one byte of a request is acknowledged, the connect time-out bounds the wait.

        Given up before, because the engine is down, the call cannot have been processed either.
        """
        loop = asyncio.get_running_loop()
        connection = Connection(loop=loop, released=lambda _: None, closed=lambda *_: None)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, port = listener.getsockname()
            transport, _ = await loop.create_connection(lambda: connection, host, port)
            accepted, _ = listener.accept()
            # A full window stands in for the lost packets: what follows is not acknowledged.
            transport.write(bytes(20_000_000))
            connection.used = used
            request = a_request(f"http://{host}:{port}", timeouts=Timeouts(0.2, 0.0, 0.0))
            wire = encode_request(request, encode_start("POST", request.path, b"engine", b""))
            sending = asyncio.create_task(connection.send(request, wire))
            await asyncio.sleep(0.05)
            if cut:
                assert connection.give_up(begun=False)
            with pytest.raises(UpstreamUnreachable):
                await asyncio.wait_for(sending, 10)
            accepted.close()
