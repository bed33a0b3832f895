"""This process as one of its gateway's workers: what all of them count and decided."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar

import msgspec

from kvmeta.types import SourceReport
from router.adapters.across_workers import GaugeReading, read_gauges
from router.adapters.metrics import PrometheusMetrics
from router.adapters.siblings import Seat, Siblings
from router.domain.units import Seconds
from router.ports import Clock
from router.service.config_record import ConfigRecord
from router.service.decisions import DecisionLog, Document
from router.service.journals import (
    LogReplay,
    PageOrder,
    ReplayOrder,
    Told,
    replay_log,
    select_told,
)

_REPLAY_PATIENCE: Final[Seconds] = 8.0
"""A full log is decided again in a second; operators wait ten."""


_Answer = TypeVar("_Answer")


class WorkerReport(msgspec.Struct, frozen=True):
    """What a worker tells of itself."""

    worker: int
    pid: int
    started_at: str
    config: str
    gauges: list[GaugeReading] = []


class Workers:
    """Speaks for all workers of the gateway, whichever of them is asked."""

    def __init__(
        self,
        seat: Seat | None,
        metrics: PrometheusMetrics,
        config: ConfigRecord,
        clock: Clock,
        log: DecisionLog,
    ) -> None:
        """`seat` is None for a gateway of one process."""
        self._config = config
        self._log = log
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
        return self._siblings.answering(
            {
                "report": self._answer_report,
                "decisions": self._answer_decisions,
                "replay": self._answer_replay,
            }
        )

    async def render_metrics(self, sources: Iterable[SourceReport]) -> bytes:
        """Return the exposition of all workers; `sources` are the index's, the same everywhere."""
        others = await self._ask_reports()
        return self._metrics.render(sources, [report.gauges for report in others])

    async def describe(self) -> Document:
        """Return who answers, and every worker that lives."""
        others = await self._ask_reports()
        me = msgspec.structs.replace(self._self, config=self._config.fingerprint)
        everybody = sorted([me, *others], key=lambda report: report.worker)
        return {
            "worker": self._self.worker,
            "workers": [_describe(report) for report in everybody],
        }

    # -- decisions: `Colleagues`

    async def select(self, order: PageOrder) -> Sequence[Sequence[Told]]:
        """Return the decisions of each other worker, newest first."""
        answers = await self._siblings.ask("decisions", msgspec.json.encode(order))
        return list(_decode_each(answers, msgspec.json.Decoder(list[Told]).decode))

    async def replay(self, order: ReplayOrder) -> Sequence[LogReplay]:
        """Return the decisions of each other worker, made again there."""
        told = msgspec.json.encode(order)
        answers = await self._siblings.ask("replay", told, patience=_REPLAY_PATIENCE)
        return list(_decode_each(answers, msgspec.json.Decoder(LogReplay).decode))

    async def _answer_decisions(self, told: bytes) -> bytes:
        order = msgspec.json.decode(told, type=PageOrder)
        return msgspec.json.encode(select_told(self._log, order))

    async def _answer_replay(self, told: bytes) -> bytes:
        order = msgspec.json.decode(told, type=ReplayOrder)
        return msgspec.json.encode(await replay_log(self._log, order))

    # -- reports

    async def _ask_reports(self) -> list[WorkerReport]:
        answers = await self._siblings.ask("report")
        return list(_decode_each(answers, msgspec.json.Decoder(WorkerReport).decode))

    async def _answer_report(self, _: bytes) -> bytes:
        return msgspec.json.encode(self._tell())

    def _tell(self) -> WorkerReport:
        return msgspec.structs.replace(
            self._self,
            config=self._config.fingerprint,
            gauges=read_gauges(self._metrics.gauges()),
        )


def _decode_each(answers: Iterable[bytes], decode: Callable[[bytes], _Answer]) -> Iterator[_Answer]:
    """Yield what answers say; one that was broken off is none."""
    for answer in answers:
        with contextlib.suppress(msgspec.DecodeError):
            yield decode(answer)


def _describe(report: WorkerReport) -> Document:
    return {
        "worker": report.worker,
        "pid": report.pid,
        "started_at": report.started_at,
        "config": report.config,
    }
