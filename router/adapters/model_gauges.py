"""Gauges of the throughput model: what each stage bears with the thresholds in force."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from router.control.thresholds import InForce
from router.domain.units import Tokens
from router.service.lengths import OperatingLengths
from router.service.models import ModelCatalog
from router.service.operator import Operator
from router.throughput.stages import OperatingPoint, Stage


@dataclass(frozen=True, slots=True)
class ModelGauges:
    """Evaluated at each scrape, some ten microseconds for each model and PD cluster."""

    operator: Operator
    catalog: ModelCatalog
    lengths: OperatingLengths

    def collect(self) -> Iterator[Metric]:
        """Yield capacities, residuals and shares; only shares until something is solved."""
        points = [
            in_force.solved.at(self._threshold(model, pd, in_force))
            for model, pd, in_force in self.operator.solved.items()
        ]
        yield _capacities(points)
        yield _residuals(points)
        yield self._shares(points)

    def _threshold(self, model: str, pd: str, in_force: InForce) -> Tokens:
        """Return the least t in force between a PD cluster and those that could prefill for it."""
        remotes = in_force.solved.today.deployment.remotes
        return min(self.operator.threshold(model, pool.name, pd).tokens for pool in remotes)

    def _shares(self, points: Iterable[OperatingPoint]) -> Metric:
        gauge = GaugeMetricFamily(
            "prfaas_offload_share_ratio",
            "Share of prompts that are offloaded, and that the model expects; mean of all models",
            labels=["kind"],
        )
        measured = [self.lengths.of(model.name).offload_share for model in self.catalog.models]
        known = [share for share in measured if share is not None]
        planned = [point.demands.offload_share for point in points]
        for kind, shares in (("measured", known), ("planned", planned)):
            if shares:
                gauge.add_metric([kind], sum(shares) / len(shares))
        return gauge


def _capacities(points: Iterable[OperatingPoint]) -> Metric:
    gauge = GaugeMetricFamily(
        "prfaas_stage_capacity_requests_per_second",
        "Theta of a stage, all models and PD clusters together",
        labels=["stage"],
    )
    for stage in Stage:
        rates = [rate for point in points if (rate := point.theta[stage]) is not None]
        if rates:
            gauge.add_metric([stage.value], sum(rates))
    return gauge


def _residuals(points: Iterable[OperatingPoint]) -> Metric:
    gauge = GaugeMetricFamily(
        "prfaas_balance_residual_ratio",
        "Equations 7 and 8: left less right over their sum, where it is largest",
        labels=["equation"],
    )
    equations: dict[str, Callable[[OperatingPoint], float | None]] = {
        "7": lambda point: point.threshold_residual,
        "8": lambda point: point.balance_residual,
    }
    for equation, residual_of in equations.items():
        residuals = [each for point in points if (each := residual_of(point)) is not None]
        if residuals:
            gauge.add_metric([equation], max(residuals, key=abs))
    return gauge
