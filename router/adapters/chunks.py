"""Whole chunks of a chunked body (RFC 9112, 7.1), seen without a parser. Pure.

A stream of tokens mostly comes as one chunk a read. What is known to be whole chunks needs no
parser, and can be sent on in the chunks in which it came.
"""

from __future__ import annotations

from itertools import repeat
from typing import Final

_LINE_END: Final = b"\r\n"
_DIGITS: Final = b"0123456789abcdefABCDEF"


def read_chunks(wire: bytes) -> bytes | None:
    """Return the bytes in `wire` if that is whole chunks and nothing else, else None.

    None says nothing against `wire`: it may be a chunk with an extension, half a chunk, the last
    one, or one with a line end of two bytes in it beside others. Those are for a parser.
    """
    start = wire.find(_LINE_END) + 2
    size = len(wire) - start - 2
    if size > 0 and wire[:start].lower() == b"%x\r\n" % size:
        return wire[start:-2] if wire.endswith(_LINE_END) else None
    return _read_several(wire)


def _read_several(wire: bytes) -> bytes | None:
    *parts, rest = wire.split(_LINE_END)
    sizes, pieces = parts[::2], parts[1::2]
    # `int` would take signs, blanks and more; a piece of no length would be the last chunk.
    if rest or b"".join(sizes).strip(_DIGITS) or not all(sizes) or not all(pieces):
        return None
    if list(map(int, sizes, repeat(16))) != list(map(len, pieces)):
        return None
    return b"".join(pieces)
