"""One client's visit: a request on a connection of its own, and how it leaves.

A visit knows byte for byte what it got, so that its word can be held against the gateway's log.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

LAST_WORDS = {
    "chat": b"data: [DONE]",
    "completions": b"data: [DONE]",
    "responses": b"event: response.completed",
    "messages": b"event: message_stop",
}
"""How a whole stream of each API ends."""


_ERROR_EVENT = re.compile(rb'"error":\s*\{|event: error|event: response\.failed')


class Manner(StrEnum):
    """How a client behaves."""

    STAY = "stay"
    SLOW = "slow"
    """Reads a little, waits, reads on."""
    LEAVE = "leave"
    """Closes the connection after a while, wherever the request is then."""


class Ending(StrEnum):
    """How a visit ended."""

    WHOLE = "whole"
    ERROR_EVENT = "error_event"
    """A stream that told of its own failure."""
    LEFT = "left"
    """The client went before the end."""
    CUT = "cut"
    """The gateway broke the connection off."""
    BARE = "bare"
    """A stream that ended as if it were whole, without its last word."""
    HUNG = "hung"
    """No end in time."""
    UNREACHED = "unreached"
    """The gateway took no connection."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What is asked, and how."""

    id: str
    kind: str
    path: str
    body: bytes = field(repr=False)
    key: str | None
    streams: bool
    manner: Manner
    patience: float
    """Seconds after which the client leaves, if that is its manner."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a visit; `status` None where no response head came.

    One that was not `sent` left before it had a connection: the gateway knows nothing of it.
    """

    visit: Visit
    sent: bool
    status: int | None
    ending: Ending
    headers: Mapping[str, str] = field(default_factory=dict)


class _Talk:
    """The state of one visit."""

    def __init__(self) -> None:
        self.sent = False
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = bytearray()


async def pay_visit(url: str, visit: Visit, *, limit: float, chance: random.Random) -> Result:
    """Send one request and take its answer as the visit's manner says; at most `limit` seconds."""
    talk = _Talk()
    leaves = visit.manner is Manner.LEAVE
    try:
        async with asyncio.timeout(visit.patience if leaves else limit):
            ending = await _converse(url, visit, talk, chance)
    except TimeoutError:
        ending = Ending.LEFT if leaves else Ending.HUNG
    except (OSError, asyncio.IncompleteReadError):
        ending = Ending.CUT if talk.sent else Ending.UNREACHED
    return Result(visit, talk.sent, talk.status, ending, talk.headers)


async def _converse(url: str, visit: Visit, talk: _Talk, chance: random.Random) -> Ending:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=2**16)
    try:
        writer.write(_encode(visit))
        talk.sent = True  # a small request: the kernel has it before anything else happens
        await writer.drain()
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.rstrip().split("\r\n")
        talk.status = int(first.split()[1])
        talk.headers = {n.lower(): v for n, v in (line.split(": ", 1) for line in lines)}
        if "content-length" in talk.headers:
            talk.body += await reader.readexactly(int(talk.headers["content-length"]))
        else:
            await _read_chunks(reader, visit, talk, chance)
        return _judge(visit, talk)
    finally:
        # A close with something unread is a reset, one without it a FIN: clients do both.
        writer.close()


def _encode(visit: Visit) -> bytes:
    fields = {
        "host": "gateway",
        "content-type": "application/json",
        "content-length": str(len(visit.body)),
        "x-request-id": visit.id,
        "connection": "close",
    }
    if visit.key is not None:
        fields["authorization"] = f"Bearer {visit.key}"
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {visit.path} HTTP/1.1\r\n{head}\r\n".encode() + visit.body


async def _read_chunks(
    reader: asyncio.StreamReader, visit: Visit, talk: _Talk, chance: random.Random
) -> None:
    while size := int(await reader.readuntil(b"\r\n"), 16):
        talk.body += (await reader.readexactly(size + 2))[:-2]
        if visit.manner is Manner.SLOW:
            await asyncio.sleep(chance.uniform(0.0, 0.2))
    await reader.readexactly(2)


def _judge(visit: Visit, talk: _Talk) -> Ending:
    """Say what an answer is that ended as HTTP has it."""
    if not talk.headers.get("content-type", "").startswith("text/event-stream"):
        json.loads(talk.body or b"null")  # a broken body would be no answer
        return Ending.WHOLE
    tail = bytes(talk.body[-4096:])
    if _ERROR_EVENT.search(tail):
        return Ending.ERROR_EVENT
    return Ending.WHOLE if LAST_WORDS[visit.kind] in tail else Ending.BARE
