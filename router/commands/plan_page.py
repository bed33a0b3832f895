"""A plan as one self-contained HTML page with plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from router.commands.charts import Axis, Bar, Mark, Series, draw_bars, draw_lines, top_of
from router.commands.pages import render_template
from router.commands.plan_view import comparison_row
from router.commands.plan_words import AXES, DOUBTS, gate_facts, say_verdict
from router.planning import sensitivity
from router.planning.figures import STAGE_NAMES, format_figure, list_figures
from router.planning.plans import Plan
from router.planning.sensitivity import Sensitivity
from router.throughput.planner import Allocation
from router.throughput.stages import Stage

_COLOURS: Final[Mapping[Stage, int]] = {Stage.PRFAAS: 1, Stage.PD_P: 2, Stage.PD_D: 3}

_TILES: Final = (
    "lambda_max",
    "threshold",
    "offload_share",
    "egress_gbps",
    "link_headroom",
    "ttft_p90",
)
"""Figures shown large, by key; N_p and N_d come first, in one tile."""


@dataclass(frozen=True, slots=True)
class _Plot:
    title: str
    about: str
    svg: Markup


def render_page(plan: Plan) -> str:
    """Return the page."""
    figures = list_figures(plan)
    return render_template(
        "plan_files/page.html.j2",
        plan=plan,
        verdict=say_verdict(plan),
        doubts=DOUBTS,
        gate_facts=gate_facts(plan),
        tiles=list(_tiles(plan)),
        plots=list(_plots(plan)),
        comparisons=[comparison_row(each) for each in plan.comparisons],
        sensitivities=[_plot_sensitivity(each) for each in plan.sensitivities],
        figures=[(figure, format_figure(figure)) for figure in figures],
    )


def _tiles(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield labels, values and units."""
    by_key = {figure.key: figure for figure in list_figures(plan)}
    yield "N_p / N_d", f"{plan.best.prefill} / {plan.best.decode}", "instances"
    for key in _TILES:
        figure = by_key.get(key)
        if figure is not None and figure.value is not None:
            value, _, unit = format_figure(figure).partition(" ")
            yield figure.label, value, unit
    yield "binds", STAGE_NAMES[plan.point.binding], ""


def _plots(plan: Plan) -> Iterator[_Plot]:
    if plan.sweep:
        yield _plot_sweep(plan)
    yield _plot_allocations(plan)


def _plot_sweep(plan: Plan) -> _Plot:
    """Both ceilings of equation 7 over t, and what is left under all three."""
    point = plan.point
    thresholds = [each.demands.split.threshold for each in plan.sweep]
    low = thresholds[0]
    lines = [
        Series(
            f"{STAGE_NAMES[stage]} ceiling",
            [(t, each.ceilings[stage]) for t, each in zip(thresholds, plan.sweep, strict=True)],
            _COLOURS[stage],
            dashed=stage is Stage.PD_D,
        )
        for stage in Stage
    ]
    borne = [(t, each.rate) for t, each in zip(thresholds, plan.sweep, strict=True)]
    lines.append(Series("Lambda_max", borne, 4))
    decode = point.ceilings[Stage.PD_D]
    t = min(max(point.demands.split.threshold, thresholds[0]), thresholds[-1])
    svg = draw_lines(
        "Ceilings by threshold",
        Axis("threshold t, tokens", low, max(thresholds[-1], low + 1), log=True),
        Axis("requests/s", 0, top_of([point.rate * 2, decode])),
        lines,
        [Mark(t, f"t* = {point.demands.split.threshold:,.0f}")],
    )
    division = f"N_p = {plan.best.prefill}, N_d = {plan.best.decode}"
    about = f"Arrival rates that each stage bears, with {division}."
    return _plot("Ceilings by threshold", about, svg)


def _plot_allocations(plan: Plan) -> _Plot:
    """Lambda_max of every division of the instances; of many, the best for each N_p."""
    best_of: dict[int, Allocation] = {}
    for each in plan.allocations:
        known = best_of.get(each.prefill)
        if known is None or each.solution.rate > known.solution.rate:
            best_of[each.prefill] = each
    rows = [best_of[prefill] for prefill in sorted(best_of)]
    bars = [
        Bar(
            f"{each.prefill} / {each.decode}" if len(rows) <= 12 else f"{each.prefill}",
            each.solution.rate,
            _COLOURS[each.solution.point.binding],
            f"N_p {each.prefill}, N_d {each.decode}: {each.solution.rate:.3g} requests/s,"
            f" {STAGE_NAMES[each.solution.point.binding]} binds",
        )
        for each in rows
    ]
    best = next(i for i, each in enumerate(rows) if each.prefill == plan.best.prefill)
    y = Axis("requests/s", 0, top_of([bar.value for bar in bars]))
    svg = draw_bars("Division of instances", y, "N_p / N_d", bars, best)
    about = (
        "Each with its own best threshold. Blue: PrfaaS binds; orange: PD prefill; green: decode."
    )
    return _Plot("Division of the PD instances", about, Markup(svg))  # noqa: S704 - built and escaped by charts


def _plot_sensitivity(each: Sensitivity) -> _Plot:
    words = AXES[each.axis]
    reactions = each.reactions
    lines = [
        Series("as planned", [(r.value, r.kept) for r in reactions], 5, dashed=True),
        Series("t solved again", [(r.value, r.resolved) for r in reactions], 1),
    ]
    replanned = [(r.value, r.replanned) for r in reactions if r.replanned is not None]
    if replanned:
        lines.append(Series("N_p and N_d too", replanned, 3))
    low, high = reactions[0].value, reactions[-1].value
    hits = each.axis is sensitivity.Axis.CACHE_HITS
    x = Axis(words.label, low, high, log=not hits, percent=hits)
    values = [y for line in lines for _, y in line.points]
    svg = draw_lines(
        words.title,
        x,
        Axis("requests/s", 0, top_of(values)),
        lines,
        [Mark(each.planned, "planned")],
    )
    return _plot(words.title, words.about, svg)


def _plot(title: str, about: str, svg: str) -> _Plot:
    return _Plot(title, about, Markup(svg))  # noqa: S704 - charts escape what they are given
