"""The tables of docs/configuration.md, from the models themselves, so that they cannot drift."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from router.settings.fields import redact_url
from router.settings.validation import sections_in


@dataclass(frozen=True, slots=True)
class SettingEntry:
    """One setting as the reference shows it. `default` is JSON, `required` where there is none."""

    path: str
    type: str
    default: str
    meaning: str


def list_settings(model: type[BaseModel], prefix: str = "") -> Iterator[SettingEntry]:
    """Yield every setting below a model, depth first; list elements are written `[]`."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        inner = sections_in(field.annotation)
        if not inner:
            yield SettingEntry(
                path, _type_words(field.annotation), _default_words(field), _say(field)
            )
            continue
        repeated = get_origin(field.annotation) is tuple
        if repeated:
            yield SettingEntry(path, "list", _default_words(field), _say(field))
        seen: set[str] = set()
        for section in inner:
            for entry in list_settings(section, f"{path}[]." if repeated else f"{path}."):
                if entry.path not in seen or entry.path.endswith(".kind"):
                    yield entry
                seen.add(entry.path)


def render_reference(model: type[BaseModel]) -> str:
    """Return the Markdown tables, one for each top-level section."""
    parts: list[str] = []
    for name, field in model.model_fields.items():
        lines = [f"## {name}", "", _say(field), ""]
        lines += ["| setting | type | default | meaning |", "|---|---|---|---|"]
        lines += [_row(entry) for entry in _below(model, name)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def render_table(model: type[BaseModel]) -> str:
    """Return one Markdown table of every setting below a model."""
    lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*lines, *(_row(entry) for entry in list_settings(model))]) + "\n"


def _below(model: type[BaseModel], name: str) -> Iterator[SettingEntry]:
    """The settings of one top-level section."""
    for entry in list_settings(model):
        if entry.path.partition(".")[0].removesuffix("[]") == name and entry.path != name:
            yield entry


def _row(entry: SettingEntry) -> str:
    cells = (f"`{entry.path}`", entry.type, entry.default, entry.meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _say(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _default_words(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined:
        return "none"
    return f"`{json.dumps(value, default=_to_json, ensure_ascii=False)}`"


def _to_json(value: object) -> object:
    match value:
        case SecretStr():
            return redact_url(value.get_secret_value())
        case BaseModel():
            return value.model_dump(mode="json", by_alias=True, exclude_none=True)
        case Enum():
            return value.value
        case _:
            return str(value)


def _type_words(annotation: object) -> str:
    """Name a type as an operator would."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " ".join(f"`{word}`" for word in arguments)
    if origin is tuple:
        return f"list of {_type_words(arguments[0])}"
    if origin is dict:
        return f"mapping of {_type_words(arguments[1])}"
    if arguments and NoneType in arguments:
        return _type_words(next(part for part in arguments if part is not NoneType))
    if arguments:
        return _type_words(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " ".join(f"`{member.value}`" for member in annotation)
    names: dict[object, str] = {
        bool: "true/false",
        int: "whole number",
        float: "number",
        str: "text",
        SecretStr: "secret",
        Path: "path",
    }
    return names.get(annotation, str(annotation))
