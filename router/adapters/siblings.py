"""The workers of one gateway tell each other how they are, over sockets in a directory of theirs.

A worker that is gone does not answer, so what it told is gone with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from router.adapters.across_workers import GaugeReading
from router.domain.units import Seconds

_LOG = logging.getLogger(__name__)

_PATIENCE: Final[Seconds] = 3.0
"""A worker that is busy for longer is left out of one scrape: Prometheus waits 10 s for all."""

_LARGEST_REPORT: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's place among those of its gateway: `place` of `count`, and what they share."""

    place: int
    count: int
    directory: Path


class WorkerReport(msgspec.Struct, frozen=True):
    """What a worker tells of itself."""

    worker: int
    pid: int
    started_at: str
    config: str
    gauges: list[GaugeReading] = []


_DECODER = msgspec.json.Decoder(WorkerReport)


class Siblings:
    """The other workers of this one's gateway; none where `seat` is None."""

    def __init__(self, seat: Seat | None) -> None:
        self._seat = seat

    @asynccontextmanager
    async def answering(self, tell: Callable[[], WorkerReport]) -> AsyncIterator[None]:
        """Tell whoever asks, for the time of the block."""
        if self._seat is None:
            yield
            return
        path = _socket_of(self._seat, self._seat.place)
        path.unlink(missing_ok=True)  # of the worker that had this place before

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                writer.write(msgspec.json.encode(tell()))
                await writer.drain()
            except OSError:
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

    async def ask(self) -> list[WorkerReport]:
        """Return what every other worker that lives tells, in their order."""
        if self._seat is None:
            return []
        seat = self._seat
        others = [place for place in range(seat.count) if place != seat.place]
        reports = await asyncio.gather(*(_ask(_socket_of(seat, place)) for place in others))
        return [report for report in reports if report is not None]


def _socket_of(seat: Seat, place: int) -> Path:
    return seat.directory / f"{place}.sock"


async def _ask(path: Path) -> WorkerReport | None:
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_unix_connection(path, limit=_LARGEST_REPORT)
            try:
                return _DECODER.decode(await reader.read(-1))
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, msgspec.DecodeError):
        return None
