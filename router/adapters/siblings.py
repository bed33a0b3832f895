"""The workers of one gateway tell each other how they are, over sockets in a directory of theirs.

A worker that is gone does not answer, so what it told is gone with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from router.domain.units import Seconds

_LOG = logging.getLogger(__name__)

_PATIENCE: Final[Seconds] = 3.0
"""A worker that is busy for longer is left out of one scrape: Prometheus waits 10 s for all."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's place among those of its gateway: `place` of `count`, and what they share."""

    place: int
    count: int
    directory: Path


class _Question(msgspec.Struct, frozen=True):
    """What a worker is asked: the name of whoever answers, and what it is told."""

    name: str
    told: msgspec.Raw = msgspec.Raw(b"null")


_QUESTIONS = msgspec.json.Decoder(_Question)

Answerer = Callable[[bytes], Awaitable[bytes]]
"""Answers a question: JSON in, JSON out."""


class Siblings:
    """The other workers of this one's gateway; none where `seat` is None."""

    def __init__(self, seat: Seat | None) -> None:
        self._seat = seat

    @asynccontextmanager
    async def answering(self, answerers: Mapping[str, Answerer]) -> AsyncIterator[None]:
        """Answer what others ask, by the name of the question, for the time of the block."""
        if self._seat is None:
            yield
            return
        path = _socket_of(self._seat, self._seat.place)
        path.unlink(missing_ok=True)  # of the worker that had this place before

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                async with asyncio.timeout(_PATIENCE):
                    question = _QUESTIONS.decode(await reader.read(-1))
                writer.write(await answerers[question.name](bytes(question.told)))
                await writer.drain()
            except (OSError, TimeoutError):
                pass  # whoever asked has left
            except Exception:  # noqa: BLE001 - a task's root: an odd reading must not end what others ask
                _LOG.exception("cannot tell of this worker")
            finally:
                writer.close()

        server = await asyncio.start_unix_server(answer, path)
        try:
            yield
        finally:
            server.close()
            path.unlink(missing_ok=True)

    async def ask(
        self, name: str, told: bytes = b"null", *, patience: Seconds = _PATIENCE
    ) -> list[bytes]:
        """Return what every other worker that lives answers in time, in their order."""
        if self._seat is None:
            return []
        seat = self._seat
        question = msgspec.json.encode(_Question(name, msgspec.Raw(told)))
        others = [place for place in range(seat.count) if place != seat.place]
        answers = await asyncio.gather(
            *(_ask(_socket_of(seat, place), question, patience) for place in others)
        )
        return [answer for answer in answers if answer]


def _socket_of(seat: Seat, place: int) -> Path:
    return seat.directory / f"{place}.sock"


async def _ask(path: Path, question: bytes, patience: Seconds) -> bytes | None:
    try:
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(question)
                writer.write_eof()
                return await reader.read(-1)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return None
