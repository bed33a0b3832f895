"""This process as one of its gateway's workers: what all of them together count and are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager

import msgspec

from kvmeta.types import SourceReport
from router.adapters.across_workers import read_gauges
from router.adapters.metrics import PrometheusMetrics
from router.adapters.siblings import Seat, Siblings, WorkerReport
from router.ports import Clock
from router.service.config_record import ConfigRecord
from router.service.decisions import Document


class Workers:
    """Speaks for all workers of the gateway, whichever of them is asked."""

    def __init__(
        self, seat: Seat | None, metrics: PrometheusMetrics, config: ConfigRecord, clock: Clock
    ) -> None:
        """`seat` is None for a gateway of one process."""
        self._config = config
        self._metrics = metrics
        self._siblings = Siblings(seat)
        self._self = WorkerReport(
            worker=0 if seat is None else seat.place,
            pid=os.getpid(),
            started_at=clock.now().isoformat(),
            config=config.fingerprint,
        )

    def answering(self) -> AbstractAsyncContextManager[None]:
        """Tell the other workers of this one for the time of the block."""
        return self._siblings.answering(self._tell)

    async def render_metrics(self, sources: Iterable[SourceReport]) -> bytes:
        """Return the exposition of all workers; `sources` are the index's, the same everywhere."""
        others = await self._siblings.ask()
        return self._metrics.render(sources, [report.gauges for report in others])

    async def describe(self) -> Document:
        """Return who answers, and every worker that lives."""
        others = await self._siblings.ask()
        me = msgspec.structs.replace(self._self, config=self._config.fingerprint)
        everybody = sorted([me, *others], key=lambda report: report.worker)
        return {
            "worker": self._self.worker,
            "workers": [_describe(report) for report in everybody],
        }

    def _tell(self) -> WorkerReport:
        return msgspec.structs.replace(
            self._self,
            config=self._config.fingerprint,
            gauges=read_gauges(self._metrics.gauges()),
        )


def _describe(report: WorkerReport) -> Document:
    return {
        "worker": report.worker,
        "pid": report.pid,
        "started_at": report.started_at,
        "config": report.config,
    }
