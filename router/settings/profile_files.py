"""Profile files: what a hardware pool needs for a prompt, by its length.

The points are checked here; `router.throughput` interpolates between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from router.settings.documents import read_document
from router.settings.errors import Fault, KeyPath, SettingsError
from router.settings.fields import (
    Duration,
    ModelName,
    PositiveCount,
    PositiveDuration,
    PositiveTokens,
    Section,
    Text,
)
from router.settings.validation import UNKNOWN_KEY, Complaint, validate_value


class ProfilePointSettings(Section):
    """What one prompt length costs."""

    tokens: PositiveTokens
    """Prompt length."""
    kv_bytes: PositiveCount
    """Size of the prompt's KV, S_kv."""
    prefill_seconds: PositiveDuration
    """Time to prefill it with nothing cached, T_prefill."""


class KvLineSettings(Section):
    """S_kv as a straight line, where it is known as such."""

    fixed_bytes: Duration
    """Bytes that every prompt ships (recurrent state)."""
    bytes_per_token: Duration
    """Bytes that each token adds."""


class ProfileFile(Section):
    """A profile of one model revision on one kind of instance."""

    model: ModelName
    """The model's name, or the name its engines use."""
    revision: Text
    """The revision that was measured."""
    hardware: Text
    """What an instance consists of."""
    engine: Text
    """What was run on it."""
    date: date
    """When."""
    source: Literal["measured", "modelled", "quoted"]
    """How the figures came about."""
    points: Annotated[tuple[ProfilePointSettings, ...], Field(min_length=2)]
    """At least two points, by increasing length."""
    kv: KvLineSettings | None = None
    """S_kv as a line; left out, interpolated between the points."""


def read_profile(path: Path, shown: str) -> ProfileFile:
    """Read and check one profile file. Raises SettingsError with the faults' places in it."""
    document = read_document(path, shown)
    outcome = validate_value(ProfileFile, document.root, None)
    complaints: Iterable[Complaint]
    complaints = outcome if isinstance(outcome, list) else _check_points(outcome)
    faults = [
        Fault(document.place_of(at, key=said.startswith(UNKNOWN_KEY)), at, said)
        for at, said in complaints
    ]
    if faults or isinstance(outcome, list):
        raise SettingsError(faults)
    return outcome


def _check_points(profile: ProfileFile) -> Iterable[Complaint]:
    for index, (before, point) in enumerate(pairwise(profile.points), start=1):
        where: KeyPath = ("points", index)
        if point.tokens <= before.tokens:
            yield (*where, "tokens"), f"must increase ({point.tokens} after {before.tokens})"
        if point.kv_bytes < before.kv_bytes:
            yield (
                (*where, "kv_bytes"),
                f"must not decrease ({point.kv_bytes} after {before.kv_bytes})",
            )
        if point.prefill_seconds < before.prefill_seconds:
            yield (
                (*where, "prefill_seconds"),
                f"must not decrease ({point.prefill_seconds:g} after {before.prefill_seconds:g})",
            )
