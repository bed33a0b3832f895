"""When files that are looked at again and again have changed, and are done changing. Pure.

Editors and tools write a file in steps: emptied, then filled; or another one put in its place. What
was seen twice alike is whole, unless somebody writes slower than one looks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FileState = tuple[int, int, int] | None
"""A file's inode, modification time in nanoseconds and size; None where there is none."""

FileStates = tuple[FileState, ...]
"""The states of several files, in an order that stays."""


@dataclass(frozen=True, slots=True)
class FileWatch:
    """`acted_on` was acted on; `changing` was seen once since, and may not be the last word."""

    acted_on: FileStates
    changing: FileStates | None = None


def step_looked(watch: FileWatch, seen: FileStates) -> tuple[FileWatch, bool]:
    """Take a look at the files; True where a change has come to rest."""
    if seen == watch.acted_on:
        return replace(watch, changing=None), False
    if seen == watch.changing:
        return FileWatch(seen), True
    return replace(watch, changing=seen), False
