"""Unpacking as it comes: whole, in pieces, bounded, and honest about what is broken."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.service.codings import can_unpack, unpack


async def in_pieces(whole: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(whole), size):
        yield whole[start : start + size]


@given(
    st.binary(max_size=5000), st.integers(1, 700), st.sampled_from([gzip.compress, zlib.compress])
)
async def test_unpacking_is_the_inverse_however_it_is_cut(
    plain: bytes, size: int, pack: type
) -> None:
    """Any body comes out as it went in, wherever the network cut it."""
    assert b"".join([piece async for piece in unpack(in_pieces(pack(plain), size))]) == plain


async def test_what_is_flushed_comes_at_once() -> None:
    """An event that the engine flushed does not wait for the next one."""
    packer = zlib.compressobj(wbits=31)
    first = packer.compress(b"data: 1\n\n") + packer.flush(zlib.Z_SYNC_FLUSH)
    last = packer.compress(b"data: 2\n\n") + packer.flush()
    came: list[bytes] = []

    async def source() -> AsyncIterator[bytes]:
        yield first
        assert b"".join(came) == b"data: 1\n\n"
        yield last

    async for piece in unpack(source()):
        came.append(piece)  # noqa: PERF401 - `source` looks at it in between
    assert b"".join(came) == b"data: 1\n\ndata: 2\n\n"


async def test_a_small_body_cannot_fill_the_memory() -> None:
    """However much a piece expands, it comes in bounded pieces."""
    bomb = gzip.compress(bytes(50_000_000))
    sizes = [len(piece) async for piece in unpack(in_pieces(bomb, len(bomb)))]
    assert sum(sizes) == 50_000_000
    assert max(sizes) <= 64 * 1024


async def test_members_that_follow_one_another_are_one_body() -> None:
    """Gzip files can be concatenated, and servers do."""
    both = gzip.compress(b"one") + gzip.compress(b"two")
    for size in (1, 5, len(both)):
        assert b"".join([p async for p in unpack(in_pieces(both, size))]) == b"onetwo"


@pytest.mark.parametrize(
    "packed",
    [b"plain", gzip.compress(b"x" * 99)[:-3], b"\x1f\x8b\x08"],
    ids=["unpacked", "cut short", "a header's beginning"],
)
async def test_broken_bodies_are_told(packed: bytes) -> None:
    """Neither plain bytes nor half a body pass for a whole one."""
    with pytest.raises(ValueError, match="body"):
        [piece async for piece in unpack(in_pieces(packed, 4))]


async def test_an_empty_body_is_a_body() -> None:
    """No bytes at all are no broken ones."""
    assert [piece async for piece in unpack(in_pieces(b"", 1))] == []


@pytest.mark.parametrize(
    ("coding", "known"),
    [(b"gzip", True), (b" GZIP ", True), (b"deflate", True), (b"br", False), (b"", False)],
)
def test_known_codings_are_named(coding: bytes, known: bool) -> None:
    """What the standard library unpacks is unpacked; the rest passes."""
    assert can_unpack(coding) is known
