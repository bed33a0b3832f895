"""Faults of a configuration: each one readable line with its place, all of them in one error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from router.domain.errors import RouterError

KeyPath = tuple[str | int, ...]
"""Where a value stands in the document: keys and list indexes from the root."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A place in a file. `line` and `column` count from 1; 0 means the file as a whole."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class VariablePlace:
    """An environment variable that overrides a setting."""

    variable: str

    def __str__(self) -> str:
        return self.variable


Place = FilePlace | VariablePlace


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. `path` is empty where the whole file is meant."""

    place: Place
    path: KeyPath
    message: str

    def __str__(self) -> str:
        parts = [str(self.place), format_path(self.path), self.message]
        return ": ".join(part for part in parts if part)


class SettingsError(RouterError):
    """The configuration cannot be used. `faults` are all that were found, sorted by place."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = tuple(sorted(set(faults), key=_order))
        super().__init__("\n".join(str(fault) for fault in self.faults))


def format_path(path: Sequence[str | int]) -> str:
    """Write a key path as people do: `models[0].cache.block_size`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _order(fault: Fault) -> tuple[int, str, int, int, str, str]:
    match fault.place:
        case FilePlace(file, line, column):
            return (0, file, line, column, format_path(fault.path), fault.message)
        case VariablePlace(variable):
            return (1, variable, 0, 0, format_path(fault.path), fault.message)
