"""One worker of a gateway of several: serves as its supervisor orders, and never outlives it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket

from router.adapters.shared_counters import share_counters
from router.compose.collector import tune_collector
from router.compose.gateway import Gateway, Readied, build_gateway
from router.compose.models import CompositionError
from router.compose.reloading import ReloadRefused
from router.compose.running import Ending, run_gateway
from router.compose.stores import read_secret
from router.compose.worker_channel import (
    Abandon,
    Commit,
    Leaving,
    NoteRefused,
    Order,
    Prepare,
    Prepared,
    Serving,
    Start,
    Unstartable,
    Word,
    read_message,
    write_message,
)
from router.gateway.access import AccessLog
from router.settings.reloads import Settled

_LOG = logging.getLogger(__name__)


async def run_worker(start: Start, channel: socket.socket, access: AccessLog) -> None:
    """Serve until a signal, or until the supervisor is gone; then drain.

    A worker that outlived its supervisor would keep the port from the next one: it leaves at once,
    and only its streams may finish.
    """
    # Only the supervisor reloads, for all of them.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    reader, writer = await asyncio.open_unix_connection(sock=channel)
    try:
        share_counters(start.seat.directory, start.seat.place)
        loaded = start.settled.loaded
        secret = await read_secret(loaded.settings)
        gateway = build_gateway(loaded, secret=secret, seat=start.seat, access=access)
        tune_collector()
        listeners = [socket.socket(fileno=number) for number in start.listeners]
        await run_gateway(gateway, listeners, start.drain, _Supervised(gateway, reader, writer))
    except CompositionError as error:
        write_message(writer, Unstartable(str(error)))
    finally:
        writer.close()
        await writer.wait_closed()


class _Supervised:
    """The overseer of a worker: its supervisor, at the other end of a socket."""

    def __init__(
        self, gateway: Gateway, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._gateway = gateway
        self._reader = reader
        self._writer = writer
        self._readied: Readied | None = None

    def serving(self) -> None:
        write_message(self._writer, Serving())

    def leaving(self) -> None:
        write_message(self._writer, Leaving())

    async def watch(self, ending: Ending) -> None:
        """Do as ordered, until there is nobody who could order."""
        while (order := await read_message(self._reader)) is not None:
            try:
                await self._obey(order)
            except Exception:  # noqa: BLE001 - a task's root: the worker goes on as it is
                _LOG.exception("an order of the supervisor failed")
        _LOG.warning("the supervisor is gone: leaving")
        ending.end_now()

    async def _obey(self, order: Order | Word) -> None:
        match order:
            case Prepare(settled):
                write_message(self._writer, Prepared(await self._prepare(settled)))
            case Commit(counts) if self._readied is not None:
                readied, self._readied = self._readied, None
                await self._gateway.take_over(readied, counts=counts)
            case Abandon():
                self._readied = None
            case NoteRefused(message, counts):
                self._gateway.note_refused(message, counts=counts)
            case _:
                _LOG.warning("an order that makes no sense now: %s", type(order).__name__)

    async def _prepare(self, settled: Settled) -> str | None:
        try:
            self._readied = await self._gateway.prepare(settled)
        except ReloadRefused as error:
            return str(error)
        except Exception:  # noqa: BLE001 - whatever broke, the supervisor waits for an answer
            _LOG.exception("a configuration cannot be made ready")
            return "it cannot be made ready: see the log"
        return None
