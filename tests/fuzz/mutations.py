"""Spoils bytes and JSON, by chance and by what is known to hurt. All chance is an argument."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

_TOKENS: Sequence[bytes] = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\x00",
    b" ",
    b"\t",
    b":",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"%00",
    b"%2e%2e/",
    b"//",
    b"\r\n\r\n",
    b"HTTP/1.1",
    b"HTTP/2.0",
    b"Content-Length: 5\r\n",
    b"Content-Length: 99999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: upgrade\r\nUpgrade: h2c\r\n",
    b"Expect: 100-continue\r\n",
    b"0\r\n\r\n",
    b"ffffffff\r\n",
    b"-1\r\n",
    b'"',
    b"{",
    b"]",
    b"\\u",
    b"\\ud800",
    b"data: ",
    b"data: [DONE]\n\n",
    b": comment\n",
    b"a" * 5000,
)

_DEEP = 10_000
ODD_VALUES: Sequence[str] = (
    "null",
    "true",
    "[]",
    "{}",
    '""',
    '" "',
    "-1",
    "0",
    "-0",
    "NaN",
    "-Infinity",
    "1e400",
    "1e-7",
    "18446744073709551616",
    "1" * 400,
    "1" * 5000,
    '"\\ud800"',
    '"\\u0000"',
    '"\\uD83D\\uDE00"',
    '"\x01"',
    '"' + "a" * 70_000 + '"',
    "[" * _DEEP + "]" * _DEEP,
    '{"a":' * _DEEP + "1" + "}" * _DEEP,
    "[[]]",
    "[[],[]]",
    "[-1]",
    "[4294967296]",
    "[9223372036854775808]",
    "[1.5]",
    "[null]",
    '["a",1]',
    "[" + "1," * 5000 + "1]",
    '{"a":1,"a":2}',
    '{"type":{}}',
    '[{"role":"user","content":[{"type":[]}]}]',
    '[{"role":"user","content":[{"type":"image_url","image_url":3}]}]',
    '{"kv_transfer_params":{"do_remote_prefill":true}}',
    "tru",
    "01",
    "'a'",
)
"""JSON texts (and a few that are none) that readers stumble over."""


def spoil_bytes(rng: Random, data: bytes) -> bytes:
    """Return the bytes with one to six changes."""
    spoilt = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        rng.choice(_CHANGES)(rng, spoilt)
    return bytes(spoilt)


def _flip(rng: Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _insert_token(rng: Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = rng.choice(_TOKENS)


def _insert_noise(rng: Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = rng.randbytes(rng.randint(1, 20))


def _delete(rng: Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    del data[at : at + rng.randint(1, 30)]


def _repeat(rng: Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = data[at : at + rng.randint(1, 60)] * rng.randint(1, 5)


def _cut(rng: Random, data: bytearray) -> None:
    del data[rng.randint(0, len(data)) :]


_CHANGES: Sequence[Callable[[Random, bytearray], None]] = (
    _flip,
    _flip,
    _insert_token,
    _insert_token,
    _insert_noise,
    _delete,
    _repeat,
    _cut,
)


def spoil_json(rng: Random, document: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Return a JSON text with one to three members changed to odd ones, in any depth."""
    spoilt = copy.deepcopy(document)
    odd: dict[str, str] = {}
    for _ in range(rng.randint(1, 3)):
        mark = f"@@{len(odd)}@@"
        odd[mark] = rng.choice(ODD_VALUES)
        spoilt = _place(rng, spoilt, mark)
    text = json.dumps(spoilt, ensure_ascii=rng.random() < 0.5)
    for mark, value in odd.items():
        text = text.replace(f'"{mark}"', value)
    return text.encode("utf-8", "surrogatepass")


def _place(rng: Random, value: Any, mark: str) -> Any:  # noqa: ANN401 - any JSON value
    """Put a mark in the place of something in a value, or beside it."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        value[name] = _place(rng, value[name], mark)
        return value
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        if rng.random() < 0.3:
            value.insert(at, mark)
        else:
            value[at] = _place(rng, value[at], mark)
        return value
    return mark


def split(rng: Random, data: bytes, most: int = 8) -> list[bytes]:
    """Return the bytes in pieces, cut anywhere."""
    cuts = sorted(rng.randint(0, len(data)) for _ in range(rng.randint(0, most - 1)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if b > a]
