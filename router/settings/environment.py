"""Environment variables that override single settings.

Only names with `__` count: `PRFAAS_SCHEDULER__THRESHOLD__TOKENS=19400` sets
`scheduler.threshold.tokens`. So neither `PRFAAS_ADMIN_KEY` nor the `PRFAAS_PORT_8000_TCP` that
Kubernetes injects for a service of that name is taken for a setting. A number is the index of a
list element that the file has: `PRFAAS_CLUSTERS__0__NAME`. A value in brackets or braces is read as
YAML, `null` leaves the setting out, everything else is text that the setting's type reads.

pydantic-settings has a source for this, but reads the process's own environment, knows no list
indexes and cannot tell which variable was at fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from router.settings.documents import Value, parse_document
from router.settings.errors import Fault, KeyPath, SettingsError, VariablePlace

PREFIX: Final = "PRFAAS_"
SEPARATOR: Final = "__"


@dataclass(frozen=True, slots=True)
class Overlay:
    """The document with the overrides applied, and which variable set which path."""

    root: Value
    variables: Mapping[KeyPath, str]
    faults: tuple[Fault, ...]


class _NoSuchPlaceError(Exception):
    """The path leads through something that cannot hold it."""


def apply_overrides(root: Value, environ: Mapping[str, str]) -> Overlay:
    """Return a copy of `root` with every override in `environ` set, in the order of the names."""
    variables: dict[KeyPath, str] = {}
    faults: list[Fault] = []
    for name in sorted(environ):
        if not name.startswith(PREFIX) or SEPARATOR not in name[len(PREFIX) :]:
            continue
        segments = name[len(PREFIX) :].lower().split(SEPARATOR)
        try:
            value = _read_value(environ[name])
            root, path = _set(root, segments, (), value)
        except _NoSuchPlaceError as error:
            faults.append(Fault(VariablePlace(name), (), str(error)))
        except SettingsError as error:
            detail = "; ".join(fault.message for fault in error.faults)
            faults.append(Fault(VariablePlace(name), (), detail))
        else:
            variables[path] = name
    return Overlay(root, variables, tuple(faults))


def _read_value(text: str) -> Value:
    stripped = text.strip()
    if stripped == "null":
        return None
    if stripped[:1] in {"[", "{"}:
        return parse_document(text, "").root
    return text


def _set(root: Value, segments: list[str], done: KeyPath, value: Value) -> tuple[Value, KeyPath]:
    """Return `root` with `value` at `segments`, sharing the parts that did not change."""
    if not segments:
        return value, done
    head, *rest = segments
    if not head:
        raise _NoSuchPlaceError(
            "names no setting: write PRFAAS_SECTION__KEY with one `__` between names"
        )
    match root:
        case list():
            index = _read_index(head, root, done)
            item, path = _set(root[index], rest, (*done, index), value)
            return [*root[:index], item, *root[index + 1 :]], path
        case dict() | None:
            mapping = root or {}
            item, path = _set(mapping.get(head), rest, (*done, head), value)
            if item is None:
                return {key: kept for key, kept in mapping.items() if key != head}, path
            return {**mapping, head: item}, path
        case _:
            raise _NoSuchPlaceError(f"names no setting: nothing stands under {done[-1]!r}")


def _read_index(text: str, items: list[Value], done: KeyPath) -> int:
    where = done[-1] if done else "the document"
    if not (text.isascii() and text.isdigit()):
        raise _NoSuchPlaceError(f"{where} is a list: write the number of an element")
    if int(text[:9]) >= len(items):
        raise _NoSuchPlaceError(
            f"{where} has {len(items)} element(s): {text} is no index (they start at 0)"
        )
    return int(text)
