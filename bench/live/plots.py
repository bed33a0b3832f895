"""Series of a scene -> plots. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from bench.live.claims import Outcome, mean_ttft, within
from bench.live.plants import BUDGET_SECONDS
from bench.live.watching import Look, View
from router.commands.charts import Axis, Mark, Series, draw_lines, top_of
from router.domain.units import Seconds, from_gbps

_POINTS: Final = 80
"""Points of a line: one a second or two, and a page that stays small."""
_BIN_SECONDS: Final = 5.0

_Point = tuple[float, float]


def draw_outcome(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Yield titles and SVGs: the threshold, the bytes on the link, and times to the first token."""
    ends = max(
        [look.at for look in outcome.looks] + [visit.at for visit in outcome.visits], default=0.0
    )
    if not ends:
        return
    time = Axis("seconds", 0, ends)
    marks = [Mark(at, what) for at, what in outcome.marks]
    for title, label, series in (
        ("Threshold", "tokens", _thresholds(outcome)),
        ("Bytes on the link", "GB", _bytes(outcome)),
        ("Time to the first token, means of 5 s", "seconds", _latencies(outcome)),
    ):
        drawn = [each for each in series if each.points]
        high = top_of([y for each in drawn for _, y in each.points])
        plot = f"{outcome.scene}: {title}"
        yield title, draw_lines(plot, time, Axis(label, 0, high), drawn, marks)


def _thresholds(outcome: Outcome) -> list[Series]:
    return [
        Series(f"gateway {1 + number}", _read(outcome, number, lambda view: view.threshold), colour)
        for number, colour in ((0, 1), (1, 2))
    ]


def _bytes(outcome: Outcome) -> list[Series]:
    looks = _thin(outcome.looks)
    return [
        Series("booked by both gateways", [(each.at, each.booked / 1e9) for each in looks], 1),
        Series("left to cross", [(each.at, each.crossing / 1e9) for each in looks], 2),
        Series(
            f"{BUDGET_SECONDS:g} s of the link",
            [(each.at, from_gbps(each.gbps) * BUDGET_SECONDS / 1e9) for each in looks],
            5,
            dashed=True,
        ),
    ]


def _latencies(outcome: Outcome) -> list[Series]:
    remote = [visit for visit in outcome.visits if visit.offloaded]
    local = [visit for visit in outcome.visits if not visit.offloaded]
    return [
        Series(name, [(at, y) for at in _bins(outcome) if math.isfinite(
            y := mean_ttft(within(visits, at - _BIN_SECONDS / 2, at + _BIN_SECONDS / 2))
        )], colour)
        for name, visits, colour in (("prfaas", remote, 1), ("local", local, 2))
    ]  # fmt: skip


def _bins(outcome: Outcome) -> list[Seconds]:
    last = max([visit.at for visit in outcome.visits], default=0.0)
    return [(each + 0.5) * _BIN_SECONDS for each in range(int(last / _BIN_SECONDS) + 1)]


def _read(outcome: Outcome, replica: int, value: Callable[[View], float]) -> list[_Point]:
    views = [(look.at, look.views[replica]) for look in _thin(outcome.looks)]
    return [(at, float(value(view))) for at, view in views if view is not None]


def _thin(items: Sequence[Look]) -> Sequence[Look]:
    return items[:: max(1, math.ceil(len(items) / _POINTS))]
