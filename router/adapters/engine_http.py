"""Engines over HTTP/1.1: a connection pool per engine. Implements `router.ports.EngineClient`.

A request takes an idle connection, or makes one while fewer than `max_connections` are open, or
waits in line. What dies under a request is replaced only where the engine cannot have seen it.

Idle connections are dropped before engines drop theirs: after `idle_expiry`, after the engine's
own `Keep-Alive: timeout`, or a little before the age at which it was seen to close one. vLLM's
front end (uvicorn) closes after 5 s and says so nowhere; a request that meets such a close in
flight is lost, so meeting it is what must not happen (CASES R15).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from typing import Final
from urllib.parse import urlsplit

from router.adapters.exchange import Exchange
from router.adapters.http1 import Connection, NotProcessed
from router.adapters.http_fields import encode_request, encode_start
from router.domain.errors import UpstreamUnreachable
from router.domain.units import Seconds
from router.ports import EngineRequest

IDLE_EXPIRY: Final[Seconds] = 4.0
"""Idle connections are closed after this; uvicorn's `timeout_keep_alive` is 5 s."""

_EXPIRY_SHARE: Final = 0.8
"""Share of a known keep-alive time after which a connection is not used again."""

_SHORTEST_EXPIRY: Final[Seconds] = 0.02
"""Closes of younger connections are restarts, not a keep-alive policy."""

_MAX_ORIGINS: Final = 4096
"""Engines come and go; beyond this many addresses the unused ones are forgotten."""

_MOST_STARTS: Final = 64
"""Beginnings of requests that are remembered of each engine: more than it has paths."""

_KEEPALIVE_OPTIONS: Final = (
    # A path that died under a long, silent prefill is found out in 30 s, and so is a peer that
    # takes none of what is sent (a full window counts too). Linux lets the user time-out decide
    # about keep-alive as well, whatever the count, so the two must agree.
    ("TCP_KEEPIDLE", 15),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 30_000),
)


class Origin:
    """The connections to one (scheme, host, port).

    Invariant: while anyone waits in line no connection is idle and `max_connections` are open, so
    nobody can jump the queue. A slot that is freed, and a connection that is released, goes
    straight to the first in line.
    """

    def __init__(
        self,
        url: str,
        *,
        loop: asyncio.AbstractEventLoop,
        max_connections: int,
        max_waiting: int,
        idle_expiry: Seconds,
        tls: ssl.SSLContext | None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("an engine's address must be http://host:port or https://host:port")
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError("an engine's address has no query, fragment or user")
        secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if secure else 80)
        self._tls = (tls or ssl.create_default_context()) if secure else None
        self._authority = parts.netloc.encode("idna" if not parts.netloc.isascii() else "ascii")
        self._prefix = parts.path.rstrip("/").encode("ascii")
        self._starts: dict[tuple[str, str], bytes] = {}
        self._loop = loop
        self._max_connections = max_connections
        self._max_waiting = max_waiting
        self._default_expiry = idle_expiry
        self._expiry = idle_expiry
        self._slots = 0
        self._heard_at: Seconds | None = None
        self._connections: set[Connection] = set()
        self._idle: deque[Connection] = deque()
        self._line: deque[asyncio.Future[Connection | None]] = deque()
        self._sweeper: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        active = len(self._connections) - len(self._idle)
        making = self._slots - len(self._connections)
        return (
            f"{self._authority.decode()}: {active} active, {len(self._idle)} idle, "
            f"{making} connecting, {len(self._line)} waiting"
        )

    def start(self, method: str, path: str) -> bytes:
        """Return the beginning of a request's head (see `encode_start`)."""
        start = self._starts.get((method, path))
        if start is None:
            if len(self._starts) >= _MOST_STARTS:  # paths may carry clients' own queries
                self._starts.clear()
            start = encode_start(method, path, self._authority, self._prefix)
            self._starts[method, path] = start
        return start

    @property
    def unused(self) -> bool:
        """Whether nothing is open and nobody waits."""
        return self._slots == 0

    @property
    def heard_at(self) -> Seconds | None:
        """When the last byte came from there, on the loop's clock."""
        told = [self._heard_at, *(each.heard_at for each in self._connections)]
        return max((at for at in told if at is not None), default=None)

    def give_up(self, *, begun: bool) -> int:
        """Fail the calls without a byte of their body, all with `begun`; return how many."""
        return sum([each.give_up(begun=begun) for each in list(self._connections)])

    async def acquire(self, request: EngineRequest, *, fresh: bool = False) -> Connection:
        """Return a connection of the caller's own; never a used one when `fresh`.

        Raises UpstreamUnreachable when there is none within the connect time-out, or when too
        many wait already.
        """
        if not fresh and (connection := self.take_idle()) is not None:
            return connection
        # A task of its own, since a caller may be sheltered from its task's cancellation, and a
        # time-out inside would be that task's.
        obtaining = self._loop.create_task(self._obtain(request, fresh=fresh))
        limit = request.timeouts.connect
        try:
            done, _ = await asyncio.wait({obtaining}, timeout=limit or None)
        except asyncio.CancelledError:
            await self._abandon(obtaining)
            raise
        if done:
            return obtaining.result()
        await self._abandon(obtaining)
        raise UpstreamUnreachable(f"no connection within {limit:g} s", instance=request.instance)

    async def _abandon(self, obtaining: asyncio.Task[Connection]) -> None:
        """End the making of a connection; one that is made nevertheless is for others."""
        obtaining.cancel()
        await asyncio.wait({obtaining})
        if not obtaining.cancelled() and obtaining.exception() is None:
            self._give_back(obtaining.result())

    def close(self) -> None:
        """Cut every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self._connections):
            connection.cut()

    async def _obtain(self, request: EngineRequest, *, fresh: bool) -> Connection:
        while True:
            if self._slots < self._max_connections:
                self._slots += 1
                return await self._connect(request)
            if self._idle:  # only met when `fresh`: an idle one makes room
                self._idle[0].cut()
                continue
            offered = await self._stand_in_line(request)
            if offered is None:
                return await self._connect(request)
            if not fresh and not offered.is_stale():
                return offered
            offered.cut()

    async def _stand_in_line(self, request: EngineRequest) -> Connection | None:
        """Wait for a released connection, or for a slot (None) that is then the caller's."""
        if len(self._line) >= self._max_waiting:
            raise UpstreamUnreachable(
                "too many requests wait for a connection", instance=request.instance
            )
        turn: asyncio.Future[Connection | None] = self._loop.create_future()
        self._line.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(turn.result())
            else:
                self._line.remove(turn)
            raise

    async def _connect(self, request: EngineRequest) -> Connection:
        """Make a connection; the slot is the caller's and is freed when none comes of it."""
        connection = Connection(loop=self._loop, released=self._give_back, closed=self._forget)
        try:
            await self._loop.create_connection(
                lambda: connection, self._host, self._port, ssl=self._tls
            )
        except BaseException as error:
            if connection.made:
                connection.cut()
            else:
                self._free_slot()
            if not isinstance(error, OSError):
                raise
            self._expiry = self._default_expiry  # it is away: what it did before may not hold
            raise UpstreamUnreachable(_describe(error), instance=request.instance) from error
        self._connections.add(connection)
        connection.watch_peer(_KEEPALIVE_OPTIONS)
        return connection

    def take_idle(self) -> Connection | None:
        """Return the idle connection that was used last and is alive; drop those that are not."""
        while self._idle:
            connection = self._idle[-1]
            age, said = self._loop.time() - connection.idle_since, connection.keep_alive
            if age < (self._expiry if said is None else self._lifetime(said)):
                if not connection.is_stale():
                    return self._idle.pop()
                self._learn(age)
            connection.cut()
        return None

    def _lifetime(self, said: Seconds | None) -> Seconds:
        """Return how long a connection may be idle whose engine said this of it, or nothing."""
        return self._expiry if said is None else min(self._expiry, said * _EXPIRY_SHARE)

    def _learn(self, age: Seconds) -> None:
        """Remember at what age the engine closes idle connections."""
        if age > _SHORTEST_EXPIRY:
            self._expiry = min(self._expiry, age * _EXPIRY_SHARE)

    def _give_back(self, connection: Connection | None) -> None:
        """Take back a connection that can be used again, or (None) an unused slot."""
        if connection is None:
            self._free_slot()
            return
        if self._line and (turn := self._next_in_line()):
            turn.set_result(connection)
            return
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._expiry, self._sweep)

    def _forget(self, connection: Connection, closed_by_engine: bool) -> None:  # noqa: FBT001 - a callback's shape
        """A connection is gone."""
        if connection in self._idle:
            self._idle.remove(connection)
            if closed_by_engine:
                self._learn(self._loop.time() - connection.idle_since)
        if connection.heard_at is not None:
            self._heard_at = max(connection.heard_at, self._heard_at or 0.0)
        self._connections.discard(connection)
        self._free_slot()

    def _free_slot(self) -> None:
        if turn := self._next_in_line():
            turn.set_result(None)
        else:
            self._slots -= 1

    def _next_in_line(self) -> asyncio.Future[Connection | None] | None:
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                return turn
        return None

    def _sweep(self) -> None:
        """Close what has been idle for too long; come again while anything is idle."""
        now = self._loop.time()
        for connection in list(self._idle):
            if now - connection.idle_since >= self._lifetime(connection.keep_alive):
                connection.cut()
        self._sweeper = self._loop.call_later(self._expiry, self._sweep) if self._idle else None


class HttpEngineClient:
    """A client with one pool per engine. Its `repr` shows every pool.

    `max_connections` bounds each engine's connections, `max_waiting` the requests that wait for
    one. `tls` is the context for https addresses, None for the system's. Made and used inside one
    running event loop.
    """

    def __init__(
        self,
        *,
        max_connections: int = 1024,
        max_waiting: int = 1024,
        idle_expiry: Seconds = IDLE_EXPIRY,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._max_connections = max_connections
        self._max_waiting = max_waiting
        self._idle_expiry = idle_expiry
        self._tls = tls
        self._origins: dict[str, Origin] = {}

    def __repr__(self) -> str:
        return f"<HttpEngineClient [{'; '.join(map(repr, self._origins.values()))}]>"

    async def send(self, request: EngineRequest) -> Exchange:
        """Send and wait for the response head (see `router.ports.EngineClient`).

        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken, and ValueError for a request
        that HTTP cannot carry.
        """
        origin = self._origins.get(request.base_url) or self._add_origin(request.base_url)
        wire = encode_request(request, origin.start(request.method, request.path))
        connection = origin.take_idle() if request.upload is None else None
        if connection is None:
            connection = await origin.acquire(request, fresh=request.upload is not None)
        try:
            return await connection.send(request, wire)
        except NotProcessed:
            if not connection.used:
                raise
        connection = await origin.acquire(request, fresh=True)
        return await connection.send(request, wire)

    def silence(self, url: str) -> Seconds | None:
        """Return how long ago the last byte came from there (see `router.ports.EngineLines`)."""
        origin = self._origins.get(url)
        if origin is None or (heard := origin.heard_at) is None:
            return None
        return max(0.0, asyncio.get_running_loop().time() - heard)

    def cut(self, url: str, *, begun: bool) -> int:
        """Fail what waits there in vain (see `router.ports.EngineLines`)."""
        origin = self._origins.get(url)
        return 0 if origin is None else origin.give_up(begun=begun)

    async def aclose(self) -> None:
        """Close every connection; responses that are still being read break."""
        for origin in self._origins.values():
            origin.close()
        self._origins.clear()

    def _add_origin(self, url: str) -> Origin:
        if len(self._origins) >= _MAX_ORIGINS:
            self._origins = {at: kept for at, kept in self._origins.items() if not kept.unused}
        origin = self._origins[url] = Origin(
            url,
            loop=asyncio.get_running_loop(),
            max_connections=self._max_connections,
            max_waiting=self._max_waiting,
            idle_expiry=self._idle_expiry,
            tls=self._tls,
        )
        return origin


def _describe(error: OSError) -> str:
    """Say why there is no connection, without naming hosts: clients read this."""
    if isinstance(error, ConnectionRefusedError):
        return "the engine refused the connection"
    if isinstance(error, socket.gaierror):
        return "the engine's name could not be resolved"
    if isinstance(error, ssl.SSLError):
        return "no TLS connection could be made to the engine"
    return "no connection to the engine could be made"
