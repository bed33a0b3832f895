"""Results of simulations as rows, as a document and as a page. All figures are modelled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from markupsafe import Markup

from router.commands.charts import Axis, Bar, draw_bars, top_of
from router.commands.pages import render_template
from router.sim.statistics import Interval
from router.sim.studies import Contestant, Study
from router.sim.tournaments import Standing

COLUMNS: Final = (
    "policy", "goodput/s", "in time", "TTFT mean", "P50", "P90", "P99", "rejected", "offloaded",
    "link Gbit/s",
)  # fmt: skip

_COLOURS: Final[Mapping[Contestant, int]] = {
    Contestant.EXPECTED: 3,
    Contestant.SLACK: 4,
    Contestant.PAPER: 1,
    Contestant.TUNED: 1,
    Contestant.TOTAL: 2,
    Contestant.HOMOGENEOUS: 5,
    Contestant.NAIVE: 5,
}

_PLOTS: Final = (
    ("goodput", "Goodput", "requests/s in time"),
    ("p50", "TTFT, median", "seconds"),
    ("p90", "TTFT, 90th percentile", "seconds"),
    ("p99", "TTFT, 99th percentile", "seconds"),
)

_BYTES_TO_GBIT = 8e-9


@dataclass(frozen=True, slots=True)
class StudyResult:
    """A study and how each contestant did."""

    study: Study
    standings: Sequence[Standing]


def list_rows(result: StudyResult) -> Iterator[Sequence[str]]:
    """Yield one row for each contestant: means and half intervals."""
    for each in result.standings:
        figures = each.figures
        yield (
            each.contestant.value,
            _pm(figures["goodput"], 3),
            f"{figures['attainment'].mean:.1%}",
            *(_pm(figures[name], 2) for name in ("mean", "p50", "p90", "p99")),
            f"{figures['rejected'].mean:.1%}",
            f"{figures['offloaded'].mean:.0%}",
            f"{figures['kv_bytes_rate'].mean * _BYTES_TO_GBIT:.1f}",
        )


def describe_results(results: Sequence[StudyResult], seeds: int) -> dict[str, object]:
    """Return the results as a JSON document; a latency that some never had is null."""
    return {
        "source": "modelled",
        "seeds": seeds,
        "studies": [
            {
                "name": result.study.name,
                "requests": result.study.requests,
                "policies": {
                    each.contestant.value: {
                        name: {"mean": _finite(value.mean), "half_interval": _finite(value.half)}
                        for name, value in each.figures.items()
                    }
                    | {"runs": [_finite_values(asdict(run)) for run in each.runs]}
                    for each in result.standings
                },
            }
            for result in results
        ],
    }


def render_page(results: Sequence[StudyResult], seeds: int) -> str:
    """Return one self-contained page with tables and plots."""
    return render_template(
        "simulate_files/page.html.j2",
        seeds=seeds,
        columns=COLUMNS,
        studies=[
            {
                "name": result.study.name,
                "note": result.study.note,
                "requests": result.study.requests,
                "rows": list(list_rows(result)),
                "plots": list(_plots(result)),
            }
            for result in results
        ],
    )


def _plots(result: StudyResult) -> Iterator[tuple[str, Markup]]:
    for figure, title, unit in _PLOTS:
        values = [each.figures[figure].mean for each in result.standings]
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            continue
        bars = [
            Bar(
                each.contestant.value,
                value if math.isfinite(value) else 0.0,
                _COLOURS[each.contestant],
                f"{each.contestant.value}: {_pm(each.figures[figure], 3)} {unit}",
            )
            for each, value in zip(result.standings, values, strict=True)
        ]
        wanted = max(finite) if figure == "goodput" else min(finite)
        svg = draw_bars(title, Axis(unit, 0, top_of(finite)), "", bars, values.index(wanted))
        yield title, Markup(svg)  # noqa: S704 - built and escaped by charts


def _pm(interval: Interval, digits: int) -> str:
    if not math.isfinite(interval.mean):
        return "∞"
    return f"{interval.mean:.{digits}f} ± {interval.half:.{digits}f}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _finite_values(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in figures.items()}
