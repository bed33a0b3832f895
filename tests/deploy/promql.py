"""Reads PromQL: which series an expression selects, and the labels that it relies on."""

import re
from collections.abc import Iterator

import promql_parser as pp
from metric_names import PREFIX, label_values, series_labels

TARGET_LABELS = frozenset({"job"})
"""Labels that Prometheus itself adds to every series."""


def selected_metrics(expression: str) -> set[str]:
    """Return the names of our series in an expression; raise ValueError if it does not parse."""
    return {
        node.name
        for node in nodes(expression)
        if isinstance(node, pp.VectorSelector) and (node.name or "").startswith(PREFIX)
    }


def faults(expression: str) -> Iterator[str]:
    """Yield what an expression names that the product does not export."""
    known = series_labels()
    ours = selected_metrics(expression)
    available: set[str] = set(TARGET_LABELS)
    grouped: set[str] = set()
    for node in nodes(expression):
        if isinstance(node, pp.AggregateExpr) and node.modifier is not None:
            grouped.update(node.modifier.labels)
        if not isinstance(node, pp.VectorSelector) or node.name not in ours:
            continue
        if node.name not in known:
            yield f"unknown metric {node.name}"
            continue
        available |= known[node.name]
        for matcher in node.matchers.matchers:
            yield from matcher_faults(node.name, matcher)
    yield from (f"grouped by {label}, which nothing here carries" for label in grouped - available)


def matcher_faults(series: str, matcher: pp.Matcher) -> Iterator[str]:
    """Yield why a label matcher can never select anything of a series."""
    if matcher.name not in series_labels()[series] | TARGET_LABELS:
        yield f"{series} has no label {matcher.name}"
    values = label_values(series, matcher.name)
    pattern = matcher.value if matcher.op == pp.MatchOp.Re else re.escape(matcher.value)
    if values is not None and not any(re.fullmatch(pattern, value) for value in values):
        yield f"{series} never has {matcher.name} {matcher.value}"


def nodes(expression: str) -> list[pp.Expr]:
    """Return every node of the parsed expression, parents first."""
    found: list[pp.Expr] = []
    pp.walk(pp.parse(expression), pre_visit=found.append)
    return found
