"""Whole chunks of a chunked body, seen without a parser."""

from __future__ import annotations

import pytest

from router.adapters.chunks import read_chunks


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (b"1\r\na\r\n", b"a"),
        (b"b\r\nhello world\r\n", b"hello world"),
        (b"B\r\nhello world\r\n", b"hello world"),
        (b"00b\r\nhello world\r\n", b"hello world"),
        (b"6\r\na\r\nb\r\n\r\n", b"a\r\nb\r\n"),
        (b"1\r\na\r\n2\r\nbc\r\n", b"abc"),
        (b"10\r\n0123456789abcdef\r\n1\r\n!\r\n", b"0123456789abcdef!"),
    ],
)
def test_whole_chunks_are_read(wire: bytes, body: bytes) -> None:
    """Any number of them, digits in either case, a single one with whatever is in it."""
    assert read_chunks(wire) == (body, len(wire))


@pytest.mark.parametrize(
    "wire",
    [
        b"\r\n",
        b"1",
        b"1\r\n",
        b"1\r\na",
        b"1\r\na\r",
        b"1\r\nab\r\n",
        b"3\r\nab\r\n",
        b"2\r\nab\n\n",
        b"0\r\n\r\n",
        b"0\r\n\r\n1\r\na\r\n",
        b"1;name=value\r\na\r\n",
        b"\r\na\r\n",
        b"+1\r\na\r\n1\r\na\r\n",
        b"0x1\r\na\r\n1\r\na\r\n",
        b" 1\r\na\r\n1\r\na\r\n",
        b"1_0\r\n0123456789abcdef\r\n1\r\na\r\n",
        b"-1\r\na\r\n1\r\na\r\n",
        b"2\r\n\r\n\r\n1\r\na\r\n",
    ],
)
def test_what_else_there_may_be_is_left_to_a_parser(wire: bytes) -> None:
    """Half chunks, the last one, extensions, and sizes that are none."""
    assert read_chunks(wire) == (b"", 0)


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"2",
        b"2\r\n",
        b"2\r\nb",
        b"2\r\nbc",
        b"2\r\nbc\r",
        b"2;name=value\r\nbc\r\n",
        b"0\r\n\r\n",
        b"0\r\ntrailer: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
)
def test_what_is_behind_whole_chunks_is_left_to_a_parser(rest: bytes) -> None:
    """Whole chunks are read up to where something else begins."""
    assert read_chunks(b"1\r\na\r\n3\r\nbcd\r\n" + rest) == (b"abcd", 14)
