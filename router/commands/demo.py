"""`prfaas demo`: two stand-in clusters, a simulated link and the gateway, until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from router.commands.local_system import Children, check_alive, run_system, write_demo_config
from router.commands.output import CommandFailed, print_fault


def register(app: typer.Typer) -> None:
    """Add `demo`."""
    app.command("demo")(demo)


def demo(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The gateway's port; 0 takes a free one.")
    ] = 8000,
    time_scale: Annotated[
        float, typer.Option(min=1e-3, help="How many times faster the engines run.")
    ] = 1.0,
) -> None:
    """Serve a whole system of stand-in engines on this machine, until Ctrl-C.

    Two prefill and two decode engines in one cluster, two prefill engines in another, a simulated
    100 Gbit/s link between them, and the gateway in front.
    """
    # Shells start background jobs with SIGINT ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _check_port(port)
    with tempfile.TemporaryDirectory(prefix="prfaas-demo-") as name:
        config = write_demo_config(Path(name), port, time_scale)
        with run_system(config) as (url, children):
            print(_welcome(url, config), flush=True)
            _watch(children)


def _check_port(port: int) -> None:
    """Raise CommandFailed where the port is taken, before anything is started."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise CommandFailed(f"port {port} is taken: choose another with --port") from error


def _watch(children: Children) -> None:
    """Wait for Ctrl-C or SIGTERM, or for a child that ends by itself."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            check_alive(children)
            time.sleep(0.2)
    print_fault("stopping")


def _welcome(url: str, config: Path) -> str:
    executable = Path(sys.executable).with_name("prfaas")
    prfaas = os.path.relpath(executable) if executable.exists() else "prfaas"
    return f"""
PrfaaS router on {url}, with two stand-in clusters ({config})

  curl -i {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "demo", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 16}}'

  {prfaas} explain --url {url} --tokens 30000
  {prfaas} ctl --help

Ctrl-C ends it.
"""
