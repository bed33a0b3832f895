"""Whole chunks of a chunked body (RFC 9112, 7.1), seen without a parser. Pure.

A stream of tokens mostly comes as one chunk a read. What is known to be whole chunks needs no
parser, and can be sent on in the chunks in which it came.
"""

from __future__ import annotations

from itertools import repeat
from typing import Final

_LINE_END: Final = b"\r\n"
_DIGITS: Final = b"0123456789abcdefABCDEF"


def read_chunks(wire: bytes) -> tuple[bytes, int]:
    """Return the body in the whole chunks that `wire` begins with, and how many bytes they take.

    That may be none, which says nothing against `wire`: what is there may be a chunk with an
    extension, half a chunk, the last one, or one with CRLF in it. Those are for a parser.
    """
    start = wire.find(_LINE_END) + 2
    size = len(wire) - start - 2
    if size > 0 and wire[:start].lower() == b"%x\r\n" % size and wire.endswith(_LINE_END):
        return wire[start:-2], len(wire)
    return _read_several(wire)


def _read_several(wire: bytes) -> tuple[bytes, int]:
    """Read by lines, in turn sizes and pieces; behind them may be one that is not whole."""
    lines = wire.split(_LINE_END)
    whole = (len(lines) - 1) // 2
    for count in (whole, whole - 1):
        sizes, pieces = lines[: 2 * count : 2], lines[1 : 2 * count : 2]
        if count > 0 and _agree(sizes, pieces):
            return b"".join(pieces), sum(map(len, sizes)) + sum(map(len, pieces)) + 4 * count
    return b"", 0


def _agree(sizes: list[bytes], pieces: list[bytes]) -> bool:
    """Whether these are chunks, none of them the last, which is empty."""
    # `int` would take signs, blanks and more.
    if b"".join(sizes).strip(_DIGITS) or not all(sizes) or not all(pieces):
        return False
    return list(map(int, sizes, repeat(16))) == list(map(len, pieces))
