"""Counters that the workers of one gateway share: prometheus_client's multiprocess mode.

Each worker counts in memory-mapped files of its own, named by its place among the workers. The
kernel keeps what was counted when a worker is killed, and the one that takes its place counts on in
the same files: totals never fall, and no file is left behind by the dead.
"""

from __future__ import annotations

import os
from pathlib import Path

from prometheus_client import CollectorRegistry, values
from prometheus_client.multiprocess import MultiProcessCollector


def share_counters(directory: Path, place: int) -> None:
    """Have every counter that this process makes from now on live in `directory`.

    Call once, before metrics are made: the library takes its directory from the environment alone,
    and how values are kept is a setting of the whole process.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(directory)
    values.ValueClass = values.MultiProcessValue(process_identifier=lambda: place)  # type: ignore[no-untyped-call]  # the library has no types here


def read_shared(directory: Path) -> CollectorRegistry:
    """Return what all workers counted together, those that are gone included."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(directory))  # type: ignore[no-untyped-call]  # as above
    return registry
