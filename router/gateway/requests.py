"""Reading a request off ASGI: its body within bounds, its id, and whether its client stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Final

from router.domain.errors import BodyTooLarge, ClientGone

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_MAX_REQUEST_ID: Final = 128


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first value of a request header; `name` in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def choose_request_id(offered: bytes | None, new_id: Callable[[], str]) -> str:
    """Return the client's own request id if it is short and printable, else a new one (CASES R30).

    Control characters would let one log line look like two.
    """
    if offered is None or not 0 < len(offered) <= _MAX_REQUEST_ID:
        return new_id()
    text = offered.decode("latin-1")
    return text if text.isascii() and text.isprintable() else new_id()


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Read a request's body whole.

    Raises BodyTooLarge as soon as more than `limit` bytes are announced or have come, without
    reading on; ClientGone when the client leaves first.
    """
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client left before its request was complete")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def too_large(limit: int) -> BodyTooLarge:
    """Return the refusal of a body over the limit."""
    return BodyTooLarge(f"the body is over {limit} bytes", code="body_too_large")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or the client leaves, whichever is first.

    A client that leaves cancels the work at once, waits for it to free what it holds, and raises
    ClientGone.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone("the client left")
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
        # Both have ended before anything else happens: nothing of this request outlives it.
        await asyncio.gather(task, watch, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
