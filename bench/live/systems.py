"""The processes of a scene: a Redis, two stand-in clusters, the ingest and two gateways.

async with live_system(directory) as system:
    await system.order("PUT", "threshold", {"mode": "manual", "tokens": 1000})
    await system.set_link(gbps=5)
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import yaml

from bench.live import plants
from bench.live.plants import Address, Cast, Document
from tests.fakes.engine_processes import free_ports
from tests.fakes.processes import RunningCommand, prfaas
from tests.fakes.redis_servers import redis_server

START_SECONDS: Final = 120.0
"""Far more than processes take to start, on a machine that has much else to do."""

_SHIPPING: Final = '''"""NIXL as it is, and a fabric that can move a bare prefix as well."""

from router.service.connectors import NixlConnector


class PrefixConnector(NixlConnector):
    """What DESIGN 5 asks of a connector before a remote prefix may count."""

    name = "nixl-prefix"
    ships_prefix = True
'''


class SceneFailed(Exception):
    """The scene could not be played; nothing is known of its claims."""


class Replica:
    """One gateway; `alive` while it was started and not ended."""

    def __init__(self, configuration: Path, port: int, stack: AsyncExitStack) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.configuration = configuration
        self._stack = stack
        self._command: RunningCommand | None = None

    @property
    def alive(self) -> bool:
        """Whether clients may ask it."""
        return self._command is not None

    async def start(self) -> None:
        """Start it, or start it again; return when it listens."""
        arguments = ("serve", "--config", self.configuration.name)
        command = await self._stack.enter_async_context(
            prfaas(*arguments, directory=self.configuration.parent)
        )
        await command.said("prfaas gateway on", within=START_SECONDS)
        self._command = command

    async def kill(self) -> None:
        """End it by SIGKILL, as a lost host would."""
        command, self._command = self._command, None
        if command is not None:
            await command.stop()

    async def leave(self, meanwhile: Callable[[], Awaitable[None]]) -> int:
        """Ask it to end (SIGTERM) and send no more clients; return its exit code when it has.

        `meanwhile` is awaited at once.
        """
        command, self._command = self._command, None
        if command is None:
            return 0
        command.send(signal.SIGTERM)
        await meanwhile()
        return await command.ended(within=START_SECONDS)

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        if self._command is not None:
            self._command.send(number)


@dataclass(slots=True)
class LiveSystem:
    """Everything that runs, and an operator's client of it."""

    replicas: tuple[Replica, ...]
    engines: Mapping[str, Address]
    client: httpx.AsyncClient

    @property
    def living(self) -> list[int]:
        """The numbers of the gateways that clients may ask."""
        return [number for number, each in enumerate(self.replicas) if each.alive]

    # -- as an operator

    async def order(
        self, method: str, path: str, body: object = None, *, replica: int | None = None
    ) -> Document:
        """Call a gateway's admin API, which must be content; return its document.

        The first one that lives where none is named. Raises SceneFailed, with what it answered,
        where it is not content.
        """
        chosen = self.living[0] if replica is None else replica
        answer = await self.client.request(
            method, f"{self.replicas[chosen].url}/admin/v1/{path}", json=body
        )
        if not answer.is_success:
            raise SceneFailed(f"{method} {path}: {answer.status_code} {answer.text}")
        document: Document = answer.json()
        return document

    async def reconfigure(self, change: Callable[[Document], None]) -> None:
        """Change every replica's file and have it read again."""
        for replica in self.replicas:
            document = yaml.safe_load(replica.configuration.read_text("utf-8"))
            change(document)
            replica.configuration.write_text(yaml.safe_dump(document), "utf-8")
            replica.send(signal.SIGHUP)

    async def until(
        self,
        condition: Callable[[Document], bool],
        what: str,
        *,
        path: str = "state",
        body: object = None,
        replicas: Sequence[int] | None = None,
        within: float = 30.0,
    ) -> None:
        """Poll the gateways, all where none are named, until a condition holds of each document.

        With a `body` it is posted. `what` completes the sentence "never saw …". Raises SceneFailed
        after `within` seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        method = "GET" if body is None else "POST"
        waiting = [each for each in self.living if replicas is None or each in replicas]
        while waiting:
            documents = [await self.order(method, path, body, replica=number) for number in waiting]
            waiting = [
                number
                for number, document in zip(waiting, documents, strict=True)
                if not condition(document)
            ]
            if waiting and loop.time() > deadline:
                raise SceneFailed(f"never saw {what} within {within:.0f} s")
            await asyncio.sleep(0.05)

    # -- as the world

    async def set_link(self, *, gbps: float | None = None, up: bool | None = None) -> None:
        """Change what the link really is."""
        body = {"gbps": gbps, "up": up}
        (await self.client.put(self._link_url, json=body)).raise_for_status()

    async def read_link(self) -> Document:
        """Return the link as it really is: `gbps`, `up`, `bytes_left`, `bytes_sent`."""
        document: Document = (await self.client.get(self._link_url)).json()
        return document

    async def break_engine(self, name: str, **fault: object) -> None:
        """Order a fault of an engine, by way of a sibling: it may be dead."""
        among = plants.REMOTES if name in plants.REMOTES else plants.LOCALS + plants.DECODES
        sibling = next(each for each in among if each != name)
        url = f"{self.engines[sibling].url}/standin/faults"
        (await self.client.post(url, params={"instance": name}, json=fault)).raise_for_status()

    @property
    def _link_url(self) -> str:
        return f"{self.engines[plants.REMOTES[0]].url}/standin/link/{plants.LINK}"


@asynccontextmanager
async def live_system(directory: Path, cast: Cast = Cast.PLAIN) -> AsyncIterator[LiveSystem]:
    """Run everything for the time of the block; all of it is ready when it begins.

    Raises SceneFailed where something does not come up.
    """
    names = (*plants.REMOTES, *plants.LOCALS, *plants.DECODES)
    ports = iter(free_ports(3 * len(names) + 2))
    engines = {
        name: Address(f"http://127.0.0.1:{next(ports)}", next(ports), next(ports)) for name in names
    }
    for name, profile in plants.describe_profiles().items():
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(profile), "utf-8")
    if cast is Cast.SHIPS_PREFIX:
        _install_connector(directory)
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(redis_server())
        files = [
            _write(directory / f"{name}.yaml", redis.url, engines, next(ports), cast)
            for name in ("one", "two")
        ]

        async def start(*arguments: str) -> RunningCommand:
            return await stack.enter_async_context(prfaas(*arguments, directory=directory))

        clusters = [
            await start("engines", "--config", files[0].name, "--cluster", cluster)
            for cluster in (plants.PRFAAS, plants.PD)
        ]
        for cluster in clusters:
            await cluster.said("stand-in cluster", within=START_SECONDS)
        await start("kvmeta", "--config", files[0].name)
        replicas = tuple([Replica(file, _port_of(file), stack) for file in files])
        for replica in replicas:
            await replica.start()
        client = await stack.enter_async_context(
            httpx.AsyncClient(
                timeout=30.0, trust_env=False, limits=httpx.Limits(max_connections=None)
            )
        )
        system = LiveSystem(replicas, engines, client)
        await _until_ready(system, len(names))
        yield system


async def _until_ready(system: LiveSystem, instances: int) -> None:
    def ready(state: Document) -> bool:
        synced = sum(source["state"] == "synced" for source in state["index"]["sources"])
        return synced == instances and all(each["ready"] for each in state["instances"])

    await system.until(ready, "everything ready", within=START_SECONDS)


def _write(path: Path, store: str, engines: Mapping[str, Address], port: int, cast: Cast) -> Path:
    document = plants.describe_plant(store, engines, port=port, cast=cast)
    path.write_text(yaml.safe_dump(document), "utf-8")
    return path


def _port_of(path: Path) -> int:
    port: int = yaml.safe_load(path.read_text("utf-8"))["server"]["port"]
    return port


def _install_connector(directory: Path) -> None:
    """Lay a distribution beside the configuration, where a process that starts there finds it."""
    (directory / "prefix_connector.py").write_text(_SHIPPING, "utf-8")
    about = directory / "prefix_connector-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: prefix-connector\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        f"[prfaas.connectors]\n{plants.SHIPPING_CONNECTOR} = prefix_connector:PrefixConnector\n"
    )
