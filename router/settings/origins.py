"""Where each effective value came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from pydantic import BaseModel

from router.settings.documents import Document, Value
from router.settings.environment import Overlay
from router.settings.errors import FilePlace, KeyPath, VariablePlace


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """The default of the code."""

    def __str__(self) -> str:
        return "default"


Origin = BuiltIn | FilePlace | VariablePlace


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One setting in force. Secrets are masked."""

    path: KeyPath
    value: Value
    origin: Origin


def format_origin(origin: Origin) -> str:
    """Say where a value came from: `default`, `file:line` or `environment NAME`."""
    match origin:
        case BuiltIn():
            return "default"
        case FilePlace(file, line):
            return f"{file}:{line}"
        case VariablePlace(variable):
            return f"environment {variable}"
    assert_never(origin)


@dataclass(frozen=True, slots=True)
class Origins:
    """Finds the place of any path: the environment's variables first, then the file."""

    document: Document
    variables: Mapping[KeyPath, str]

    @classmethod
    def of(cls, document: Document, overlay: Overlay) -> Origins:
        """Join what the file and the environment said."""
        return cls(document, overlay.variables)

    def place_of(self, path: KeyPath, *, key: bool = False) -> FilePlace | VariablePlace:
        """Return where to point for a fault at `path`; at its key if `key`."""
        variable = self._variable_of(path)
        if variable is not None:
            return VariablePlace(variable)
        return self.document.place_of(path, key=key)

    def overridden(self, path: KeyPath) -> bool:
        """Whether a variable replaced what the file says at `path`."""
        return any(path[:end] in self.variables for end in range(1, len(path) + 1))

    def origin_of(self, path: KeyPath) -> Origin:
        """Return what set `path`: a variable, the file, or nothing but the default."""
        variable = self._variable_of(path)
        if variable is not None:
            return VariablePlace(variable)
        return self.document.values.get(path, BuiltIn())

    def _variable_of(self, path: KeyPath) -> str | None:
        """The variable that set `path` or something around it, or that alone brought it in."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.variables:
                return self.variables[path[:end]]
        if path and path not in self.document.values:
            for longer, name in self.variables.items():
                if longer[: len(path)] == path:
                    return name
        return None


def list_effective(settings: BaseModel, origins: Origins) -> Iterator[EffectiveValue]:
    """Yield every setting in force, in the order of the reference, secrets masked."""
    plain = settings.model_dump(mode="json", by_alias=True)
    yield from _leaves(plain, (), origins)


def _leaves(value: Value, path: KeyPath, origins: Origins) -> Iterator[EffectiveValue]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key), origins)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index), origins)
    else:
        yield EffectiveValue(path, value, origins.origin_of(path))
