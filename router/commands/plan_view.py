"""A plan as text for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router.commands.plan_words import AXES, DOUBTS, OPTIONS, gate_facts, say_verdict
from router.planning.figures import STAGE_NAMES, format_figure, list_figures
from router.planning.plans import Comparison, Plan
from router.planning.sensitivity import Axis, Sensitivity

_WIDTH: Final = 120
"""Columns of piped output: terminals tell their own."""

_COMPARED: Final = (
    "option",
    "PrfaaS / P / D",
    "t",
    "req/s",
    "plan gains",
    "TTFT mean / P90, s",
    "cost",
    "req/s a cost",
)


def show_plan(plan: Plan) -> None:
    """Print a plan."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    scenario = plan.scenario
    console.print(f"{scenario.name} ({scenario.model})", markup=False, style="bold")
    if scenario.description:
        console.print(scenario.description, markup=False, style="dim")
    console.print(f"\n{say_verdict(plan)}\n", markup=False, style="bold")
    if scenario.deployment.remotes:
        console.print(_table("", ("gate", "", ""), _gate_rows(plan)))
    console.print(f"\n{STAGE_NAMES[plan.point.binding]} binds.\n", markup=False)
    console.print(_table("", ("figure", "", "how known"), _figure_rows(plan), right=(1,)))
    compared = [comparison_row(each) for each in plan.comparisons]
    console.print(_table("\nCompared", _COMPARED, compared, right=range(1, len(_COMPARED))))
    for each in plan.sensitivities:
        title = f"\n{AXES[each.axis].title}"
        console.print(_table(title, _columns(each), _reaction_rows(each), right=range(5)))
    bases = [(each.name, each.source.value, each.note) for each in scenario.rests_on]
    console.print(_table("\nRests on", ("", "how known", ""), bases))
    console.print()
    for note in plan.notes:
        console.print(f"- {note}", markup=False)


def _table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()
) -> Table:
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i in right else "left")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def _gate_rows(plan: Plan) -> Iterator[Sequence[str]]:
    facts = gate_facts(plan)
    for verdict in plan.verdicts:
        reasons = "; ".join(DOUBTS[doubt] for doubt in verdict.doubts)
        said = f"{reasons} ({facts[verdict.gate]})" if reasons else facts[verdict.gate]
        yield verdict.gate.value, "passes" if verdict.passed else "REFUSES", said


def _figure_rows(plan: Plan) -> Iterator[Sequence[str]]:
    for figure in list_figures(plan):
        yield figure.label, format_figure(figure), figure.source.value


def comparison_row(each: Comparison) -> Sequence[str]:
    """Return an option's cells: name, instances, t, rate, gain, TTFT, cost, rate a cost."""
    remote = sum(pool.instances for pool in each.deployment.remotes)
    prefill = sum(pd.prefill for pd in each.deployment.pds)
    decode = sum(pd.decode for pd in each.deployment.pds)
    demands = each.point.demands
    match demands.offload_share:
        case 0.0:
            threshold = "-"
        case 1.0:
            threshold = "0"
        case _:
            threshold = f"{demands.split.threshold:,.0f}"
    return (
        OPTIONS[each.option],
        f"{remote} / {prefill} / {decode}",
        threshold,
        f"{each.point.rate:.4g}",
        "-" if each.gain is None else f"x {each.gain:.2f}",
        "-" if each.ttft is None else f"{each.ttft.mean:.2f} / {each.ttft.p90:.2f}",
        "-" if each.cost is None else f"{each.cost:,.4g}",
        "-" if not each.cost else f"{each.point.rate / each.cost:.3g}",
    )


def _columns(each: Sensitivity) -> Sequence[str]:
    return (AXES[each.axis].label, "as planned", "t solved again", "t", "N_p too")


def _reaction_rows(each: Sensitivity) -> Iterator[Sequence[str]]:
    for reaction in each.reactions:
        planned = " *" if abs(reaction.value - each.planned) < 1e-9 else ""
        value = f"{reaction.value:.0%}" if each.axis is Axis.CACHE_HITS else f"{reaction.value:.3g}"
        yield (
            value + planned,
            f"{reaction.kept:.4g}",
            f"{reaction.resolved:.4g}",
            f"{reaction.threshold:,.0f}",
            "-" if reaction.replanned is None else f"{reaction.replanned:.4g}",
        )
