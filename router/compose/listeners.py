"""Where the workers of one gateway listen: one place, a socket for each of them.

Of the two ways to share a port, SO_REUSEPORT gives every worker its own queue, over which the
kernel spreads connections by a hash; with one queue for all, whoever wakes first takes a burst
whole (32 connections to 4 workers: 5 to 11 each, against 0 to 20). The supervisor holds the
sockets, so that connections to a worker that was killed wait for the one that takes its place.
"""

from __future__ import annotations

import socket
from typing import Self

from router.compose.running import Listening, listen


class SharedListeners:
    """The sockets of every worker, clients' and operators'; open until closed."""

    def __init__(self, listening: Listening, count: int) -> None:
        self._host = listening.host
        self._count = count
        self._ports = [listening.port]
        if listening.admin_port is not None:
            self._ports.append(listening.admin_port)
        self._open: dict[int, list[socket.socket]] = {}

    def __enter__(self) -> Self:
        """Listen. Raises OSError where the place is taken."""
        for port in self._ports:
            # Sockets that share a port do not mind others that do: another gateway, say.
            listen(self._host, port).close()
        first = self._open[0] = self._listen()
        self._ports = [each.getsockname()[1] for each in first]
        for place in range(1, self._count):
            self._open[place] = self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        for place in list(self._open):
            self.close(place)

    def of(self, place: int) -> list[socket.socket]:
        """Return a worker's sockets; opens them again if they were closed."""
        if place not in self._open:
            self._open[place] = self._listen()
        return self._open[place]

    def close(self, place: int) -> None:
        """Let no connection wait for a worker any more: new ones go to the others. Idempotent."""
        for listener in self._open.pop(place, ()):
            listener.close()

    def _listen(self) -> list[socket.socket]:
        return [listen(self._host, port, shared=True) for port in self._ports]
