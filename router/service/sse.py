"""A stream of server-sent events, passed on as it comes and rewritten only where it must be.

A line ends at CR, LF or CRLF and nowhere else (WHATWG, "Server-sent events"). Complete lines leave
at once, comments and unknown fields untouched; an incomplete last line waits for its end, since
what is in it may have to be rewritten. How the network cuts the stream changes nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from router.service.answers import Rewriter
from router.service.relay_ports import Usage

_CONTENT: Final = b'"choices":[{'

MAX_HELD_BYTES: Final = 32 * 1024 * 1024
"""A line over this passes as it is. A million prompt token ids as JSON are about 7 MB."""

_LAST_EVENTS: Final = frozenset(
    {
        b"message_stop",
        b"response.completed",
        b"response.incomplete",
        b"response.failed",
        b"response.cancelled",
    }
)
"""Names of the events that end a stream without `[DONE]` (Messages, Responses)."""


_PLAIN_START: Final = b"data: {"
_PLAIN_END: Final = b"}\n\n"
_PLAIN_MIDDLE: Final = _PLAIN_END + _PLAIN_START
_PLAIN_ERROR: Final = _PLAIN_START + b'"error"'


class EventStream:
    """Feed it an engine's bytes; what it returns is for the client.

    `ended` tells that the engine said its last word (`[DONE]`, or an error of its own): a stream
    that stops without is broken. `content_events` counts events with something in `choices`, the
    nearest count of tokens where the client did not ask for usage.
    """

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._held = bytearray()
        self._event: list[bytes] = []
        self._after_cr = False
        self._passed_cr = False
        self._overlong = False
        self._open = False
        self._between = True
        self.ended = False
        self.content_events = 0
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Take what came; return what can be passed on now."""
        if not self._between:
            return self._feed_any(chunk)
        end = chunk.rfind(_PLAIN_END) + len(_PLAIN_END)
        events = chunk if end == len(chunk) else chunk[:end]
        if not _are_plain(events) or self._rewriter.concerns(events):
            return self._feed_any(chunk)
        self.content_events += events.count(_CONTENT)
        self._passed_cr = False
        return chunk if events is chunk else events + self._feed_any(chunk[end:])

    def _feed_any(self, chunk: bytes) -> bytes:
        """Take what has to be looked at line by line."""
        ready = b"".join(self._take(chunk))
        if ready:
            self._passed_cr = ready.endswith(b"\r")
        self._between = not (
            self._open or self._held or self._event or self._after_cr or self._overlong
        )
        return ready

    def finish(self) -> bytes:
        """Return what is left when the engine has ended the stream.

        Unless that is its last word it is half an event of a broken stream, and dropped.
        """
        was_open = self._open
        rest = self._pass_line(bytes(self._held)) if self._held else b""
        rest += b"".join(self._event)
        self._held.clear()
        self._event.clear()
        if not self.ended:
            self._open = was_open
            return b""
        return rest

    def break_off(self, message: str, *, kind: str, code: int, named: bool = False) -> bytes:
        """Return an error event, for a stream that will not be completed.

        What is open is ended first, so that the error is an event of its own; half a line is
        dropped. `named` adds the event's name, as Messages and Responses have it.
        """
        # After a lone CR a LF would only complete its line end.
        end = b"\r\n" if self._passed_cr else b"\n"
        start = end + end if self._overlong else end if self._open else b""
        self._held.clear()
        self._event.clear()
        error = {"message": message, "type": kind, "param": None, "code": code}
        told = {"type": "error", "error": error} if named else {"error": error}
        name = b"event: error\n" if named else b""
        return b"%s%sdata: %s\n\n" % (start, name, msgspec.json.encode(told))

    def _take(self, chunk: bytes) -> list[bytes]:
        out: list[bytes] = []
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk.startswith(b"\n"):  # the second half of a CRLF
                chunk = chunk[1:]
                self._pass_line_feed(out)
        lines = chunk.splitlines(keepends=True)
        if not lines:
            return out
        tail = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        if lines:
            self._after_cr = not tail and lines[-1].endswith(b"\r")
            self._take_lines(lines, out)
        self._held += tail
        if self._overlong or len(self._held) > MAX_HELD_BYTES:
            out.append(bytes(self._held))
            self._overlong = self._overlong or bool(self._held)
            self._held.clear()
        return out

    def _take_lines(self, lines: list[bytes], out: list[bytes]) -> None:
        if self._overlong:
            self._overlong = False
            self._open = True
            out.append(lines.pop(0))
        elif self._held:
            lines[0] = bytes(self._held) + lines[0]
            self._held.clear()
        out.extend(map(self._pass_line, lines))

    def _pass_line_feed(self, out: list[bytes]) -> None:
        if self._event:
            self._event[-1] += b"\n"
        else:
            out.append(b"\n")

    def _pass_line(self, line: bytes) -> bytes:
        """Return what of a line can be passed on; an object over several lines is collected."""
        content = line.rstrip(b"\r\n")
        if self._event:
            self._event.append(line)
            if content and sum(map(len, self._event)) <= MAX_HELD_BYTES:
                return b""
            return self._join_event()
        if not content:
            self._open = False
            return line
        if content.startswith(b"data:"):
            return self._pass_data(line, content)
        if not content.startswith(b":"):
            self._open = True
            if content.startswith(b"event:"):
                self._note_name(content[6:].strip())
        return line

    def _pass_data(self, line: bytes, content: bytes) -> bytes:
        payload = content[6:] if content.startswith(b"data: ") else content[5:]
        if payload.startswith(b"{") and not payload.rstrip().endswith(b"}"):
            self._event.append(line)
            return b""
        self._open = True
        if payload == b"[DONE]":
            self.ended = True
            return line
        text = self._read(payload)
        if text is payload:
            return line
        start = len(content) - len(payload)
        return b"".join((line[:start], text, line[len(content) :]))

    def _join_event(self) -> bytes:
        """Pass on an event whose data has several lines, as one line if it is rewritten."""
        lines, self._event = self._event, []
        self._open = bool(lines[-1].rstrip(b"\r\n"))
        data = [line for line in lines if line.startswith(b"data:")]
        payload = b"\n".join(line[5:].rstrip(b"\r\n").removeprefix(b" ") for line in data)
        text = self._read(payload)
        if text is payload:
            return b"".join(lines)
        kept = [line for line in lines if not line.startswith(b"data:")]
        return b"".join((b"data: ", text, b"\n", *kept))

    def _read(self, payload: bytes) -> bytes:
        """Note what an event's data tells; return it, rewritten if need be."""
        if payload.startswith(b'{"error"'):
            self.ended = True
        elif _CONTENT in payload:
            self.content_events += 1
        rewritten = self._rewriter.rewrite(payload)
        self.usage = rewritten.usage or self.usage
        return rewritten.text

    def _note_name(self, name: bytes) -> None:
        if name == b"error" or name in _LAST_EVENTS:
            self.ended = True


def _are_plain(events: bytes) -> bool:
    """Whether each event is one line with an object that is whole, as nearly all of a stream are.

    Told by counting, which takes no look at each byte: all line ends are of pairs that stand where
    one such event ends and the next begins, or at the end. `events` ends as one or begins as none.
    """
    return (
        events.startswith(_PLAIN_START)
        and events.count(b"\n") == 2 * events.count(_PLAIN_MIDDLE) + 2
        and events.find(b"\r") < 0
        and events.find(_PLAIN_ERROR) < 0
    )
