"""Runs what was composed until a signal ends it: the gateway's listeners and their drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import uvicorn

from router.compose.gateway import Gateway
from router.domain.units import Seconds
from router.gateway.clients import ClientEdge, EdgeConfig
from router.gateway.dispatch import Application

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listening:
    """Where to listen, and how to end. `admin_port` None shares the gateway's listener."""

    host: str
    port: int
    admin_port: int | None = None
    drain_delay: Seconds = 5.0
    drain_grace: Seconds = 180.0


class _Server(uvicorn.Server):
    """A server whose signals belong to the process, not to one of its listeners."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def build_server(
    application: Application, edge: ClientEdge, host: str, port: int, grace: Seconds
) -> uvicorn.Server:
    """Return a server that leaves signals alone and ends streams `grace` seconds after its end."""
    return _Server(
        EdgeConfig(
            application,
            edge=edge,
            host=host,
            port=port,
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
    gateway: Gateway, listening: Listening, *, announce: Callable[[str], None]
) -> None:
    """Serve until a signal, then drain.

    SIGTERM: not ready at once, serving on for `drain_delay`, then streams may finish within
    `drain_grace`. SIGINT, or a second SIGTERM: without the delay. One more ends streams at once.
    A signal before anything is served raises CancelledError. Raises OSError for a port that is
    taken.
    """
    places = [(gateway.application, listening.port)]
    if gateway.admin is not None and listening.admin_port is not None:
        places.append((gateway.admin, listening.admin_port))
    servers = [
        build_server(
            application,
            ClientEdge(gateway.limits),
            listening.host,
            port,
            listening.drain_grace,
        )
        for application, port in places
    ]
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(listen(listening.host, port)) for _, port in places]
        ending = stack.enter_context(_catching_signals(gateway, servers, listening.drain_delay))
        _LOG.info("probing %d instances before serving", len(list(gateway.membership.instances)))
        async with gateway.running(), asyncio.TaskGroup() as tasks:
            ending.serving = True
            for server, listener in zip(servers, listeners, strict=True):
                tasks.create_task(server.serve(sockets=[listener]))
            host, port = listeners[0].getsockname()[:2]
            announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; `::` takes IPv4 as well. Raises OSError for a port in use."""
    six = ":" in host
    listener = socket.create_server(
        (host, port),
        family=socket.AF_INET6 if six else socket.AF_INET,
        dualstack_ipv6=host == "::",
        backlog=2048,
    )
    # asyncio does this only for sockets that it made itself; accepted ones inherit it. Without it
    # a body waits for the acknowledgement of its head, 40 ms on Linux.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class _Ending:
    """What signals do: cancel a gateway that does not serve yet, drain one that does."""

    def __init__(self, gateway: Gateway, servers: Sequence[uvicorn.Server], delay: Seconds) -> None:
        self.serving = False
        self._task = asyncio.current_task()
        self._gateway = gateway
        self._servers = servers
        self._delay = delay
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


@contextlib.contextmanager
def _catching_signals(
    gateway: Gateway, servers: Sequence[uvicorn.Server], delay: Seconds
) -> Iterator[_Ending]:
    """Turn signals into the gateway's end for the time of the block."""
    loop = asyncio.get_running_loop()
    ending = _Ending(gateway, servers, delay)
    loop.add_signal_handler(signal.SIGTERM, ending.end_gently)
    loop.add_signal_handler(signal.SIGINT, ending.end_now)
    try:
        yield ending
    finally:
        ending.forget()
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)
