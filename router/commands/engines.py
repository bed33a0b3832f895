"""`prfaas engines`: the stand-in engines of one cluster."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Annotated

import typer
import uvloop
import zmq

from router.commands.logs import configure_logs
from router.commands.output import CommandFailed, print_fault
from router.commands.process_environment import (
    ConfigOption,
    LogOption,
    choose_config,
    read_process_environment,
)
from router.compose.engines import build_cluster_spec, load_engine_tokenizer
from router.compose.models import CompositionError
from router.settings import load
from router.sim.engines.cluster import RunningCluster, serve_cluster
from router.sim.engines.specs import ClusterSpec, Tokenizer


def register(app: typer.Typer) -> None:
    """Add `engines`."""
    app.command("engines")(engines)


def engines(
    cluster: Annotated[str, typer.Option("--cluster", help="Which cluster to stand in for.")],
    config: ConfigOption = None,
    time_scale: Annotated[
        float | None,
        typer.Option(
            min=1e-3, help="How many times faster than the profiles; default: configured."
        ),
    ] = None,
    log_level: LogOption = None,
) -> None:
    """Run GPU-less look-alikes of vLLM at the addresses of one configured cluster.

    They answer the OpenAI surface, keep a real prefix cache, publish KV events over ZeroMQ and hand
    KV over as NIXL does; times and sizes come from the model's profiles.
    """
    environment = read_process_environment()
    config = choose_config(config, environment)
    loaded = load(config, os.environ)
    configure_logs(log_level or environment.log_level)
    try:
        spec = build_cluster_spec(loaded, cluster, time_scale=time_scale)
        tokenizer = load_engine_tokenizer(loaded.settings)
    except CompositionError as error:
        raise CommandFailed(f"{config}: {error}", code=2) from error
    try:
        uvloop.run(_run(spec, tokenizer))
    except (OSError, zmq.ZMQError) as error:
        raise CommandFailed(f"cluster {cluster}: cannot listen: {error}") from error


async def _run(spec: ClusterSpec, tokenizer: Tokenizer) -> None:
    """Serve until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with serve_cluster(spec, tokenizer=tokenizer) as running:
        print_fault(_announce(running))
        await ended.wait()


def _announce(running: RunningCluster) -> str:
    places = ", ".join(f"{host.spec.name} {host.url}" for host in running.engines.values())
    return f"stand-in cluster {running.spec.name}: {places}"
