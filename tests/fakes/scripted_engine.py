r"""A scripted HTTP/1.1 server on a real socket, for everything that talks to engines.

It records what it receives and plays scripts: any bytes, cut anywhere, with gaps, resets, idle
closes and silence. Nothing in it knows what the code under test looks like.

    async with ScriptedEngine() as engine:
        engine.reply(stream(b'data: {"n":1}\n\n', b"data: [DONE]\n\n", gap=0.2))
        ...                                  # talk to engine.url
        assert engine.requests[0].json() == {...}
        await engine.peer_closed(engine.requests[0])

A script is a sequence of steps (`Send`, `Pause`, `Reset`, `Close`, `Hold`, `Until`), usually made
by `answer`, `json_answer`, `stream` or `head`; a function from the request to a script decides
while running. Scripts given to `then` are played once each, in order; afterwards, and on paths
that `on` names, the standing script is played.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

import httptools


@dataclass(frozen=True, slots=True)
class Send:
    """Write bytes."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Until:
    """Wait for an event that the test sets."""

    event: asyncio.Event


@dataclass(frozen=True, slots=True)
class Reset:
    """Cut the connection with a TCP RST."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection cleanly (FIN) after what was written."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Say nothing more, until the peer leaves."""


Step = Send | Pause | Until | Reset | Close | Hold
Script = Sequence[Step]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request as it came. `connection` numbers the server's connections from 0."""

    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    connection: int
    at: float

    def header(self, name: str) -> str | None:
        """Return the one value of a header, None without it; two of them are an error."""
        values = [value for key, value in self.headers if key.lower() == name.lower().encode()]
        assert len(values) <= 1, f"{name} was sent {len(values)} times"
        return values[0].decode("latin-1") if values else None

    def json(self) -> Any:  # noqa: ANN401 - any JSON value
        """Decode the body."""
        return json.loads(self.body)


ScriptSource = Script | Callable[[Recorded], Script]
Headers = Iterable[tuple[str, str]]


def head(status: int, headers: Headers = ()) -> Send:
    """A response head alone."""
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers)]
    return Send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


def chunk(payload: bytes) -> Send:
    """One chunk of a chunked body."""
    return Send(b"%x\r\n%s\r\n" % (len(payload), payload))


LAST_CHUNK = Send(b"0\r\n\r\n")


def answer(
    status: int = 200,
    body: bytes = b"",
    headers: Headers = (),
    *,
    content_type: str = "application/json",
) -> list[Step]:
    """A whole response with a Content-Length."""
    fields = [("content-type", content_type), *headers, ("content-length", str(len(body)))]
    return [Send(head(status, fields).payload + body)]


def json_answer(value: object, status: int = 200, headers: Headers = ()) -> list[Step]:
    """A whole JSON response."""
    return answer(status, json.dumps(value, separators=(",", ":")).encode(), headers)


def stream(
    *events: bytes,
    gap: float = 0.0,
    end: Sequence[Step] = (LAST_CHUNK,),
    headers: Headers = (),
    content_type: str = "text/event-stream; charset=utf-8",
) -> list[Step]:
    """A chunked response, one chunk an event, `gap` seconds apart; `end` is what comes after."""
    fields = [("content-type", content_type), *headers, ("transfer-encoding", "chunked")]
    steps: list[Step] = [head(200, fields)]
    for number, event in enumerate(events):
        if number and gap:
            steps.append(Pause(gap))
        steps.append(chunk(event))
    return [*steps, *end]


@dataclass(slots=True)
class _Peer:
    """What is known of one connection."""

    number: int
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    closed_at: float | None = None


class ScriptedEngine:
    """The server. `idle_close` closes kept-alive connections after so many idle seconds."""

    def __init__(
        self,
        script: ScriptSource = (),
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        idle_close: float | None = None,
        tls: ssl.SSLContext | None = None,
        read: bool = True,
    ) -> None:
        self.requests: list[Recorded] = []
        self.idle_close = idle_close
        self.tls = tls
        self.read = read
        self._interruptions: dict[str, bytes] = {}
        self._host = host
        self._port = port
        self._standing: ScriptSource = script or answer(200, b"{}")
        self._paths: dict[str, ScriptSource] = {}
        self._once: deque[ScriptSource] = deque()
        self._peers: list[_Peer] = []
        self._connections: set[_Connection] = set()
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), self._host, self._port, ssl=self.tls
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Refuse new connections and reset the open ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        open_connections = list(self._connections)
        for connection in open_connections:
            connection.reset()
        for connection in open_connections:
            await self._peers[connection.number].closed.wait()

    # -- what it plays

    def reply(self, script: ScriptSource) -> None:
        """Play `script` for every request from now on."""
        self._standing = script

    def then(self, *scripts: ScriptSource) -> None:
        """Play these once each, before the standing script."""
        self._once.extend(scripts)

    def on(self, path: str, script: ScriptSource) -> None:
        """Play `script` for requests of this path (without its query)."""
        self._paths[path] = script

    def interrupt(self, path: str, payload: bytes) -> None:
        """Write bytes as soon as the head of a request of this path is here, before its body."""
        self._interruptions[path] = payload

    # -- what it saw

    @property
    def url(self) -> str:
        """Where it listens."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self.tls else 'http'}://{host}:{self._port}"

    @property
    def connections(self) -> int:
        """How many connections were ever made to it."""
        return len(self._peers)

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._connections)

    async def received(self, count: int = 1, *, within: float = 60.0) -> Recorded:
        """Wait for the `count`-th request and return it."""
        async with asyncio.timeout(within), self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    async def peer_closed(self, request: Recorded, *, within: float = 60.0) -> float:
        """Wait until the connection of `request` is gone; return the loop time when it went."""
        peer = self._peers[request.connection]
        async with asyncio.timeout(within):
            await peer.closed.wait()
        assert peer.closed_at is not None
        return peer.closed_at

    def unsent(self) -> int:
        """How many bytes its open connections could not write yet."""
        return sum(each.transport.get_write_buffer_size() for each in self._connections)

    # -- for its connections

    def _connected(self, connection: _Connection) -> int:
        self._peers.append(_Peer(len(self._peers)))
        self._connections.add(connection)
        return len(self._peers) - 1

    def _disconnected(self, connection: _Connection) -> None:
        peer = self._peers[connection.number]
        peer.closed_at = asyncio.get_running_loop().time()
        peer.closed.set()
        self._connections.discard(connection)

    async def _record(self, request: Recorded) -> Script:
        async with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        source = self._paths.get(request.path.partition("?")[0])
        if source is None:
            source = self._once.popleft() if self._once else self._standing
        return source(request) if callable(source) else source


class _Connection(asyncio.Protocol):
    """One connection: parses requests, plays one script after the other."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._idle: asyncio.TimerHandle | None = None
        self._pending: asyncio.Queue[Recorded] = asyncio.Queue()
        self._path = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self.number = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self.number = self._engine._connected(self)
        self._task = asyncio.get_running_loop().create_task(self._play())
        if not self._engine.read:
            # uvloop begins to read only after this; what is paused before goes on then.
            asyncio.get_running_loop().call_soon(self.transport.pause_reading)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._cancel_idle()
        self._task.cancel()
        self._engine._disconnected(self)

    def data_received(self, data: bytes) -> None:
        self._cancel_idle()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._headers, self._body, self._path = [], [], b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if early := self._engine._interruptions.get(self._path.decode("latin-1")):
            self.transport.write(early)
        if any(name.lower() == b"expect" for name, _ in self._headers):
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._pending.put_nowait(
            Recorded(
                method=self._parser.get_method().decode(),
                path=self._path.decode("latin-1"),
                headers=tuple(self._headers),
                body=b"".join(self._body),
                connection=self.number,
                at=asyncio.get_running_loop().time(),
            )
        )

    async def _play(self) -> None:
        while True:
            request = await self._pending.get()
            for step in await self._engine._record(request):
                if not await self._step(step):
                    return
            if self._engine.idle_close is not None and self._pending.empty():
                loop = asyncio.get_running_loop()
                self._idle = loop.call_later(self._engine.idle_close, self.transport.close)

    async def _step(self, step: Step) -> bool:
        """Do one step; False when the connection is done."""
        match step:
            case Send(payload):
                self.transport.write(payload)
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Until(event):
                await event.wait()
            case Hold():
                await asyncio.get_running_loop().create_future()
            case Close():
                self.transport.close()
                return False
            case Reset():
                self.reset()
                return False
        return True

    def reset(self) -> None:
        """Leave with an RST: linger 0 makes close() throw away what is queued."""
        raw: socket.socket | None = self.transport.get_extra_info("socket")
        if raw is not None:  # TLS has none any more where it is about to close
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _cancel_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


class RefusedPort:
    """An address where nobody listens: a bound socket keeps others from taking the port."""

    def __init__(self, port: int | None = None) -> None:
        self._port = port or 0

    def __enter__(self) -> str:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self._port))
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class BlackHole:
    """An address that answers no SYN: a listener whose queue is full drops them (Linux)."""

    def __init__(self, port: int | None = None) -> None:
        self._port = port or 0

    def __enter__(self) -> str:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self._port))
        self._listener.listen(0)
        address = self._listener.getsockname()
        self._fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            self._fillers.append(filler)
        return f"http://127.0.0.1:{address[1]}"

    def __exit__(self, *_: object) -> None:
        for filler in self._fillers:
            filler.close()
        self._listener.close()
