"""Runs what was composed until a signal ends it: the gateway's listeners and their drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn

from router.compose.gateway import Gateway
from router.domain.units import Seconds
from router.gateway.dispatch import Application

_LOG = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS = 75
"""Idle client connections are kept as long as nginx keeps them, so that its pool closes first."""


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


def build_server(application: Application, host: str, port: int, grace: Seconds) -> uvicorn.Server:
    """Return a server that leaves signals alone and ends streams `grace` seconds after its end."""
    return _Server(
        uvicorn.Config(
            application,
            host=host,
            port=port,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(grace)),
        )
    )


async def run_gateway(
    gateway: Gateway, listening: Listening, *, announce: Callable[[str], None]
) -> None:
    """Serve until a signal, then drain.

    SIGTERM: not ready at once, serving on for `drain_delay`, then streams may finish within
    `drain_grace`. SIGINT, or a second SIGTERM: without the delay. One more ends streams at once.
    Raises OSError for a port that is taken.
    """
    places = [(gateway.application, listening.port)]
    if gateway.admin is not None and listening.admin_port is not None:
        places.append((gateway.admin, listening.admin_port))
    servers = [
        build_server(application, listening.host, port, listening.drain_grace)
        for application, port in places
    ]
    sockets = [socket.create_server((listening.host, port), backlog=2048) for _, port in places]
    async with (
        gateway.running(),
        _draining(gateway, servers, listening.drain_delay),
        asyncio.TaskGroup() as tasks,
    ):
        for server, listener in zip(servers, sockets, strict=True):
            tasks.create_task(server.serve(sockets=[listener]))
        host, port = sockets[0].getsockname()[:2]
        announce(f"http://{host}:{port}")


@asynccontextmanager
async def _draining(
    gateway: Gateway, servers: list[uvicorn.Server], delay: Seconds
) -> AsyncIterator[None]:
    """Turn signals into a drain for the time of the block."""
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    def leave() -> None:
        for server in servers:
            server.force_exit = server.should_exit
            server.should_exit = True

    def end_now() -> None:
        gateway.start_draining()
        leave()

    def end_gently() -> None:
        if timers:
            timers.pop().cancel()
            leave()
            return
        gateway.start_draining()
        _LOG.info("draining: not ready, serving on for %g s", delay)
        timers.append(loop.call_later(delay, leave))

    loop.add_signal_handler(signal.SIGTERM, end_gently)
    loop.add_signal_handler(signal.SIGINT, end_now)
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)
