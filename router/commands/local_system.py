"""A whole system on this machine: stand-in clusters and a gateway as processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from string import Template
from typing import Final

import httpx

from router.commands.output import CommandFailed
from router.settings import load_settings
from router.sim.lifelines import end_with_parent

_FILES: Final = resources.files("router.commands") / "demo_files"
_ENGINES: Final = ("PD_P0", "PD_P1", "PD_D0", "PD_D1", "PF_0", "PF_1")
_START_SECONDS: Final = 60.0
"""Three processes start in two or three; a machine with much else to do takes many times that."""
_STOP_SECONDS: Final = 5.0

Children = list[subprocess.Popen[bytes]]


def write_demo_config(directory: Path, port: int, time_scale: float) -> Path:
    """Write the demo's configuration and profiles into `directory`; return the configuration.

    Every port is a free one, the gateway's too where `port` is 0.
    """
    names = ["DEMO_PORT"] if port == 0 else []
    names += [f"{name}{kind}" for name in _ENGINES for kind in ("", "_EVENTS", "_REPLAY")]
    values: dict[str, object] = dict(zip(names, _free_ports(len(names)), strict=True))
    values.setdefault("DEMO_PORT", port)
    values["DEMO_TIME_SCALE"] = time_scale
    profiles = directory / "profiles"
    profiles.mkdir()
    for profile in (_FILES / "profiles").iterdir():
        (profiles / profile.name).write_bytes(profile.read_bytes())
    config = directory / "demo.yaml"
    config.write_text(Template((_FILES / "demo.yaml").read_text()).substitute(values))
    return config


def _free_ports(count: int) -> list[int]:
    """Return free ports. All are held at once, so that no two are alike."""
    with contextlib.ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [listener.getsockname()[1] for listener in listeners]


@contextlib.contextmanager
def run_system(config: Path) -> Iterator[tuple[str, Children]]:
    """Run every cluster of a configuration, its ingest and its gateway for the time of the block.

    Yields the gateway's URL, once it is ready, and the processes; leaves none of them behind.
    Raises CommandFailed where the system does not come up.
    """
    settings = load_settings(config, {})
    commands = [
        ["engines", "--config", str(config), "--cluster", cluster.name]
        for cluster in settings.clusters
    ]
    if not settings.store.embedded and settings.kvmeta.ingest != "embedded":
        commands.append(["kvmeta", "--config", str(config)])
    commands.append(["serve", "--config", str(config)])
    url = f"http://127.0.0.1:{settings.server.port}"
    children: Children = []
    try:
        children += [_start(arguments) for arguments in commands]
        _wait_until_ready(url, children)
        yield url, children
    finally:
        _stop(children)


def check_alive(children: Children) -> None:
    """Raise CommandFailed where a process has ended by itself."""
    for child in children:
        if child.poll() is not None:
            assert isinstance(child.args, list)  # noqa: S101 - as `_start` gave them
            arguments = " ".join(str(part) for part in child.args[3:])
            raise CommandFailed(f"`prfaas {arguments}` ended with code {child.returncode}")


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches the parent alone, which then ends its children in order.
    # Where it is killed itself, SIGINT ends a gateway at once; SIGTERM would have it drain.
    return subprocess.Popen(  # noqa: S603 - our own command with our own arguments
        [sys.executable, "-m", "router", *arguments],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGINT),  # noqa: PLW1509 - no threads here: nothing can be locked
    )


def _stop(children: Children) -> None:
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


def _wait_until_ready(url: str, children: Children) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        check_alive(children)
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/ready", timeout=1.0, trust_env=False).status_code == 200:
                return
        time.sleep(0.1)
    raise CommandFailed(f"the system did not become ready within {_START_SECONDS:.0f} s")
