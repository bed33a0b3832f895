"""`prfaas kvmeta`: index ingest as its own process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import uuid

import typer
import uvloop

from router.adapters.clocks import SystemClock
from router.commands.logs import configure_logs
from router.commands.output import CommandFailed, print_fault
from router.commands.process_environment import (
    ConfigOption,
    LogOption,
    choose_config,
    read_process_environment,
)
from router.compose.ingest import IngestShard, build_shard
from router.compose.models import CompositionError
from router.compose.stores import Store, build_state, open_shared_store
from router.settings import Settings, load


def register(app: typer.Typer) -> None:
    """Add `kvmeta`."""
    app.command("kvmeta")(kvmeta)


def kvmeta(
    config: ConfigOption = None,
    log_level: LogOption = None,
) -> None:
    """Read the engines' KV events into the shared index until SIGTERM or Ctrl-C.

    Run as many as you like: they share the instances out among them, and what one that dies held
    the others take over when its leases end.
    """
    environment = read_process_environment()
    config = choose_config(config, environment)
    settings = load(config, os.environ).settings
    clock = SystemClock()
    try:
        store = open_shared_store(settings, clock)
    except CompositionError as error:
        raise CommandFailed(f"{config}: {error}", code=2) from error
    configure_logs(log_level or environment.log_level)
    uvloop.run(_run(settings, store, clock))


async def _run(settings: Settings, store: Store, clock: SystemClock) -> None:
    """Ingest until SIGTERM or SIGINT, then give everything back."""
    name = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    assert store.leases is not None  # noqa: S101 - a shared store has them
    shard = build_shard(
        settings,
        store.index,
        store.leases,
        name=name,
        clock=clock,
        state=build_state(store),
    )
    running = asyncio.create_task(_ingest(store, shard))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    print_fault(f"prfaas kvmeta: shard {name}, {len(shard.followed.instances)} instances in all")
    try:
        await running
    except asyncio.CancelledError:
        return


async def _ingest(store: Store, shard: IngestShard) -> None:
    async with store.running():
        await shard.run()
