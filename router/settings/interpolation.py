"""`${VAR}` and `${VAR:-default}` in any text of the file, as shells and compose files have them.

An empty variable counts as unset for `:-`, as in a shell. `$${` writes a plain `${`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from router.settings.documents import Value
from router.settings.errors import KeyPath

_REFERENCE: Final = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<broken>\$\{)"
)

Report = Callable[[KeyPath, str], None]
"""Takes a fault: where it stands and what is wrong."""


def interpolate(
    value: Value, environ: Mapping[str, str], report: Report, path: KeyPath = ()
) -> Value:
    """Return `value` with every reference replaced; unset variables are reported, not raised."""
    match value:
        case dict():
            return {
                key: interpolate(item, environ, report, (*path, key)) for key, item in value.items()
            }
        case list():
            return [
                interpolate(item, environ, report, (*path, index))
                for index, item in enumerate(value)
            ]
        case str():
            return _replace(value, environ, report, path)
        case _:
            return value


def _replace(text: str, environ: Mapping[str, str], report: Report, path: KeyPath) -> str:
    def substitute(found: re.Match[str]) -> str:
        if found["broken"]:
            report(path, "`${` opens no reference: write ${NAME} or ${NAME:-default}, or $${")
            return ""
        name = found["name"]
        if name is None:
            return "${"
        set_value = environ.get(name)
        if found["default"] is not None:
            return set_value or found["default"]
        if set_value is None:
            report(path, f"the environment variable {name} is not set")
            return ""
        return set_value

    return _REFERENCE.sub(substitute, text)
