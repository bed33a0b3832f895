"""Reading a request off ASGI: its body within bounds, its id, and whether its client stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Final, Protocol, Self

from router.domain.errors import (
    BodyTooLarge,
    ClientGone,
    Overloaded,
    RequestTimeout,
    RouterError,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OUTLET: Final = "prfaas.outlet"
"""The scope's extension into which a body that has begun can be written at once; an `Outlet`."""

DEPARTURES: Final = "prfaas.departures"
"""The scope's extension that tells when the client leaves; a `Departures`."""

_MAX_REQUEST_ID: Final = 128


class Departures(Protocol):
    """Tells when a client leaves, without anybody waiting for it."""

    def on_departure(self, callback: Callable[[], None] | None) -> bool:
        """Call `callback` when the client leaves, None nobody; False where it has left already."""
        ...


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first value of a request header; `name` in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def first_fields(scope: Scope) -> Mapping[bytes, bytes]:
    """Return a request's header fields by their names in lower case; of several the first."""
    return dict(reversed(scope["headers"]))


def choose_request_id(offered: bytes | None, new_id: Callable[[], str]) -> str:
    """Return the client's own request id if it is short and printable, else a new one (CASES R30).

    Control characters would let one log line look like two.
    """
    if offered is None or not 0 < len(offered) <= _MAX_REQUEST_ID:
        return new_id()
    text = offered.decode("latin-1")
    return text if text.isascii() and text.isprintable() else new_id()


class BodyBudget:
    """Bounds the bytes of all bodies that are held at once, `limit` in total.

    One large body is bounded by itself; thousands of them, queued or half sent, are here.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def share(self) -> BodyShare:
        """Return what one request holds of it, for the time of a `with` block."""
        return BodyShare(self)


class BodyShare:
    """What one request holds of a budget; given back at the end of its block."""

    __slots__ = ("_budget", "_held")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held = 0

    def take(self, count: int) -> None:
        """Hold so many bytes more. Raises Overloaded over the budget's limit, without them."""
        budget = self._budget
        if budget.held + count > budget.limit:
            raise Overloaded("the bodies of other requests fill the memory for them")
        budget.held += count
        self._held += count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._budget.held -= self._held
        self._held = 0


async def read_body(scope: Scope, receive: Receive, limit: int, share: BodyShare) -> bytes:
    """Read a request's body whole; `share` holds its bytes.

    Raises BodyTooLarge as soon as more than `limit` bytes are announced or have come, without
    reading on; ClientGone when the client leaves first, RequestTimeout when it is too slow,
    Overloaded when there is no room for the body.
    """
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise explain_end(message)
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise too_large(limit)
        share.take(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def explain_end(message: Message) -> RouterError:
    """Return why a body ends early: its client left, or is too slow (`clients` says `late`)."""
    if message.get("late", False):
        return RequestTimeout("the body of the request did not come in time")
    return ClientGone("the client left before its request was complete")


def too_large(limit: int) -> BodyTooLarge:
    """Return the refusal of a body over the limit."""
    return BodyTooLarge(f"the body is over {limit} bytes", code="body_too_large")


async def unless_gone(scope: Scope, receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or the client leaves, whichever is first.

    A client that leaves cancels the work, which runs in this task, at once, waits for it to free
    what it holds, and raises ClientGone. Where the server does not call back, a task reads until it
    tells so.
    """
    departures: Departures | None = scope.get("extensions", {}).get(DEPARTURES)
    if departures is None:
        await _race(receive, work)
        return
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in one
    told = 0

    def leave() -> None:
        nonlocal told
        told += 1
        task.cancel()

    if not departures.on_departure(leave):
        work.close()
        raise ClientGone("the client left")
    try:
        await work
        if told:
            await asyncio.sleep(0)  # what was told by the last of its sends is delivered here
    except asyncio.CancelledError:
        others = task.cancelling() - told
        for _ in range(told):
            task.uncancel()
        if told and others == 0:
            raise ClientGone("the client left") from None
        raise
    finally:
        departures.on_departure(None)


async def _race(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` beside a task that waits for the client to leave."""
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
