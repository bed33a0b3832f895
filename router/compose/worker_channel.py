"""What a supervisor and its workers say to each other, over a socket pair that they inherit.

Frames of pickled messages: both ends are this very program, and nobody else holds the socket.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from dataclasses import dataclass, field
from typing import Final

from router.adapters.siblings import Seat
from router.compose.running import Drain
from router.settings.reloads import Settled

_LENGTH: Final = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Start:
    """The first order: serve this on these inherited sockets."""

    settled: Settled = field(repr=False)
    seat: Seat
    listeners: tuple[int, ...]
    drain: Drain
    log_level: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make ready to go on by another configuration, and say whether that can be."""

    settled: Settled = field(repr=False)


@dataclass(frozen=True, slots=True)
class Commit:
    """Go on by what was made ready. One of the workers counts it for all."""

    counts: bool


@dataclass(frozen=True, slots=True)
class Abandon:
    """Forget what was made ready."""


@dataclass(frozen=True, slots=True)
class NoteRefused:
    """A configuration could not be taken over. One of the workers counts it for all."""

    message: str
    counts: bool


@dataclass(frozen=True, slots=True)
class Serving:
    """The worker serves."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The worker accepts no more connections."""


@dataclass(frozen=True, slots=True)
class Unstartable:
    """The worker cannot run what it was given; one readable line."""

    message: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """The answer to Prepare: None, or why not."""

    refusal: str | None = None


Order = Start | Prepare | Commit | Abandon | NoteRefused
Word = Serving | Leaving | Unstartable | Prepared


def write_message(writer: asyncio.StreamWriter, message: Order | Word) -> None:
    """Send one message; a peer that is gone is found out by reading."""
    body = pickle.dumps(message)
    writer.write(_LENGTH.pack(len(body)) + body)


async def read_message(reader: asyncio.StreamReader) -> Order | Word | None:
    """Return the next message, None where the other end is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return _unpickle(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, OSError):
        return None


def receive_start(channel: socket.socket) -> Start | None:
    """Wait for the first order, None where there is no supervisor any more."""
    head = channel.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = channel.recv(length, socket.MSG_WAITALL)
    message = _unpickle(body) if len(body) == length else None
    return message if isinstance(message, Start) else None


def _unpickle(body: bytes) -> Order | Word:
    message: Order | Word = pickle.loads(body)  # noqa: S301 - written by this program, over a socket of its own
    return message
