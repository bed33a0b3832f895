"""Vectors that follow from token ids: equal prompts have equal ones, and they have length one."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Sequence


def embed(ids: Sequence[int], *, size: int) -> list[float]:
    """Return the unit vector of a prompt: a bag of its tokens over `size` dimensions."""
    counts = [0.0] * size
    for token in ids:
        counts[token % size] += 1.0
    length = math.hypot(*counts)
    return [count / length for count in counts]


def pack_vector(vector: Sequence[float]) -> str:
    """Return a vector as OpenAI's `base64` format has it: little-endian 32-bit floats."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
