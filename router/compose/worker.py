"""One worker of a gateway of several: serves as its supervisor orders, and never outlives it."""

from __future__ import annotations

import asyncio
import logging
import socket

from router.adapters.shared_counters import share_counters
from router.compose.collector import tune_collector
from router.compose.gateway import build_gateway
from router.compose.models import CompositionError
from router.compose.running import Ending, run_gateway
from router.compose.stores import read_secret
from router.compose.worker_channel import (
    Leaving,
    Serving,
    Start,
    Unstartable,
    read_message,
    write_message,
)
from router.gateway.access import AccessLog

_LOG = logging.getLogger(__name__)


async def run_worker(start: Start, channel: socket.socket, access: AccessLog) -> None:
    """Serve until a signal, or until the supervisor is gone; then drain.

    A worker that outlived its supervisor would keep the port from the next one: it leaves at once,
    and only its streams may finish.
    """
    reader, writer = await asyncio.open_unix_connection(sock=channel)
    try:
        share_counters(start.seat.directory, start.seat.place)
        secret = await read_secret(start.loaded.settings)
        gateway = build_gateway(start.loaded, secret=secret, seat=start.seat, access=access)
        tune_collector()
        listeners = [socket.socket(fileno=number) for number in start.listeners]
        await run_gateway(gateway, listeners, start.drain, _Supervised(reader, writer))
    except CompositionError as error:
        write_message(writer, Unstartable(str(error)))
    finally:
        writer.close()
        await writer.wait_closed()


class _Supervised:
    """The overseer of a worker: its supervisor, at the other end of a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def serving(self) -> None:
        write_message(self._writer, Serving())

    def leaving(self) -> None:
        write_message(self._writer, Leaving())

    async def watch(self, ending: Ending) -> None:
        while await read_message(self._reader) is not None:
            continue
        _LOG.warning("the supervisor is gone: leaving")
        ending.end_now()
