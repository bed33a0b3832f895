"""`prfaas serve`: the gateway."""

from __future__ import annotations

import asyncio
import os
import resource
from typing import Annotated

import typer
import uvloop

from router.commands.logs import configure_logs
from router.commands.output import CommandFailed, Unusable, print_fault
from router.commands.process_environment import (
    ConfigOption,
    LogOption,
    choose_config,
    read_process_environment,
)
from router.compose.gateway import build_gateway
from router.compose.models import CompositionError
from router.compose.running import Listening, run_gateway
from router.compose.stores import read_secret
from router.settings import Settings, load
from router.settings.checks import note_oddities


def register(app: typer.Typer) -> None:
    """Add `serve`."""
    app.command("serve")(serve)


def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the port.")] = 1,
    log_level: LogOption = None,
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C.

    SIGTERM drains: /ready says 503, requests are served on for drain.delay_seconds, and streams may
    finish within drain.grace_seconds.
    """
    environment = read_process_environment()
    config = choose_config(config, environment)
    loaded = load(config, os.environ)
    if workers > 1:
        raise Unusable(_explain_workers(loaded.settings, workers))
    configure_logs(log_level or environment.log_level)
    for note in note_oddities(loaded.settings):
        print_fault(f"note: {note}")
    try:
        gateway = build_gateway(loaded, secret=uvloop.run(read_secret(loaded.settings)))
    except CompositionError as error:
        raise CommandFailed(f"{config}: {error}", code=2) from error
    _allow_open_files(2 * loaded.settings.server.max_connections)
    listening = _listening(loaded.settings, host, port)
    try:
        uvloop.run(
            run_gateway(
                gateway, listening, announce=lambda url: print_fault(f"prfaas gateway on {url}")
            )
        )
    except OSError as error:
        raise CommandFailed(
            f"cannot listen on {listening.host}:{listening.port}: {error}"
        ) from error
    except asyncio.CancelledError:
        return


def _allow_open_files(wanted: int) -> None:
    """Raise the limit on open files to the hard one; say so where that is too few."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < wanted:
        print_fault(
            f"note: {hard} open files are allowed (ulimit -Hn), too few for"
            f" server.max_connections and as many to engines ({wanted})"
        )


def _explain_workers(settings: Settings, workers: int) -> str:
    if settings.store.embedded:
        return (
            f"--workers {workers} needs a store that workers share: set store.url to Redis"
            " (redis://…); memory:// lives in one process"
        )
    return f"--workers {workers}: this gateway runs one process"


def _listening(settings: Settings, host: str | None, port: int | None) -> Listening:
    server = settings.server
    return Listening(
        host=server.host if host is None else host,
        port=server.port if port is None else port,
        admin_port=settings.admin.port,
        drain_delay=settings.drain.delay_seconds,
        drain_grace=settings.drain.grace_seconds,
    )
