"""Gauges of several workers as one: what each family's values make together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
from prometheus_client.metrics_core import Metric

ACROSS: Final[Mapping[str, Callable[[float, float], float]]] = MappingProxyType(
    {
        # Every worker holds its own share of these.
        "prfaas_link_inflight_bytes": lambda one, other: one + other,
        "prfaas_instance_inflight": lambda one, other: one + other,
        "prfaas_queue_depth": lambda one, other: one + other,
        "prfaas_prefill_queue_depth": lambda one, other: one + other,
        # Every worker looks at the same thing: where they differ, the worse news counts.
        "prfaas_link_up": min,
        "prfaas_link_available_bytes_per_second": min,
        "prfaas_instance_up": min,
        "prfaas_store_up": min,
        "prfaas_link_egress_bytes_per_second": max,
        "prfaas_link_utilization_ratio": max,
        "prfaas_instance_queue_depth": max,
        "prfaas_instance_breaker_open": max,
        # What was ordered or configured is the same everywhere within a second.
        "prfaas_link_capacity_bytes_per_second": max,
        "prfaas_threshold_tokens": max,
        "prfaas_threshold_solved_tokens": max,
        "prfaas_threshold_at_bound": max,
        "prfaas_controller_leader": max,
        "prfaas_controller_term": max,
        # What one of them computes for all, the others not at all.
        "prfaas_stage_capacity_requests_per_second": max,
        "prfaas_balance_residual_ratio": max,
        "prfaas_offload_share_ratio": max,
    }
)
"""How two workers' values of one series become one, by family."""


class GaugeReading(msgspec.Struct, frozen=True):
    """One family as a worker reads it: series by their label values, in the family's own order."""

    name: str
    series: list[tuple[dict[str, str], float]]


def read_gauges(families: Iterable[Metric]) -> list[GaugeReading]:
    """Return gauges in a form that travels."""
    return [
        GaugeReading(family.name, [(sample.labels, sample.value) for sample in family.samples])
        for family in families
    ]


def merge_gauges(
    own: Iterable[Metric], others: Sequence[Sequence[GaugeReading]]
) -> Iterator[Metric]:
    """Yield this worker's gauges with the `others`' values taken in.

    A series that only some workers have is theirs: what is absent is unknown there.
    """
    if not others:
        yield from own
        return
    told: dict[str, list[tuple[dict[str, str], float]]] = {}
    for reading in (reading for readings in others for reading in readings):
        told.setdefault(reading.name, []).extend(reading.series)
    for family in own:
        combine = ACROSS[family.name]
        merged = {_key(sample.labels): (sample.labels, sample.value) for sample in family.samples}
        for labels, value in told.get(family.name, ()):
            key = _key(labels)
            known = merged.get(key)
            merged[key] = (labels, value if known is None else combine(known[1], value))
        family.samples = []
        for labels, value in merged.values():
            family.add_sample(family.name, labels, value)
        yield family


def _key(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))
