"""How the admin API's documents look to people.

A view shows the fields that it knows in a good order, and whatever else an answer holds after them:
a newer gateway's fields are seen, an older one's absence is `-`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from router.commands.admin_client import Json
from router.commands.output import format_cell, print_pairs, print_table

_INSTANCE_FIELDS: Final = ("name", "cluster", "role", "state", "ready")
_LINK_FIELDS: Final = (
    *("name", "from", "to", "health", "up", "capacity_gbps"),
    *("usable_gbps", "usable_source", "utilization"),
)
_DECISION_COLUMNS: Final[Mapping[str, str]] = {
    "at": "at",
    "request": "request_id",
    "tenant": "tenant",
    "model": "model",
    "total": "total_tokens",
    "uncached": "uncached_tokens",
    "t": "threshold",
    "regime": "regime",
    "route": "route",
    "reason": "reason",
    "prefill": "prefill.instance",
    "decode": "decode.instance",
}


def show_document(document: Json) -> None:
    """Show any document: lists of objects as tables, the rest as names and values."""
    match document:
        case None:
            print("ok")
        case {"data": list() as rows} if _are_rows(rows):
            show_rows("", rows)
        case list() as rows if _are_rows(rows):
            show_rows("", rows)
        case dict():
            _show_sections(document)
        case _:
            print(format_cell(document))


def _show_sections(document: Mapping[str, Json]) -> None:
    plain = {name: value for name, value in document.items() if not _is_section(value)}
    if plain:
        print_pairs("", plain)
    for name, value in document.items():
        if not _is_section(value):
            continue
        print()
        if isinstance(value, list):
            show_rows(name, value)
        elif isinstance(value, dict) and value and all(isinstance(v, dict) for v in value.values()):
            show_rows(name, [{"name": key, **item} for key, item in value.items()])  # type: ignore[dict-item]  # all() narrows no values
        elif isinstance(value, dict):
            print_pairs(name, value)


def _is_section(value: Json) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and _are_rows(value))


def _are_rows(value: Sequence[Json]) -> bool:
    return bool(value) and all(isinstance(item, dict) for item in value)


def show_rows(title: str, rows: Sequence[Json], first: Sequence[str] = ()) -> None:
    """Show objects as a table: the named fields first, then what else they have."""
    objects = [row for row in rows if isinstance(row, dict)]
    present = dict.fromkeys(name for row in objects for name in row)
    columns = [name for name in first if name in present]
    columns += [name for name in present if name not in columns]
    print_table(title, columns, [[row.get(name) for name in columns] for row in objects])


def rows_of(document: Json, name: str) -> list[Json]:
    """Return the objects of an answer: a list, a list under `name` or `data`, or one object."""
    match document:
        case list():
            return document
        case dict():
            for key in (name, "data"):
                inner = document.get(key)
                if isinstance(inner, list):
                    return inner
            return [document] if document else []
        case _:
            return []


def show_instances(document: Json) -> None:
    """Show instances."""
    _show_list(document, "instances", _INSTANCE_FIELDS)


def show_links(document: Json) -> None:
    """Show links."""
    _show_list(document, "links", _LINK_FIELDS)


def show_overrides(document: Json) -> None:
    """Show overrides of the route."""
    _show_list(document, "overrides", ("route", "model", "tenant"))


def _show_list(document: Json, name: str, fields: Sequence[str]) -> None:
    if document is None:
        print("ok")
        return
    rows = rows_of(document, name)
    if rows:
        show_rows("", rows, fields)
    else:
        print(f"no {name}")


def show_threshold(document: Json) -> None:
    """Show what t is, who says so, and each pair's own where they differ."""
    if not isinstance(document, dict):
        show_document(document)
        return
    effective = document.get("effective_tokens", document.get("tokens"))
    print(f"threshold: {format_cell(effective)} tokens ({format_cell(document.get('mode'))})")
    rest = {name: value for name, value in document.items() if name != "mode"}
    _show_sections(rest)


def show_decisions(document: Json) -> None:
    """Show decisions, one a line."""
    rows = rows_of(document, "decisions")
    if not rows:
        print("no decisions yet")
        return
    print_table(
        "",
        list(_DECISION_COLUMNS),
        [[_dig(row, path) for path in _DECISION_COLUMNS.values()] for row in rows],
    )


def show_audit(document: Json) -> None:
    """Show changes, one a line."""
    rows = [row for row in rows_of(document, "audit") if isinstance(row, dict)]
    if not rows:
        print("nothing was changed yet")
        return
    columns = ("at", "by", "action", "subject")
    print_table(
        "",
        [*columns, "before", "after"],
        [
            [
                *(row.get(name) for name in columns),
                _brief(row.get("before")),
                _brief(row.get("after")),
            ]
            for row in rows
        ],
    )


def show_preview(document: Json) -> None:
    """Show what a change would change, for a dry run."""
    if not isinstance(document, dict):
        show_document(document)
        return
    print(f"{document.get('action')} of {document.get('subject')}: nothing was changed")
    if not document.get("changes"):
        print("it is so already")
        return
    print(f"  before  {_brief(document.get('before'))}")
    print(f"  after   {_brief(document.get('after'))}")


def _brief(value: Json) -> str:
    """Return JSON in short: what is not said is left out."""
    return json.dumps(_said(value), separators=(",", ":"), ensure_ascii=False)


def _said(value: Json) -> Json:
    match value:
        case dict():
            return {key: _said(each) for key, each in value.items() if each not in (None, [], {})}
        case list():
            return [_said(each) for each in value]
        case _:
            return value


def _dig(document: Json, path: str) -> Json:
    for part in path.split("."):
        if not isinstance(document, dict):
            return None
        document = document.get(part)
    return document
