"""`prfaas link-agent` as a process, before a gateway that comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.fakes.processes import prfaas
from tests.fakes.systems import Document, System, scripted_system

AGENT_ON_LOOPBACK = ("link-agent", "--link", "west-east", "--interface", "lo")
AGENT, VIEWER = "an-agents-key", "a-viewers-key"
KEYS = {
    "keys": [
        {"name": "agent", "key": AGENT, "role": "telemetry"},
        {"name": "viewer", "key": VIEWER, "role": "viewer"},
    ]
}


class Way:
    """A way to a gateway that can be cut: its port stays the same."""

    def __init__(self, url: str) -> None:
        self._port = urlsplit(url).port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, there = await asyncio.open_connection("127.0.0.1", self._port)
        ends = {writer, there}
        self._writers |= ends
        with contextlib.suppress(OSError):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy(reader, there))
                tasks.create_task(_copy(back, writer))
        self._writers -= ends
        for end in ends:
            end.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await source.read(1 << 16):
            target.write(piece)
            await target.drain()
    target.close()


@asynccontextmanager
async def cuttable(url: str) -> AsyncIterator[Way]:
    way = Way(url)
    await way.open()
    try:
        yield way
    finally:
        await way.cut()


async def telemetry(system: System) -> Document | None:
    """What the gateway knows of the link's egress."""
    answer = await system.admin("GET", "links/west-east", key=VIEWER)
    told: Document | None = answer.json()["telemetry"]
    return told


async def test_an_agent_outlives_the_gateways_that_it_tells(tmp_path: Path) -> None:
    """Loopback's bytes and round trips arrive; a gateway that was away is told again."""
    (tmp_path / "key").write_text(f"{AGENT}\n")
    async with (
        scripted_system(tmp_path, admin=KEYS) as system,
        cuttable(system.url) as way,
        prfaas(
            *AGENT_ON_LOOPBACK,
            *("--peer", "127.0.0.0/8", "--interval", "0.05", "--key-file", "key", "--json"),
            *("--url", f"http://127.0.0.1:{way.port}", "--url", "http://127.0.0.1:9"),
            directory=tmp_path,
        ) as agent,
    ):
        async with asyncio.timeout(60):
            while True:
                told = await telemetry(system)
                if told is not None and told["egress_gbps"] > 0 and told["rtt_ms"]:
                    break
                await asyncio.sleep(0.02)
        assert told["available_gbps"] is None
        assert json.loads(agent.stdout[0])["egress_gbps"] >= 0
        await way.cut()
        await agent.said(rf":{way.port} was not told", within=60)
        assert (await telemetry(system)) is not None
        await way.open()
        await agent.said(rf":{way.port} is told again", within=60)
        agent.send(signal.SIGTERM)
        assert await agent.ended(within=60) == 0


async def test_one_measurement_that_is_not_taken_is_a_failure(tmp_path: Path) -> None:
    """A key without the right is told so; the measurement is shown all the same."""
    async with scripted_system(tmp_path, admin=KEYS) as system:
        once = [*AGENT_ON_LOOPBACK, "--interval", "0.1", "--once", "--json"]
        where = ["--url", system.url, "--key", VIEWER]
        async with prfaas(*once, *where, directory=tmp_path) as agent:
            assert await agent.ended(within=60) == 1
            document = json.loads("\n".join(agent.stdout))
            assert document["telemetry"]["egress_gbps"] >= 0
            assert document["told"][system.url].startswith("403")
            assert "needs telemetry" in agent.stderr[-1]
