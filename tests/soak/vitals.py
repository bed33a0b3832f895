"""What processes hold: memory, descriptors, threads; and whether it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Vitals:
    """One look, `at` seconds after the start."""

    at: float
    resident_bytes: int
    descriptors: int
    threads: int


def read_vitals(at: float, *pids: int) -> Vitals:
    """Look at processes together. Raises FileNotFoundError for one that is gone (Linux alone)."""
    resident = descriptors = threads = 0
    for pid in pids:
        root = Path(f"/proc/{pid}")
        resident += int((root / "statm").read_text("ascii").split()[1]) * _PAGE
        descriptors += len(list((root / "fd").iterdir()))
        threads += len(list((root / "task").iterdir()))
    return Vitals(at, resident, descriptors, threads)


def growth_bytes(looks: Sequence[Vitals]) -> float:
    """Return how much resident memory grew over the second half of the looks.

    The first half is warm-up: caches and bounded books fill. Means of fifths, so that one
    collection more or less is no growth.
    """
    half = looks[len(looks) // 2 :]
    fifth = max(1, len(half) // 5)
    return _mean(half[-fifth:]) - _mean(half[:fifth])


def _mean(looks: Sequence[Vitals]) -> float:
    return sum(look.resident_bytes for look in looks) / len(looks)
