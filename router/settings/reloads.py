"""What a changed configuration may change in a process that runs, and which one is in force."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from pydantic import BaseModel

from router.settings.loading import Loaded
from router.settings.root import Settings

RESTART_ONLY: Final[tuple[tuple[str, ...], ...]] = (
    # Sockets, and what bounds them, are there before the first request.
    ("server", "host"),
    ("server", "port"),
    ("server", "max_buffered_bytes"),
    ("server", "max_connections"),
    ("server", "max_head_bytes"),
    ("server", "max_head_fields"),
    ("server", "timeouts"),
    ("admin", "port"),
    ("drain",),
    # State would have to move from one place to another, or be cut to another size.
    ("store",),
    ("kvmeta",),
    ("scheduler", "leader_lease_seconds"),
    ("upstream", "max_connections_per_instance"),
    # The loops that ask and watch engines go on as they began.
    ("upstream", "probe", "interval_seconds"),
    ("upstream", "probe", "timeout_seconds"),
    ("upstream", "lost_stream_timeout_seconds"),
)
"""Settings that a running process keeps as it began with them."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A configuration as a running process can take it over.

    `restart_needed` names the settings that were changed, but stay as they are until a restart.
    """

    loaded: Loaded
    restart_needed: tuple[str, ...]


def settle(running: Loaded, wanted: Loaded) -> Settled:
    """Return `wanted`, with what only a restart can change left as it is in `running`."""
    settings = wanted.settings
    kept: list[str] = []
    for path in RESTART_ONLY:
        old, new = _value(running.settings, path), _value(settings, path)
        if old != new:
            kept.append(".".join(path))
            settings = _with(settings, path, old)
    return Settled(replace(wanted, settings=settings), tuple(kept))


def is_same(one: Loaded, other: Loaded) -> bool:
    """Whether two configurations mean the same, wherever their values came from."""
    return one.settings == other.settings and one.profiles == other.profiles


def fingerprint_of(loaded: Loaded) -> str:
    """Return a short text that stands for what is in force; secrets have no part in it.

    Equal in all processes that run equal configurations, so that people can compare.
    """
    parts = {
        "settings": loaded.settings.model_dump(mode="json"),
        "profiles": [
            [*key, profile.model_dump(mode="json")]
            for key, profile in sorted(loaded.profiles.items())
        ],
    }
    masked = json.dumps(_mask(parts), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(masked.encode()).hexdigest()[:12]


_SECRETS: Final = frozenset({"api_key", "api_keys", "key", "cache_salt", "secret"})


def _mask(value: object) -> object:
    """Leave secrets out, their digests too: a short key could be found by trying."""
    match value:
        case dict():
            return {name: None if name in _SECRETS else _mask(each) for name, each in value.items()}
        case list():
            return [_mask(each) for each in value]
        case _:
            return value


def _value(section: BaseModel, path: tuple[str, ...]) -> object:
    value: object = section
    for name in path:
        value = getattr(value, name)
    return value


def _with(settings: Settings, path: tuple[str, ...], value: object) -> Settings:
    """Return the settings with one value changed; what contains it is copied."""
    sections: list[BaseModel] = [settings, *_sections(settings, path[:-1])]
    for section, name in zip(reversed(sections), reversed(path), strict=True):
        value = section.model_copy(update={name: value})
    assert isinstance(value, Settings)  # noqa: S101 - the outermost section
    return value


def _sections(settings: Settings, path: tuple[str, ...]) -> Iterator[BaseModel]:
    section: BaseModel = settings
    for name in path:
        section = getattr(section, name)
        yield section
