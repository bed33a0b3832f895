"""Content codings: an engine was asked for plain bytes, but may compress all the same.

What is compressed with a coding that the standard library knows is unpacked as it comes, so that
it can be read and rewritten, and a client that does not take gzip gets no gzip (CASES R26).
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

_PIECE: Final = 64 * 1024
"""Unpacked bytes a step: a small compressed chunk cannot fill the memory at once."""

_ANY_HEADER: Final = 32 + zlib.MAX_WBITS
"""zlib: recognise a gzip or a zlib header."""


def can_unpack(coding: bytes) -> bool:
    """Whether `unpack` knows a Content-Encoding."""
    return coding.strip().lower() in {b"gzip", b"x-gzip", b"deflate"}


async def unpack(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the unpacked bytes of a gzip or deflate body as they come.

    Raises ValueError where they are not what their coding says, or end too early.
    """
    unpacker = zlib.decompressobj(_ANY_HEADER)
    whole = True  # nothing at all is a body too
    async for packed in chunks:
        rest = packed
        while True:
            try:
                piece = unpacker.decompress(rest, _PIECE)
            except zlib.error as error:
                raise ValueError("the body is not what its coding says") from error
            if piece:
                yield piece
            whole = unpacker.eof
            if whole and unpacker.unused_data:  # gzip members may follow one another
                rest = unpacker.unused_data
                unpacker = zlib.decompressobj(_ANY_HEADER)
            elif whole or (len(piece) < _PIECE and not unpacker.unconsumed_tail):
                break
            else:
                rest = unpacker.unconsumed_tail
    if not whole:
        raise ValueError("the packed body ends too early")
