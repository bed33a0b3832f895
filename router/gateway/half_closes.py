"""A client that ended its writing side: has it left, or does it wait for its answer?

TCP tells both by the same FIN. What it does with bytes that come tells them apart: the host of a
client that has left answers by a reset, one that waits takes them. What may be sent before an
answer is an interim one, which every HTTP/1.1 client reads over (RFC 9110 15.2; ADR 26).
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from router.domain.units import Seconds

QUESTION: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""100, since Python's `http.client` takes any other interim answer for the final one."""

ECHO_SECONDS: Final[Seconds] = 0.2
"""When a reset is first looked for: most round trips are shorter. The edge's timer looks again."""


def is_answerable(transport: asyncio.Transport) -> bool:
    """Whether a transport can go on once its peer ended its writing side: TLS cannot."""
    return transport.can_write_eof() and not transport.is_closing()


def was_reset(transport: asyncio.Transport) -> bool:
    """Whether the peer has reset the connection; nothing else tells where nobody reads."""
    peer: socket.socket | None = transport.get_extra_info("socket")
    return peer is None or peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
