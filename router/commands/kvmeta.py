"""`prfaas kvmeta`: index ingest as its own process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import uuid
from collections.abc import Callable
from functools import partial

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
from router.compose.reloading import Reloads
from router.compose.stores import Store, build_state, open_shared_store
from router.settings import Loaded, load


def register(app: typer.Typer) -> None:
    """Add `kvmeta`."""
    app.command("kvmeta")(kvmeta)


def kvmeta(
    config: ConfigOption = None,
    log_level: LogOption = None,
) -> None:
    """Read the engines' KV events into the shared index until SIGTERM or Ctrl-C.

    A changed file, or SIGHUP, is taken over while it runs: instances come and go.

    Run as many as you like: they share the instances out among them, and what one that dies held
    the others take over when its leases end.
    """
    environment = read_process_environment()
    config = choose_config(config, environment)
    load_again = partial(load, config, os.environ)
    loaded = load_again()
    clock = SystemClock()
    try:
        store = open_shared_store(loaded.settings, clock)
    except CompositionError as error:
        raise CommandFailed(f"{config}: {error}", code=2) from error
    configure_logs(log_level or environment.log_level)
    uvloop.run(_run(loaded, load_again, store, clock))


async def _run(
    loaded: Loaded, load_again: Callable[[], Loaded], store: Store, clock: SystemClock
) -> None:
    """Ingest until SIGTERM or SIGINT, then give everything back."""
    name = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    assert store.leases is not None  # noqa: S101 - a shared store has them
    shard = build_shard(
        loaded.settings,
        store.index,
        store.leases,
        name=name,
        clock=clock,
        state=build_state(store),
    )
    running = asyncio.create_task(_ingest(store, shard, Reloads(loaded, shard, load=load_again)))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    print_fault(f"prfaas kvmeta: shard {name}, {len(shard.followed.instances)} instances in all")
    try:
        await running
    except asyncio.CancelledError:
        return


async def _ingest(store: Store, shard: IngestShard, reloads: Reloads) -> None:
    with reloads.on_hangup():
        async with store.running(), asyncio.TaskGroup() as tasks:
            tasks.create_task(shard.run())
            tasks.create_task(reloads.run())
