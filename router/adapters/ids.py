"""Random names for requests."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

_BYTES: Final = 16
_AT_ONCE: Final = 256
"""Ids drawn together: the kernel is asked once for all of them."""


class RandomIds:
    """Each call returns 32 hexadecimal digits that nobody can guess. Used in one process."""

    def __init__(self, draw: Callable[[int], bytes] = secrets.token_bytes) -> None:
        """`draw` returns that many random bytes."""
        self._draw = draw
        self._ready: list[str] = []

    def __call__(self) -> str:
        """Return an id."""
        if not self._ready:
            digits, width = self._draw(_BYTES * _AT_ONCE).hex(), 2 * _BYTES
            self._ready = [digits[at : at + width] for at in range(0, len(digits), width)]
        return self._ready.pop()
