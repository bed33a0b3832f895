"""YAML text -> plain values that remember where they stood.

YAML 1.2's core schema is used instead of PyYAML's 1.1: `mode: off` stays text, `2026-04-16` is no
date and `12:30` no number. Tags other than the core ones are refused, so is a key given twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from router.settings.errors import Fault, FilePlace, KeyPath, SettingsError

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]
"""What a YAML document of the core schema can hold."""

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""A fleet of 1,000 instances is about 200 KB of YAML; a mistaken path to a weight file is not."""

MAX_NODES: Final = 200_000
"""Bounds what aliases may unfold to, so that a small file cannot fill the memory."""

_LONGEST_NUMBER: Final = 400
"""Characters; the longest float has 310 digits, and Python refuses to read endless integers."""

_TAG: Final = "tag:yaml.org,2002:"
_NULL: Final = re.compile(r"|~|null|Null|NULL")
_BOOL: Final = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT: Final = re.compile(r"[-+]?[0-9]+")
_INT_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_FLOAT_SPECIAL: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True, slots=True)
class Document:
    """A file's value and where each part of it stands.

    `values` and `keys` give the place of the value, and of its key, by path. A key whose value is
    null counts as left out: an emptied section means its defaults.
    """

    file: str
    root: Value
    values: Mapping[KeyPath, FilePlace]
    keys: Mapping[KeyPath, FilePlace]

    def place_of(self, path: KeyPath, *, key: bool = False) -> FilePlace:
        """Return the place of `path` (of its key if `key`), or of the nearest part around it."""
        if key and path in self.keys:
            return self.keys[path]
        for end in range(len(path), -1, -1):
            place = self.values.get(path[:end])
            if place is not None:
                return place
        return FilePlace(self.file, 1, 1)


def read_text(path: Path, shown: str) -> str:
    """Read a UTF-8 file. Raises SettingsError naming it as `shown`."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _whole_file(shown, f"cannot be read: {reason}") from error
    except ValueError as error:  # an embedded null byte
        raise _whole_file(shown, "cannot be read: not a possible path") from error
    if len(raw) > MAX_FILE_BYTES:
        raise _whole_file(shown, f"is larger than {MAX_FILE_BYTES // 2**20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _whole_file(shown, f"is not UTF-8 (byte {error.start})") from error


def read_document(path: Path, shown: str) -> Document:
    """Read and parse a YAML file. Raises SettingsError."""
    return parse_document(read_text(path, shown), shown)


def parse_document(text: str, file: str) -> Document:
    """Parse one YAML document. Raises SettingsError with every duplicate key or bad tag."""
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
        builder = _Builder(file)
        root = builder.build(node, (), None) if node is not None else None
    except yaml.MarkedYAMLError as error:
        raise SettingsError([_syntax_fault(error, file)]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        fault = Fault(FilePlace(file, line, column), (), "a character that YAML does not allow")
        raise SettingsError([fault]) from error
    except RecursionError as error:
        raise _whole_file(file, "is nested too deeply") from error
    if builder.faults:
        raise SettingsError(builder.faults)
    return Document(file, root, builder.values, builder.keys)


def _whole_file(file: str, message: str) -> SettingsError:
    return SettingsError([Fault(FilePlace(file), (), message)])


def _syntax_fault(error: yaml.MarkedYAMLError, file: str) -> Fault:
    mark = error.problem_mark or error.context_mark
    place = FilePlace(file, mark.line + 1, mark.column + 1) if mark else FilePlace(file)
    said = ", ".join(part for part in (error.context, error.problem) if part)
    return Fault(place, (), f"not valid YAML: {' '.join(said.split())}")


@dataclass(slots=True)
class _Builder:
    """Turns PyYAML's nodes into values and notes their places and faults on the way."""

    file: str
    values: dict[KeyPath, FilePlace] = field(default_factory=dict)
    keys: dict[KeyPath, FilePlace] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    count: int = 0

    def build(self, node: Node, path: KeyPath, key: Node | None) -> Value:
        place = self.place(node)
        self.values[path] = place
        if key is not None:
            self.keys[path] = self.place(key)
        self.count += 1
        if self.count > MAX_NODES:
            raise _whole_file(self.file, f"unfolds to more than {MAX_NODES} values")
        if id(node) in self.open:
            self.fault(place, path, "an alias that contains itself")
            return None
        self.open.add(id(node))
        try:
            return self.build_kind(node, path)
        finally:
            self.open.discard(id(node))

    def build_kind(self, node: Node, path: KeyPath) -> Value:
        match node:
            case MappingNode():
                self.check_tag(node, path, "map")
                return self.build_mapping(node, path)
            case SequenceNode():
                self.check_tag(node, path, "seq")
                return [
                    self.build(item, (*path, index), None) for index, item in enumerate(node.value)
                ]
            case ScalarNode():
                return self.build_scalar(node, path)
            case _:
                raise TypeError(f"PyYAML made a node of another kind: {type(node).__name__}")

    def build_mapping(self, node: MappingNode, path: KeyPath) -> Value:
        result: dict[str, Value] = {}
        merged: dict[str, Value] = {}
        first: dict[str, FilePlace] = {}
        for key, item in node.value:
            if _is_merge(key):
                merged |= self.build_merged(item, path)
        for key, item in node.value:
            place = self.place(key)
            if _is_merge(key):
                continue
            if not isinstance(key, ScalarNode):
                self.fault(place, path, "a key must be text")
                continue
            name = key.value
            if name in first:
                earlier = first[name].line
                self.fault(place, (*path, name), f"given twice (first in line {earlier})")
                continue
            first[name] = place
            value = self.build(item, (*path, name), key)
            if value is not None:
                result[name] = value
        return merged | result

    def build_merged(self, item: Node, path: KeyPath) -> dict[str, Value]:
        """Take over the keys of `<<: *anchor`; the mapping's own keys win over them."""
        own = self.values[path]
        value = self.build(item, path, None)
        self.values[path] = own
        if isinstance(value, dict):
            return value
        self.fault(self.place(item), path, "`<<` merges a mapping")
        return {}

    def build_scalar(self, node: ScalarNode, path: KeyPath) -> Value:
        text: str = node.value
        if node.tag == f"{_TAG}str":
            plain = node.style is None
            return resolve_scalar(text) if plain else text
        if not self.check_tag(node, path, "str", "int", "float", "bool", "null"):
            return None
        return resolve_scalar(text)

    def check_tag(self, node: Node, path: KeyPath, *known: str) -> bool:
        if node.tag in {_TAG + name for name in known}:
            return True
        self.fault(self.place(node), path, f"the tag {node.tag!r} is not supported")
        return False

    def place(self, node: Node) -> FilePlace:
        mark = node.start_mark
        return FilePlace(self.file, mark.line + 1, mark.column + 1)

    def fault(self, place: FilePlace, path: KeyPath, message: str) -> None:
        self.faults.append(Fault(place, path, message))


def _is_merge(key: Node) -> bool:
    return isinstance(key, ScalarNode) and key.value == "<<" and key.style is None


def resolve_scalar(text: str) -> Value:
    """Give a plain scalar its type by YAML 1.2's core schema. Endless digits stay text."""
    if len(text) > _LONGEST_NUMBER:
        return text
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text[0] in "tT"
    if _INT.fullmatch(text):
        return int(text)
    if _INT_BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _FLOAT_SPECIAL.fullmatch(text):
        return float(text.replace(".", ""))
    return text
