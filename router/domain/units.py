"""Quantities with their unit in the type. SI base units inside; Gbit/s only at the border."""

from __future__ import annotations

from typing import NewType

Tokens = int
"""A count of tokens."""

Seconds = float
"""A duration or a reading of a monotonic clock, in seconds."""

Bytes = NewType("Bytes", int)
BytesPerSecond = NewType("BytesPerSecond", float)

NO_BYTES = Bytes(0)

_BYTES_PER_GBIT = 1e9 / 8


def from_gbps(gbps: float) -> BytesPerSecond:
    """Convert Gbit/s (1e9 bit/s, as links are sold) to bytes per second."""
    return BytesPerSecond(gbps * _BYTES_PER_GBIT)


def to_gbps(rate: BytesPerSecond) -> float:
    """Convert bytes per second to Gbit/s."""
    return rate / _BYTES_PER_GBIT
