"""What a streamed answer says about itself, read from its end alone.

Only the last events are looked into: the usage chunk, an error, the final `[DONE]`. Everything
before is counted by nobody, so that the client is never what is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

TAIL_BYTES: Final = 65_536
"""Kept of a stream's end: a usage chunk and an error event together are below 2 KB."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    usage: _Usage | None = None
    error: object = None


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How a stream ended. Token counts are None where the engine did not tell them."""

    finished: bool = False
    failed: bool = False
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(slots=True)
class StreamTail:
    """The last bytes of a stream."""

    _bytes: bytearray = field(default_factory=bytearray)

    def feed(self, chunk: bytes) -> None:
        """Add what arrived."""
        self._bytes += chunk
        if len(self._bytes) > 2 * TAIL_BYTES:
            del self._bytes[:-TAIL_BYTES]

    def end(self) -> StreamEnd:
        """Read the end of the stream. What is no event, or cut in two, is ignored."""
        finished = failed = False
        usage: _Usage | None = None
        for line in self._bytes.splitlines():
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]":
                finished = True
                continue
            event = _decode(bytes(payload)) if _is_telling(payload) else None
            if event is not None:
                usage = event.usage or usage
                failed = failed or event.error is not None
        details = usage.prompt_tokens_details if usage is not None else None
        return StreamEnd(
            finished=finished,
            failed=failed,
            prompt_tokens=usage.prompt_tokens if usage is not None else None,
            output_tokens=usage.completion_tokens if usage is not None else None,
            cached_tokens=details.cached_tokens if details is not None else None,
        )


def _is_telling(payload: bytearray) -> bool:
    """Whether an event may hold usage or an error; all others are not worth decoding."""
    return b'"error"' in payload or (b'"usage"' in payload and b'"prompt_tokens"' in payload)


def _decode(payload: bytes) -> _Event | None:
    try:
        return msgspec.json.decode(payload, type=_Event)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
