"""`prfaas worker`: what `prfaas serve --workers` starts; not for people."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import typer
import uvloop

from router.commands.logs import LogLevel, configure_logs, writing_access_log
from router.commands.output import Unusable
from router.compose.worker import run_worker
from router.compose.worker_channel import receive_start


def register(app: typer.Typer) -> None:
    """Add `worker`, which no help shows."""
    app.command("worker", hidden=True)(worker)


def worker(channel: int) -> None:
    """Serve as the supervisor at the other end of the inherited socket orders."""
    try:
        supervisor = socket.socket(fileno=channel)
    except OSError as error:
        raise Unusable("prfaas worker is started by `prfaas serve --workers`") from error
    start = receive_start(supervisor)
    if start is None:
        return
    configure_logs(LogLevel(start.log_level))
    with contextlib.suppress(asyncio.CancelledError), writing_access_log() as access:
        uvloop.run(run_worker(start, supervisor, access))
