"""Runs what was composed until a signal ends it: the gateway's listeners and their drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import uvicorn

from router.compose.gateway import Gateway
from router.domain.units import Seconds
from router.gateway.clients import ClientEdge, EdgeConfig
from router.gateway.dispatch import Application

_LOG = logging.getLogger(__name__)

_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Listening:
    """Where to listen. `admin_port` None shares the gateway's listener."""

    host: str
    port: int
    admin_port: int | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """How to end: serve on for `delay`, then let streams finish within `grace`."""

    delay: Seconds = 5.0
    grace: Seconds = 180.0


class Overseer(Protocol):
    """Whoever has a gateway run: told how far it is, and may change or end it."""

    def serving(self) -> None:
        """Told once requests are served."""
        ...

    def leaving(self) -> None:
        """Told once no new connection will be accepted."""
        ...

    async def watch(self, ending: Ending) -> None:
        """Run beside the gateway until cancelled; `ending` ends it."""
        ...


class _Server(uvicorn.Server):
    """A server whose signals belong to the process, not to one of its listeners."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def build_server(application: Application, edge: ClientEdge, grace: Seconds) -> uvicorn.Server:
    """Return a server that leaves signals alone and ends streams `grace` seconds after its end."""
    return _Server(
        EdgeConfig(
            application,
            edge=edge,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # the framework's paths have them read: `front.behind_proxies`
            timeout_graceful_shutdown=max(1, round(grace)),
        )
    )


async def run_gateway(
    gateway: Gateway, listeners: Sequence[socket.socket], drain: Drain, overseer: Overseer
) -> None:
    """Serve on `listeners` (the clients', the operators' if there is one) until a signal.

    SIGTERM: not ready at once, serving on for the delay, then streams may finish within the grace.
    SIGINT, or a second SIGTERM: without the delay. One more ends streams at once. A signal before
    anything is served raises CancelledError.
    """
    applications = [gateway.application]
    if gateway.admin is not None:
        applications.append(gateway.admin)
    servers = [
        build_server(application, ClientEdge(gateway.limits, gateway.refusals), drain.grace)
        for application in applications
    ]
    with _catching_signals(gateway, servers, drain.delay, overseer) as ending:
        watching = asyncio.create_task(overseer.watch(ending))
        try:
            count = len(list(gateway.membership.instances))
            _LOG.info("probing %d instances before serving", count)
            async with gateway.running(), asyncio.TaskGroup() as tasks:
                ending.serving = True
                for server, listener in zip(servers, listeners, strict=True):
                    tasks.create_task(server.serve(sockets=[listener]))
                overseer.serving()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


@contextlib.contextmanager
def open_listeners(listening: Listening) -> Iterator[list[socket.socket]]:
    """Listen for the time of the block: for clients, and for operators where they have a port.

    Raises OSError for a port that is taken.
    """
    ports = [listening.port]
    if listening.admin_port is not None:
        ports.append(listening.admin_port)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(listen(listening.host, port)) for port in ports]


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a listening socket; `::` takes IPv4 as well. Raises OSError for a port in use.

    With `shared` further sockets may listen at the same place, and connections spread over them.
    """
    six = ":" in host
    listener = socket.create_server(
        (host, port),
        family=socket.AF_INET6 if six else socket.AF_INET,
        dualstack_ipv6=host == "::",
        backlog=_BACKLOG,
        reuse_port=shared,
    )
    # asyncio does this only for sockets that it made itself; accepted ones inherit it. Without it
    # a body waits for the acknowledgement of its head, 40 ms on Linux.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the URL under which a listener is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Ending:
    """What signals do: cancel a gateway that does not serve yet, drain one that does."""

    def __init__(
        self,
        gateway: Gateway,
        servers: Sequence[uvicorn.Server],
        delay: Seconds,
        overseer: Overseer,
    ) -> None:
        self.serving = False
        self._task = asyncio.current_task()
        self._gateway = gateway
        self._servers = servers
        self._delay = delay
        self._overseer = overseer
        self._timer: asyncio.TimerHandle | None = None

    def end_gently(self) -> None:
        """Stop being ready, and leave after the delay; the second time, leave now."""
        if self._timer is not None or not self.serving:
            self.end_now()
            return
        self._gateway.start_draining()
        _LOG.info("draining: not ready, serving on for %g s", self._delay)
        self._timer = asyncio.get_running_loop().call_later(self._delay, self._leave)

    def end_now(self) -> None:
        """Take no new requests and let streams finish; the second time, end them."""
        self.forget()
        self._gateway.start_draining()
        if self.serving:
            self._leave()
        elif self._task is not None:
            self._task.cancel()

    def forget(self) -> None:
        """Leave no timer behind."""
        if self._timer is not None:
            self._timer.cancel()

    def _leave(self) -> None:
        for server in self._servers:
            server.force_exit = server.should_exit
            server.should_exit = True
        self._overseer.leaving()


@contextlib.contextmanager
def _catching_signals(
    gateway: Gateway, servers: Sequence[uvicorn.Server], delay: Seconds, overseer: Overseer
) -> Iterator[Ending]:
    """Turn signals into the gateway's end for the time of the block."""
    loop = asyncio.get_running_loop()
    ending = Ending(gateway, servers, delay, overseer)
    loop.add_signal_handler(signal.SIGTERM, ending.end_gently)
    loop.add_signal_handler(signal.SIGINT, ending.end_now)
    try:
        yield ending
    finally:
        ending.forget()
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)
