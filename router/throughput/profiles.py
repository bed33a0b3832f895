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
from router.throughput.curves import Curve


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
class Profile:
    """T_prefill and S_kv of one pool, interpolated between points, and where they come from.

    `kv_bytes_per_token` is the token-proportional part of S_kv: what a prefix held by the decode
    side saves on the wire. The rest (recurrent state) ships with every hand-off.
    """

    prefill: Curve
    kv: Curve
    kv_bytes_per_token: float
    source: ProfileSource
    hardware: str = ""

    @classmethod
    def from_points(
        cls,
        points: Sequence[ProfilePoint],
        *,
        source: ProfileSource,
        hardware: str = "",
        kv_bytes_per_token: float | None = None,
    ) -> Self:
        """Build a profile from at least two points in increasing length.

        Without `kv_bytes_per_token` the slope between the outermost points is taken (the affine
        fit of a hybrid model's KV). Raises CurveError for unusable points.
        """
        lengths = [float(point.tokens) for point in points]
        kv = Curve.through(lengths, [float(point.kv_bytes) for point in points])
        prefill = Curve.through(lengths, [point.prefill_seconds for point in points])
        slope = (kv.ys[-1] - kv.ys[0]) / (kv.xs[-1] - kv.xs[0])
        per_token = max(0.0, slope) if kv_bytes_per_token is None else kv_bytes_per_token
        return cls(prefill, kv, per_token, source, hardware)

    def prefill_seconds(self, tokens: float) -> Seconds:
        """Return T_prefill of `tokens` uncached tokens on one instance; 0 for none."""
        return self.prefill(tokens) if tokens > 0 else 0.0

    def kv_bytes(self, tokens: float) -> Bytes:
        """Return S_kv of a prefix of `tokens` tokens; 0 for none."""
        return Bytes(round(self.kv(tokens))) if tokens > 0 else Bytes(0)

    def kv_rate(self, tokens: float) -> BytesPerSecond | None:
        """Return Phi_kv at `tokens` (equation 1), None where the prefill time is 0."""
        seconds = self.prefill_seconds(tokens)
        return BytesPerSecond(self.kv(tokens) / seconds) if seconds > 0 else None
