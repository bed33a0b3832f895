"""The `x-ratelimit-*` headers, as OpenAI's own API sends them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from router.control.limits import Standing
from router.domain.units import Seconds


def rate_headers(standings: Iterable[Standing]) -> list[tuple[bytes, bytes]]:
    """Return limit, remaining and reset of each limited rate, `-requests` and `-tokens`."""
    return [
        (f"x-ratelimit-{name}-{standing.kind}".encode(), value.encode())
        for standing in standings
        for name, value in (
            ("limit", str(standing.limit)),
            ("remaining", str(standing.remaining)),
            ("reset", format_duration(standing.reset)),
        )
    ]


def format_duration(seconds: Seconds) -> str:
    """Return a duration as Go writes it and OpenAI sends it: `0s`, `120ms`, `8.64s`, `1m0s`.

    Rounded up to the millisecond: who waits so long has waited long enough.
    """
    milliseconds = math.ceil(seconds * 1000)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{text}" if minutes else text
