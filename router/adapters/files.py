"""The state of files on disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from router.control.file_watch import FileStates


def read_states(paths: Iterable[Path]) -> FileStates:
    """Look at files, through links: Kubernetes swaps a link for a whole directory of them."""
    return tuple(_read_state(path) for path in paths)


def _read_state(path: Path) -> tuple[int, int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size
