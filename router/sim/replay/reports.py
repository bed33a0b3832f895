"""From single outcomes to what a replay showed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from router.domain.units import Seconds, Tokens

SHOWN_DIFFERENCES: Final = 10
"""Requests listed where belief and engine disagree; the count tells of the rest."""

LATE: Final[Seconds] = 0.1
"""A request sent later than this after its time was not sent as the trace says."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request. None where nobody told.

    `error` is None for a complete answer. `believed_cached` is the gateway's belief about the
    chosen prefill instance, `reported_cached` what the engine found. `ttft` runs from sending to
    the first event, `tpot` is the mean time between two output tokens after it.
    """

    index: int
    sent_at: Seconds
    lateness: Seconds
    status: int | None = None
    error: str | None = None
    request_id: str | None = None
    route: str | None = None
    reason: str | None = None
    prefill: str | None = None
    decode: str | None = None
    threshold: Tokens | None = None
    total_tokens: Tokens | None = None
    uncached_tokens: Tokens | None = None
    believed_cached: Tokens | None = None
    prompt_tokens: Tokens | None = None
    reported_cached: Tokens | None = None
    output_tokens: Tokens | None = None
    ttft: Seconds | None = None
    tpot: Seconds | None = None
    duration: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Distribution:
    """A sample in five numbers, None without any."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    maximum: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A request whose cached prefix was another than believed."""

    index: int
    request_id: str | None
    instance: str | None
    believed: Tokens
    reported: Tokens


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often belief and engine said the same number, where both said one."""

    compared: int
    equal: int
    share: float | None
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A replay as a whole. Token sums are over the requests that told them.

    `believed_known` and `reported_known` count those requests. `egress_bytes` is what the gateway
    counted as shipped between clusters meanwhile, None where its metrics could not be read.
    """

    requests: int
    completed: int
    interrupted: bool
    duration: Seconds
    errors: dict[str, int]
    routes: dict[str, int]
    reasons: dict[str, int]
    ttft: Distribution
    tpot: Distribution
    lateness: Distribution
    late: int
    prompt_tokens: Tokens
    output_tokens: Tokens
    uncached_tokens: Tokens
    believed_cached: Tokens
    believed_known: int
    reported_cached: Tokens
    reported_known: int
    agreement: Agreement
    egress_bytes: int | None


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of an ascending, non-empty sample, interpolating linearly (type 7)."""
    position = (len(ordered) - 1) * share
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def distribute(values: Iterable[float | None]) -> Distribution:
    """Summarise those values that are known."""
    sample = sorted(value for value in values if value is not None)
    if not sample:
        return Distribution(0, None, None, None, None, None)
    return Distribution(
        count=len(sample),
        mean=math.fsum(sample) / len(sample),
        p50=percentile(sample, 0.5),
        p90=percentile(sample, 0.9),
        p99=percentile(sample, 0.99),
        maximum=sample[-1],
    )


def compare_beliefs(outcomes: Iterable[Outcome]) -> Agreement:
    """Compare what the gateway believed to be cached with what the engines found, exactly."""
    compared = equal = 0
    differences: list[Difference] = []
    for item in outcomes:
        if item.believed_cached is None or item.reported_cached is None:
            continue
        compared += 1
        if item.believed_cached == item.reported_cached:
            equal += 1
        elif len(differences) < SHOWN_DIFFERENCES:
            differences.append(
                Difference(
                    item.index,
                    item.request_id,
                    item.prefill,
                    item.believed_cached,
                    item.reported_cached,
                )
            )
    share = equal / compared if compared else None
    return Agreement(compared, equal, share, tuple(differences))


def summarise(
    outcomes: Sequence[Outcome],
    *,
    duration: Seconds,
    egress_bytes: int | None = None,
    interrupted: bool = False,
) -> Report:
    """Return the report of a replay, also of one that ended early."""
    ordered = sorted(outcomes, key=lambda item: item.index)
    complete = [item for item in ordered if item.error is None]
    believed = [item.believed_cached for item in complete if item.believed_cached is not None]
    reported = [item.reported_cached for item in complete if item.reported_cached is not None]
    return Report(
        requests=len(ordered),
        completed=len(complete),
        interrupted=interrupted,
        duration=duration,
        errors=_count(item.error for item in ordered),
        routes=_count(item.route for item in ordered),
        reasons=_count(_reason(item) for item in ordered),
        ttft=distribute(item.ttft for item in complete),
        tpot=distribute(item.tpot for item in complete),
        lateness=distribute(item.lateness for item in ordered),
        late=sum(item.lateness > LATE for item in ordered),
        prompt_tokens=sum(item.prompt_tokens or 0 for item in complete),
        output_tokens=sum(item.output_tokens or 0 for item in complete),
        uncached_tokens=sum(item.uncached_tokens or 0 for item in complete),
        believed_cached=sum(believed),
        believed_known=len(believed),
        reported_cached=sum(reported),
        reported_known=len(reported),
        agreement=compare_beliefs(complete),
        egress_bytes=egress_bytes,
    )


def _reason(item: Outcome) -> str | None:
    if item.route is None:
        return None
    return f"{item.route}/{item.reason}" if item.reason else item.route


def _count(names: Iterable[str | None]) -> dict[str, int]:
    counted = Counter(name for name in names if name is not None)
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def sum_metric(exposition: str, name: str) -> float | None:
    """Add up all series of a counter in a Prometheus exposition.

    None where the text holds none of the gateway's metrics at all; a counter that has not counted
    yet is 0.
    """
    prefix = name.partition("_")[0] + "_"
    total, ours = 0.0, False
    for line in exposition.splitlines():
        ours = ours or line.startswith(prefix)
        if line.startswith((f"{name}{{", f"{name} ")):
            try:
                total += float(line.rpartition("}")[2].split()[0 if "}" in line else 1])
            except (ValueError, IndexError):
                continue
    return total if ours else None
