"""A client that speaks HTTP by hand: it sees every byte, and leaves when it likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit


@dataclass(slots=True)
class RawCall:
    """One connection with one request on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect."""
        place = urlsplit(url)
        return cls(*await asyncio.open_connection(place.hostname, place.port))

    async def send_head(self, path: str, headers: dict[str, str], *, method: str = "POST") -> None:
        """Send a request head."""
        lines = [f"{method} {path} HTTP/1.1", "host: gateway"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join([*lines, "", ""]).encode())

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, path: str, body: object, headers: dict[str, str] | None = None) -> None:
        """Send a whole JSON request; `body` may be its bytes."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        told = {"content-type": "application/json", "content-length": str(len(raw))}
        await self.send_head(path, told | (headers or {}))
        await self.send(raw)

    async def read_head(self, within: float = 60.0) -> tuple[int, dict[str, str]]:
        """Return the status and the header fields of the response."""
        async with asyncio.timeout(within):
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.rstrip().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines)
        return int(first.split()[1]), {name.lower(): value for name, value in fields.items()}

    async def read_chunk(self, within: float = 60.0) -> bytes:
        """Return the next chunk of a chunked body; the last one is empty."""
        async with asyncio.timeout(within):
            size = int(await self.reader.readline(), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def read_rest(self, within: float = 60.0) -> bytes:
        """Return what comes until the peer closes the connection."""
        async with asyncio.timeout(within):
            return await self.reader.read()

    def leave(self) -> None:
        """Go away without a word."""
        self.writer.transport.abort()


@asynccontextmanager
async def calling(url: str) -> AsyncIterator[RawCall]:
    """A connection for the time of the block."""
    call = await RawCall.open(url)
    try:
        yield call
    finally:
        call.leave()
