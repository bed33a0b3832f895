"""`prfaas serve`: the gateway."""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer
import uvloop

from router.adapters.clocks import SystemClock
from router.commands.logs import configure_logs, writing_access_log
from router.commands.output import CommandFailed, Unusable, print_fault
from router.commands.process_environment import (
    ConfigOption,
    LogOption,
    choose_config,
    read_process_environment,
)
from router.compose.collector import tune_collector
from router.compose.gateway import build_gateway
from router.compose.listeners import SharedListeners
from router.compose.models import CompositionError
from router.compose.reloading import Reloads
from router.compose.running import (
    Drain,
    Ending,
    Listening,
    address_of,
    open_listeners,
    run_gateway,
)
from router.compose.stores import read_secret
from router.compose.supervision import Crew, SupervisionFailed, Supervisor
from router.settings import Loaded, Settings, load
from router.settings.checks import note_oddities
from router.settings.reloads import Settled

_Open = TypeVar("_Open")
_Load = Callable[[], Loaded]


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
    load_again = partial(load, config, os.environ)
    loaded = load_again()
    if workers > 1 and loaded.settings.store.embedded:
        raise Unusable(
            f"--workers {workers} needs a store that workers share: set store.url to Redis"
            " (redis://…); memory:// lives in one process"
        )
    level = log_level or environment.log_level
    configure_logs(level)
    for note in note_oddities(loaded.settings):
        print_fault(f"note: {note}")
    _allow_open_files(2 * loaded.settings.server.max_connections)
    listening = _listening(loaded.settings, host, port)
    try:
        if workers == 1:
            _serve_alone(loaded, listening, load_again)
        else:
            with tempfile.TemporaryDirectory(prefix="prfaas-") as shared:
                settled = Settled(loaded, ())
                crew = Crew(settled, workers, Path(shared), _drain(loaded.settings), level)
                _serve_together(crew, listening, load_again)
    except CompositionError as error:
        raise CommandFailed(f"{config}: {error}", code=2) from error
    except SupervisionFailed as error:
        raise CommandFailed(f"{config}: {error}", code=error.code) from error
    except asyncio.CancelledError:
        return


def _serve_alone(loaded: Loaded, listening: Listening, load_again: _Load) -> None:
    with ExitStack() as held:
        listeners = _listen(held, open_listeners(listening), listening)
        access = held.enter_context(writing_access_log())
        secret = uvloop.run(read_secret(loaded.settings))
        gateway = build_gateway(loaded, secret=secret, access=access)
        overseer = _Alone(address_of(listeners[0]), Reloads(loaded, gateway, load=load_again))
        tune_collector()
        uvloop.run(run_gateway(gateway, listeners, _drain(loaded.settings), overseer))


def _serve_together(crew: Crew, listening: Listening, load_again: _Load) -> None:
    with ExitStack() as held:
        listeners = _listen(held, SharedListeners(listening, crew.count), listening)
        url = address_of(listeners.of(0)[0])
        supervisor = Supervisor(
            crew,
            listeners,
            clock=SystemClock(),
            announce=lambda: print_fault(f"prfaas gateway on {url}, {crew.count} workers"),
        )
        uvloop.run(supervisor.run(load_again))


def _listen(held: ExitStack, opening: AbstractContextManager[_Open], listening: Listening) -> _Open:
    try:
        return held.enter_context(opening)
    except OSError as error:
        place = f"{listening.host}:{listening.port}"
        raise CommandFailed(f"cannot listen on {place}: {error}") from error


def _drain(settings: Settings) -> Drain:
    return Drain(settings.drain.delay_seconds, settings.drain.grace_seconds)


class _Alone:
    """The overseer of the one process of a gateway: the person who started it, and the files."""

    def __init__(self, url: str, reloads: Reloads) -> None:
        self._url = url
        self._reloads = reloads
        self._serving = asyncio.Event()

    def serving(self) -> None:
        self._serving.set()
        print_fault(f"prfaas gateway on {self._url}")

    def leaving(self) -> None:
        """Nobody else listens there."""

    async def watch(self, ending: Ending) -> None:  # noqa: ARG002 - signals alone end it
        """Follow the files, once it serves."""
        with self._reloads.on_hangup():
            await self._serving.wait()
            await self._reloads.run()


def _allow_open_files(wanted: int) -> None:
    """Raise the limit on open files to the hard one; say so where that is too few."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < wanted:
        print_fault(
            f"note: {hard} open files are allowed (ulimit -Hn), too few for"
            f" server.max_connections and as many to engines ({wanted})"
        )


def _listening(settings: Settings, host: str | None, port: int | None) -> Listening:
    server = settings.server
    return Listening(
        host=server.host if host is None else host,
        port=server.port if port is None else port,
        admin_port=settings.admin.port,
    )
