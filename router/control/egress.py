"""What a host's counters say of its egress between two readings. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Final

from router.domain.units import BytesPerSecond, Seconds

_WIDTHS: Final = (1 << 32, 1 << 64)
"""Where counters begin anew: some drivers still count in 32 bits."""

_ENOUGH_SEGMENTS: Final = 1000
"""Segments, 1.5 MB, below which a ratio is chance: one in two would halve an idle link."""


@dataclass(frozen=True, slots=True)
class HostReading:
    """Counters of one host at one time.

    `sent` are bytes that each interface ever sent, by its name. `segments` and `repeated` count TCP
    segments that the host ever sent, and those that it sent again. `rtts` are those that the kernel
    has for connections to the other end. None is what the host does not tell.
    """

    at: Seconds
    sent: dict[str, int]
    segments: int | None = None
    repeated: int | None = None
    rtts: tuple[Seconds, ...] | None = None


@dataclass(frozen=True, slots=True)
class Egress:
    """What left a host between two readings; a ratio is None where nothing can be said."""

    rate: BytesPerSecond
    retransmit_ratio: float | None
    rtt: Seconds | None


def compare(before: HostReading, after: HostReading, most: BytesPerSecond) -> Egress | None:
    """Return what happened between two readings; None where that is unknown, which is not 0.

    So it is when an interface came or went, or its counter went back by more than beginning anew
    explains, at a rate of at most `most` and within a quarter of its width: then it was reset.
    """
    seconds = after.at - before.at
    if seconds <= 0 or before.sent.keys() != after.sent.keys():
        return None
    sent = 0
    for name, bytes_after in after.sent.items():
        moved = _moved(before.sent[name], bytes_after, most * seconds)
        if moved is None:
            return None
        sent += moved
    return Egress(
        rate=BytesPerSecond(sent / seconds),
        retransmit_ratio=_ratio(before, after),
        rtt=median(after.rtts) if after.rtts else None,
    )


def _moved(before: int, after: int, most: float) -> int | None:
    """Return by how much a counter grew, over its end if need be; None if it was reset."""
    if after >= before:
        return after - before
    for width in _WIDTHS:
        if before < width and width - before + after <= min(most, width / 4):
            return width - before + after
    return None


def _ratio(before: HostReading, after: HostReading) -> float | None:
    """Return which part of the segments was sent again; None for too few, or a counter reset."""
    if before.segments is None or after.segments is None:
        return None
    if before.repeated is None or after.repeated is None:
        return None
    segments = after.segments - before.segments
    repeated = after.repeated - before.repeated
    if segments < _ENOUGH_SEGMENTS or repeated < 0:
        return None
    return min(1.0, repeated / segments)
