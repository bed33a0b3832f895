"""Multipart bodies on their way through: counted, never held, read only as far as their model.

A form's fields come in the order in which the client wrote them. Clients put the small ones first
(httpx, and so OpenAI's, does); the model is looked for in the beginning alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Final

from router.domain.errors import BadRequest, BodyTooLarge, ClientGone, RequestTimeout
from router.gateway.requests import Message, Receive, Scope, explain_end, header, too_large

_MAX_PEEK: Final = 64 * 1024
"""How far the model is looked for; parts before it are short fields."""

_MODEL_FIELD: Final = re.compile(
    rb'content-disposition:[^\r\n]*;[ \t]*name="?model"?[ \t]*(?:;[^\r\n]*)?\r\n'
    rb"(?:[^\r\n]+\r\n)*\r\n([^\r\n]{0,512})\r\n",
    re.IGNORECASE,
)


def is_multipart(scope: Scope) -> bool:
    """Whether a request carries a form with parts."""
    kind = header(scope, b"content-type") or b""
    return kind.strip().lower().startswith(b"multipart/form-data")


class BodyStream:
    """A request's body as it comes. Implements `router.ports.Upload`.

    What was read ahead is given first. `receive` serves whoever watches for the client to leave.
    Both take the same messages, so they take turns: until the body is on its way the watch reads
    ahead, within `_MAX_PEEK`, and afterwards it waits until the body is read.
    """

    def __init__(self, scope: Scope, receive: Receive, limit: int) -> None:
        declared = header(scope, b"content-length")
        self._length = int(declared) if declared is not None and declared.isdigit() else None
        if self._length is not None and self._length > limit:
            raise too_large(limit)
        self._receive = receive
        self._limit = limit
        self._peeked = bytearray()
        self._size = 0
        self._complete = False
        self._started = False
        self._fault: BodyTooLarge | RequestTimeout | None = None
        self._turn = asyncio.Lock()
        self._released = asyncio.Event()

    @property
    def length(self) -> int | None:
        """The length that the client declared."""
        return self._length

    @property
    def started(self) -> bool:
        """Whether a piece went on its way."""
        return self._started

    async def peek_model(self) -> str:
        """Read on until the form has told its model.

        Raises BadRequest where it does not in its beginning, and as `pieces`.
        """
        while (found := _MODEL_FIELD.search(self._peeked)) is None:
            if self._complete or len(self._peeked) > _MAX_PEEK:
                raise BadRequest("the form must have a field model before its files", param="model")
            await self._read_ahead()
        try:
            return found[1].decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadRequest("model must be text", param="model") from error

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Iterate over the body. Raises ClientGone, RequestTimeout, BodyTooLarge over the limit."""
        self._started = True
        try:
            while self._peeked or not self._complete:
                async with self._turn:
                    if not self._peeked and not self._complete:
                        await self._read_ahead()
                piece = bytes(self._peeked)
                self._peeked.clear()
                yield piece
        finally:
            self._released.set()

    async def receive(self) -> Message:
        """Return a disconnect, once it has come."""
        while not self._started and not self._complete and len(self._peeked) <= _MAX_PEEK:
            try:
                async with self._turn:
                    await self._read_ahead()
            except ClientGone:
                return {"type": "http.disconnect"}
            except (BodyTooLarge, RequestTimeout) as error:
                self._fault = error  # told to whoever sends the body
                break
        if not self._complete:
            await self._released.wait()
        return await self._receive()

    async def _read_ahead(self) -> None:
        if self._fault is not None:
            raise self._fault
        self._peeked += await self._next()

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise explain_end(message)
        piece = bytes(message.get("body", b""))
        self._size += len(piece)
        if self._size > self._limit:
            raise too_large(self._limit)
        self._complete = not message.get("more_body", False)
        return piece
