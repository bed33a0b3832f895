"""Profiles: what one instance of a pool needs for a prompt of a given length.

Symbols of the paper (arXiv 2604.15039, section 3): T_prefill(l) in seconds, S_kv(l) in bytes,
Phi_kv(l) = S_kv(l) / T_prefill(l) in bytes per second (equation 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from router.domain.units import Bytes, BytesPerSecond, Seconds
from router.throughput.curves import Curve, CurveError, Extrapolation, Interpolation


class ProfileSource(StrEnum):
    """How a profile's numbers came about. Every figure shown to people names it."""

    MEASURED = "measured"
    MODELLED = "modelled"
    QUOTED = "quoted"


@dataclass(frozen=True, slots=True)
class ProfilePoint:
    """One measured length, in tokens, with its KV bytes and prefill seconds."""

    tokens: int
    kv_bytes: int
    prefill_seconds: Seconds


@dataclass(frozen=True, slots=True)
class KvLine:
    """S_kv as a straight line: what every prompt ships, and what each token adds, in bytes.

    Hybrid models have this form exactly: recurrent state is fixed, full attention grows with l.
    """

    fixed_bytes: float
    bytes_per_token: float

    def __call__(self, tokens: float) -> float:
        """Return S_kv of `tokens` tokens, in bytes."""
        return self.fixed_bytes + self.bytes_per_token * tokens


def fit_kv_line(points: Sequence[ProfilePoint]) -> KvLine:
    """Return the least-squares line through the points' KV bytes; neither part is below 0.

    Raises CurveError unless there are two different lengths or more.
    """
    count = len(points)
    if len({point.tokens for point in points}) < 2:
        raise CurveError("a line needs two different lengths")
    mean_tokens = sum(point.tokens for point in points) / count
    mean_bytes = sum(point.kv_bytes for point in points) / count
    spread = sum((point.tokens - mean_tokens) ** 2 for point in points)
    shared = sum((point.tokens - mean_tokens) * (point.kv_bytes - mean_bytes) for point in points)
    slope = max(0.0, shared / spread)
    return KvLine(max(0.0, mean_bytes - slope * mean_tokens), slope)


@dataclass(frozen=True, slots=True)
class Profile:
    """T_prefill and S_kv of one pool, interpolated between points, and where they come from.

    `kv_line` parts S_kv into what is proportional to tokens, which a prefix held by the decode side
    saves on the wire, and the rest (recurrent state), which ships with every hand-off.
    """

    prefill: Curve
    kv: Curve
    kv_line: KvLine
    source: ProfileSource
    hardware: str = ""

    @classmethod
    def from_points(
        cls,
        points: Sequence[ProfilePoint],
        *,
        source: ProfileSource,
        hardware: str = "",
        kv_line: KvLine | None = None,
        interpolation: Interpolation = Interpolation.PCHIP,
        extrapolation: Extrapolation = Extrapolation.LINEAR,
    ) -> Self:
        """Build a profile from at least two points in increasing length.

        Without `kv_line` a line is fitted to the points' bytes.
        Raises CurveError for unusable points.
        """
        lengths = [float(point.tokens) for point in points]
        kv, prefill = (
            Curve.through(lengths, values, interpolation=interpolation, extrapolation=extrapolation)
            for values in (
                [float(point.kv_bytes) for point in points],
                [point.prefill_seconds for point in points],
            )
        )
        return cls(prefill, kv, kv_line or fit_kv_line(points), source, hardware)

    @property
    def kv_bytes_per_token(self) -> float:
        """The token-proportional part of S_kv, in bytes a token."""
        return self.kv_line.bytes_per_token

    @property
    def longest(self) -> float:
        """The longest measured length, in tokens; beyond it the profile extrapolates."""
        return self.prefill.xs[-1]

    def prefill_seconds(self, tokens: float) -> Seconds:
        """Return T_prefill of `tokens` uncached tokens on one instance; 0 for none."""
        return self.prefill(tokens) if tokens > 0 else 0.0

    def kv_bytes(self, tokens: float) -> Bytes:
        """Return S_kv of a prefix of `tokens` tokens; 0 for none."""
        return Bytes(round(self.kv(tokens))) if tokens > 0 else Bytes(0)

    def kv_rate(self, tokens: float) -> BytesPerSecond | None:
        """Return Phi_kv at `tokens` (equation 1), None where the prefill time is 0."""
        seconds = self.prefill(tokens) if tokens > 0 else 0.0
        return BytesPerSecond(self.kv(tokens) / seconds) if seconds > 0 else None
