"""Reads PromQL: which series an expression selects, and the labels that it relies on."""

from collections.abc import Iterator

import promql_parser as pp
from metric_names import PREFIX, series_labels

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
    available: set[str] = set(TARGET_LABELS)
    grouped: set[str] = set()
    for node in nodes(expression):
        if isinstance(node, pp.AggregateExpr) and node.modifier is not None:
            grouped.update(node.modifier.labels)
        if not isinstance(node, pp.VectorSelector) or node.name not in selected_metrics(expression):
            continue
        if node.name not in known:
            yield f"unknown metric {node.name}"
            continue
        available |= known[node.name]
        for matcher in node.matchers.matchers:
            if matcher.name not in known[node.name] | TARGET_LABELS:
                yield f"{node.name} has no label {matcher.name}"
    yield from (f"grouped by {label}, which nothing here carries" for label in grouped - available)


def nodes(expression: str) -> list[pp.Expr]:
    """Return every node of the parsed expression, parents first."""
    found: list[pp.Expr] = []
    pp.walk(pp.parse(expression), pre_visit=found.append)
    return found
