"""The access log as lines that are written together: a tenth of the cost of a record each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from router.domain.units import Seconds

_DELAY: Final[Seconds] = 0.1
"""How late a line may be: unnoticed by people, and enough to write dozens at once."""

_MANY: Final = 256
"""Lines that are written without waiting: some 64 KiB, what a pipe holds."""


class AccessLines:
    """Gathers lines and writes them a little later. Implements `router.gateway.access.AccessLog`.

    `write` takes bytes to the log, `wall` is the wall clock in seconds. A line looks like the
    other logs' records. What a killed process had gathered is lost; `flush` at the end.
    """

    is_on: Final = True

    def __init__(
        self, write: Callable[[bytes], object], *, wall: Callable[[], Seconds] = time.time
    ) -> None:
        self._write = write
        self._wall = wall
        self._second = -1
        self._stamp = b""
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def write(self, line: bytes) -> None:
        """Take one line, without its end. Called inside the running loop."""
        now = self._wall()
        second = int(now)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second)).encode()
        self._lines.append(
            b"%s,%03d INFO prfaas.access %s\n" % (self._stamp, (now - second) * 1000, line)
        )
        if len(self._lines) >= _MANY:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY, self.flush)

    def flush(self) -> None:
        """Write what was gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        if lines:
            self._write(b"".join(lines))
