"""Secrets of the configuration: plain, from a variable, from a file, or as a digest.

`${VAR}` is replaced before a value arrives here. `file:PATH` is read here, relative to the
configuration file; a trailing line end is not part of the secret, since editors and Kubernetes
mounts leave one. Nothing here puts a secret into a message.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from pydantic import BeforeValidator, SecretStr, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

_FILE: Final = "file:"
_DIGEST: Final = "sha256:"
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")
_MAX_SECRET_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a value may refer to: the configuration's directory. `read` notes the files used."""

    base: Path
    read: list[Path] = field(default_factory=list)

    def resolve(self, path: str) -> Path:
        """Return the absolute path that a relative one in the configuration means."""
        return self.base / path


def surroundings_of(context: ValidationInfo) -> Surroundings | None:
    """Return the surroundings given to pydantic, None where a value stands outside a file."""
    given = context.context
    return given if isinstance(given, Surroundings) else None


def read_secret(value: object, context: ValidationInfo) -> object:
    """Follow `file:PATH`. An empty text means no secret."""
    if isinstance(value, SecretStr) or value is None:
        return value
    if not isinstance(value, str):
        raise PydanticCustomError("secret", "must be text: put it in quotes")
    if not value.startswith(_FILE):
        return value or None
    around = surroundings_of(context)
    if around is None:
        raise PydanticCustomError("secret", "`file:` is read in a configuration file only")
    path = around.resolve(value.removeprefix(_FILE))
    around.read.append(path)
    return _read_file(path, value)


def _read_file(path: Path, shown: str) -> str | None:
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_SECRET_BYTES + 1)
        text = raw.decode().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise PydanticCustomError(
            "secret", "{shown} cannot be read: {reason}", {"shown": shown, "reason": reason}
        ) from error
    if len(raw) > _MAX_SECRET_BYTES:
        raise PydanticCustomError("secret", "{shown} is too large for a secret", {"shown": shown})
    if not text:
        raise PydanticCustomError("secret", "{shown} is empty", {"shown": shown})
    return text


def _read_key(value: object, context: ValidationInfo) -> object:
    text = read_secret(value, context)
    if text is None:
        raise PydanticCustomError("secret", "must not be empty")
    if isinstance(text, str):
        if text.startswith(_DIGEST) and not _HEX.fullmatch(text.removeprefix(_DIGEST)):
            raise PydanticCustomError("secret", "`sha256:` is followed by 64 hexadecimal digits")
        if not text.isascii() or not text.isprintable() or " " in text:
            raise PydanticCustomError(
                "secret", "must be printable ASCII without spaces, to fit into a header"
            )
    return text


def _read_optional_key(value: object, context: ValidationInfo) -> object:
    return None if value is None or value == "" else _read_key(value, context)


SECRET_SCHEMA: Final = WithJsonSchema({"type": "string", "writeOnly": True})

Secret = Annotated[SecretStr | None, BeforeValidator(read_secret), SECRET_SCHEMA]
"""Text that is never shown: plain or `file:PATH`; empty means none."""

ApiKey = Annotated[SecretStr, BeforeValidator(_read_key), SECRET_SCHEMA]
"""A key that callers present: plain, `file:PATH` or `sha256:HEX`. Never empty."""

OptionalApiKey = Annotated[SecretStr | None, BeforeValidator(_read_optional_key), SECRET_SCHEMA]
"""An `ApiKey`, or empty for none."""


def digest_key(key: SecretStr) -> bytes:
    """Return the SHA-256 of a configured key, so that keys are compared without being kept.

    Compare with `hashlib.sha256(presented).digest()` by `hmac.compare_digest`.
    """
    text = key.get_secret_value()
    if text.startswith(_DIGEST):
        return bytes.fromhex(text.removeprefix(_DIGEST))
    return hashlib.sha256(text.encode()).digest()
