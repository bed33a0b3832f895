"""Stand-in engines as processes of their own, one each: to be stopped, killed and started again.

async with engine_fleet(tmp_path, "p0 d0 f0", time_scale=1.0) as fleet:
async with serve_gateway(fleet.configuration) as system:
fleet["f0"].freeze()          # SIGSTOP: it holds its connections and says nothing
fleet["f0"].thaw()
await fleet["f0"].kill()
await fleet["f0"].start()     # at the same address, with an empty cache
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.fakes.processes import RunningCommand, prfaas
from tests.fakes.systems import BLOCK, Document, describe, merged, write_configuration

ROLES = {"p": "prefill", "d": "decode", "f": "prefill", "b": "both"}


_FIRST_PORT, _LAST_PORT = 15_000, 32_000
"""Below Linux's ephemeral ports: no outgoing connection takes one while its engine is down."""


_START_SECONDS = 300
"""Ends a start that hangs; on a machine with ten times its work one was seen to take a minute."""


def free_ports(count: int) -> list[int]:
    """Return free ports, all different: every one is held until all are found."""
    found: list[int] = []
    start = os.getpid() * 131 % (_LAST_PORT - _FIRST_PORT)
    with ExitStack() as stack:
        for step in range(_LAST_PORT - _FIRST_PORT):
            port = _FIRST_PORT + (start + step) % (_LAST_PORT - _FIRST_PORT)
            try:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise OSError("no free ports")


class EngineProcess:
    """One engine. Its address stays the same however often it is started."""

    def __init__(self, name: str, url: str, cluster: str, path: Path) -> None:
        self.name = name
        self.url = url
        self._arguments = ("engines", "--config", path.name, "--cluster", cluster)
        self._directory = path.parent
        self._running: tuple[AsyncExitStack, RunningCommand] | None = None

    @property
    def runs(self) -> bool:
        """Whether it was started and not killed."""
        return self._running is not None

    async def start(self) -> None:
        """Start it; return when it listens."""
        stack = AsyncExitStack()
        command = await stack.enter_async_context(
            prfaas(*self._arguments, directory=self._directory)
        )
        self._running = (stack, command)
        await command.said("stand-in cluster", within=_START_SECONDS)

    async def kill(self) -> None:
        """End it by SIGKILL. Idempotent."""
        running, self._running = self._running, None
        if running is not None:
            await running[0].aclose()

    def freeze(self) -> None:
        """Stop it where it stands; its kernel goes on acknowledging."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        if self._running is not None:
            self._running[1].send(number)


@dataclass(frozen=True)
class EngineFleet:
    """The engines by name, and the configuration of a gateway over all of them."""

    engines: Mapping[str, EngineProcess]
    configuration: Path

    def __getitem__(self, name: str) -> EngineProcess:
        return self.engines[name]


@asynccontextmanager
async def engine_fleet(
    directory: Path,
    names: str,
    *,
    threshold: int = 100,
    model: Document | None = None,
    **changes: object,
) -> AsyncIterator[EngineFleet]:
    """Run one process for each name (see `scripted_system`) for the time of the block.

    `model` adds to what the configuration says of the model; `changes` are laid over the
    configuration, of the engines too.
    """
    entries = _describe_engines(names.split())
    served: Document = {
        "cache": {"block_size": BLOCK},
        "profiles": {"prfaas": "./profile.yaml", "pd": "./profile.yaml"},
        **(model or {}),
    }
    small: Document = {"engines": {"blocks": 4096, "max_model_len": 8192}}
    whole = describe(_clusters(entries), threshold=threshold, model=served, **small)
    whole = merged(whole, changes)
    path = write_configuration(directory, whole)
    engines = {}
    for entry in entries:
        part = whole | {"clusters": _clusters([entry], among=entries)}
        own = directory / f"{entry['name']}.yaml"
        own.write_text(yaml.safe_dump(part, sort_keys=False), "utf-8")
        cluster = _home(entry)
        engines[entry["name"]] = EngineProcess(entry["name"], entry["url"], cluster, own)
    async with AsyncExitStack() as stack:
        for engine in engines.values():
            stack.push_async_callback(engine.kill)
        async with asyncio.TaskGroup() as tasks:
            for engine in engines.values():
                tasks.create_task(engine.start())
        yield EngineFleet(engines, path)


def _describe_engines(names: list[str]) -> list[Document]:
    ports = iter(free_ports(3 * len(names)))
    return [
        {
            "name": name,
            "url": f"http://127.0.0.1:{next(ports)}",
            "role": ROLES[name[0]],
            "kv_events": f"tcp://127.0.0.1:{next(ports)}",
            "kv_replay": f"tcp://127.0.0.1:{next(ports)}",
        }
        for name in names
    ]


def _home(entry: Document) -> str:
    return "west" if entry["name"][0] == "f" else "east"


def _clusters(entries: Iterable[Document], among: Iterable[Document] = ()) -> list[Document]:
    """Return both clusters with their instances.

    One that would be empty has those `among` which it belongs to: links need both their ends.
    """
    chosen = {cluster: [e for e in entries if _home(e) == cluster] for cluster in ("east", "west")}
    return [
        {
            "name": name,
            "kind": "pd" if name == "east" else "prfaas",
            "instances": found or [e for e in among if _home(e) == name],
        }
        for name, found in chosen.items()
    ]
