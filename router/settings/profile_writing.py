"""Writes profile files: what `read_profile` reads, with comments on how the figures came about."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final

import yaml
from pydantic import ValidationError

from router.settings.errors import Fault, FilePlace, SettingsError
from router.settings.profile_files import KvLineSettings, ProfileFile, ProfilePointSettings
from router.throughput.profiles import KvLine, ProfilePoint, ProfileSource

_SECONDS_DIGITS: Final = 6
"""Microseconds: no engine's prefill is steadier."""


def build_profile(
    points: Sequence[ProfilePoint],
    *,
    model: str,
    revision: str,
    hardware: str,
    engine: str,
    day: date,
    source: ProfileSource,
    kv_line: KvLine | None,
) -> ProfileFile:
    """Return the document of a profile file. Raises SettingsError for what no file may hold."""
    try:
        return ProfileFile(
            model=model,
            revision=revision,
            hardware=hardware,
            engine=engine,
            date=day,
            source=source.value,
            points=tuple(_point(point) for point in points),
            kv=None if kv_line is None else _line(kv_line),
        )
    except ValidationError as error:
        faults = [
            Fault(FilePlace("the measured profile"), said["loc"], said["msg"])
            for said in error.errors()
        ]
        raise SettingsError(faults) from error


def render_profile(profile: ProfileFile, notes: Sequence[str]) -> str:
    """Return the text of a profile file, headed by one comment for each note."""
    head = profile.model_dump(mode="json", exclude={"points", "kv"})
    lines = [f"# {' '.join(note.split())}\n" for note in notes]
    lines.append(yaml.safe_dump(head, sort_keys=False, allow_unicode=True))
    lines.append("points:\n")
    lines += [f"  - {_flow(point.model_dump())}\n" for point in profile.points]
    if profile.kv is not None:
        lines.append(f"kv: {_flow(profile.kv.model_dump())}\n")
    return "".join(lines)


def write_profile(path: Path, text: str) -> None:
    """Put a profile file in place as a whole: nobody reads half of one. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, "utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _point(point: ProfilePoint) -> ProfilePointSettings:
    return ProfilePointSettings(
        tokens=point.tokens,
        kv_bytes=point.kv_bytes,
        prefill_seconds=round(point.prefill_seconds, _SECONDS_DIGITS),
    )


def _line(line: KvLine) -> KvLineSettings:
    return KvLineSettings(fixed_bytes=line.fixed_bytes, bytes_per_token=line.bytes_per_token)


def _flow(values: Mapping[str, object]) -> str:
    return yaml.safe_dump(values, sort_keys=False, default_flow_style=True, width=10_000).rstrip()
