"""`prfaas demo`: two stand-in clusters, a simulated link and the gateway, until Ctrl-C."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated, Final

import httpx
import typer

from router.commands.output import CommandFailed, print_fault

_FILES: Final = resources.files("router.commands") / "demo_files"
_CLUSTERS: Final = ("pd-east", "prfaas-west")
_ENGINES: Final = ("PD_P0", "PD_P1", "PD_D0", "PD_D1", "PF_0", "PF_1")
_START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1


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
    with tempfile.TemporaryDirectory(prefix="prfaas-demo-") as name:
        config = _write_config(Path(name), port, time_scale)
        with _children(config) as children:
            url = f"http://127.0.0.1:{_read_port(config)}"
            _wait_until_ready(url, children)
            print(_welcome(url, config), flush=True)
            _watch(children)


def _write_config(directory: Path, port: int, time_scale: float) -> Path:
    """Write the demo's configuration with free ports, beside its profiles; return its path."""
    names = ["DEMO_PORT"] if port == 0 else []
    names += [f"{name}{kind}" for name in _ENGINES for kind in ("", "_EVENTS", "_REPLAY")]
    values: dict[str, object] = dict(zip(names, _free_ports(len(names)), strict=True))
    values.setdefault("DEMO_PORT", port)
    values["DEMO_TIME_SCALE"] = time_scale
    profiles = directory / "profiles"
    profiles.mkdir()
    for profile in (_FILES / "profiles").iterdir():
        (profiles / profile.name).write_bytes(profile.read_bytes())
    template = Template((_FILES / "demo.yaml").read_text())
    config = directory / "demo.yaml"
    config.write_text(template.substitute(values))
    return config


def _read_port(config: Path) -> int:
    from router.settings import load_settings  # noqa: PLC0415 - costs half a second; --help need not wait

    return load_settings(config, {}).server.port


def _free_ports(count: int) -> list[int]:
    """Return free ports. All are held at once, so that no two are alike."""
    with contextlib.ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [listener.getsockname()[1] for listener in listeners]


@contextlib.contextmanager
def _children(config: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run the clusters and the gateway for the time of the block, and leave no process behind."""
    commands = [["engines", "--config", str(config), "--cluster", name] for name in _CLUSTERS]
    commands.append(["serve", "--config", str(config)])
    children = [_start(arguments) for arguments in commands]
    try:
        yield children
    finally:
        _stop(children)


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches the demo alone, which then ends its children in order.
    return subprocess.Popen(  # noqa: S603 - our own command with our own arguments
        [sys.executable, "-m", "router", *arguments],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - no threads here: nothing can be locked
    )


def _die_with_parent() -> None:
    """Ask Linux to end this child if the demo is killed; elsewhere there is no such thing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _stop(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the gateway first, then the engines; kill what does not end in time."""
    for child in reversed(children):
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _STOP_SECONDS
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _wait_until_ready(url: str, children: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        _check_alive(children)
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/ready", timeout=1.0, trust_env=False).status_code == 200:
                return
        time.sleep(0.1)
    raise CommandFailed(f"the demo did not become ready within {_START_SECONDS:.0f} s")


def _watch(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for Ctrl-C or SIGTERM, or for a child that ends by itself."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            _check_alive(children)
            time.sleep(0.2)
    print_fault("stopping")


def _check_alive(children: Sequence[subprocess.Popen[bytes]]) -> None:
    for child in children:
        if child.poll() is not None:
            arguments = " ".join(str(part) for part in child.args[3:])  # type: ignore[index]
            raise CommandFailed(f"`prfaas {arguments}` ended with code {child.returncode}")


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
