"""What is kept of a simulated request: one flat record, from which every figure is computed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from router.domain.units import Seconds, Tokens


class Outcome(StrEnum):
    """How a request ended."""

    SERVED = "served"
    REJECTED = "rejected"
    """The queue was full, or nobody was alive: 503."""


class Record(NamedTuple):
    """One request. Times are of the simulated clock; those of what never happened are NaN.

    `uncached` is what was compared with t, `computed` what its instance prefilled. `admitted` is
    when it was routed, `started` when its prefill began, `answered` when KV and a decode slot were
    there: the first token. `unloaded` is its promise (`Reference`). `kv_bytes` crossed a link for
    it, `wasted_bytes` crossed in vain. `attempts` counts its prefills.
    """

    number: int
    outcome: str
    arrived: Seconds
    total: Tokens
    fresh: Tokens
    output: Tokens
    unloaded: Seconds
    route: str
    reason: str
    prefill: str
    decode: str
    uncached: Tokens
    computed: Tokens
    threshold: Tokens
    admitted: Seconds
    started: Seconds
    prefilled: Seconds
    answered: Seconds
    finished: Seconds
    kv_bytes: int
    wasted_bytes: int
    attempts: int

    @property
    def ttft(self) -> Seconds:
        """Time to the first token; NaN if none came."""
        return self.answered - self.arrived


def write_csv(records: Iterable[Record]) -> bytes:
    """Return records as CSV with a header. Floats are written so that they read back equal."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Record._fields)
    writer.writerows(records)
    return text.getvalue().encode()
