"""How commands speak: results on stdout, faults as one line on stderr, exit codes 0, 1 and 2."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from router.domain.errors import RouterError

FAILED: Final = 1
"""The thing asked for failed."""

UNUSABLE: Final = 2
"""The arguments or the configuration cannot be used."""

INTERRUPTED: Final = 130
"""What shells report for a process that Ctrl-C ended."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


class CommandFailed(RouterError):
    """A command cannot do what was asked. The message is one line for the person who asked."""

    def __init__(self, message: str, *, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


class Unusable(CommandFailed):
    """The arguments make no sense together."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=UNUSABLE)


def print_json(document: object) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_fault(message: str) -> None:
    """Print one line on stderr."""
    print(message, file=sys.stderr)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "none"
) -> None:
    """Print rows as a table that is no wider than it must be; piped output is not cut."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="fold")
    cells = [[format_cell(value) for value in row] for row in rows]
    for row in cells:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 10_000
    console = Console(markup=False, highlight=False, width=width)
    if cells:
        console.print(table)
    else:
        console.print(f"{title}: {empty}" if title else empty)


def print_pairs(title: str, pairs: Mapping[str, object]) -> None:
    """Print names and values below each other."""
    if title:
        print(title)
    width = max((len(name) for name in pairs), default=0)
    for name, value in pairs.items():
        print(f"  {name:<{width}}  {format_cell(value)}")


def format_cell(value: object) -> str:
    """Write a JSON value for people: unknown is `-`, nested values stay on one line."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
        case str():
            return value
        case Mapping():
            return " ".join(f"{name}={format_cell(item)}" for name, item in value.items()) or "-"
        case Sequence():
            return ", ".join(format_cell(item) for item in value) or "-"
        case _:
            return str(value)


def check_writable(path: Path) -> None:
    """Raise Unusable where a file could not be written, before the work that fills it."""
    if not path.parent.is_dir():
        raise Unusable(f"{path} cannot be written: there is no {path.parent}")
    if path.is_dir():
        raise Unusable(f"{path} cannot be written: it is a directory")
    if not os.access(path.parent, os.W_OK):
        raise Unusable(f"{path} cannot be written: {path.parent} is read-only")
