"""The Grafana dashboard."""

import json
from pathlib import Path
from typing import Any

import pytest
from metric_names import HISTOGRAMS, LABELS, PREFIX
from promql import faults, selected_metrics

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "deploy/grafana/prfaas-router.json").read_text()
)
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
SAMPLE_VALUES = {"$__rate_interval": "5m", "$__range": "1h", "$link": ".*", "$instance": ".*"}


def expressions(panel: dict[str, Any]) -> list[str]:
    """Return the expressions of a panel, Grafana's variables replaced by a value of theirs."""
    found = []
    for target in panel["targets"]:
        expression = target["expr"]
        for variable, value in SAMPLE_VALUES.items():
            expression = expression.replace(variable, value)
        found.append(expression)
    return found


def test_the_data_source_is_a_variable() -> None:
    """The dashboard can be imported anywhere: every panel and target asks the chosen source."""
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    for panel in PANELS.values():
        assert panel["datasource"] == chosen
        assert all(target["datasource"] == chosen for target in panel["targets"])


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    """Each panel has one id, and each cell of the 24 columns at most one panel."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (column, line)
        for grid in (panel["gridPos"] for panel in panels)
        for column in range(grid["x"], grid["x"] + grid["w"])
        for line in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(column for column, _ in cells) < 24


@pytest.mark.parametrize("title", PANELS)
def test_every_panel_explains_itself(title: str) -> None:
    """A panel tells in a sentence what it shows and gives its numbers a unit."""
    panel = PANELS[title]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert all(target["legendFormat"] for target in panel["targets"])


@pytest.mark.parametrize("title", PANELS)
def test_every_panel_asks_for_what_the_product_exports(title: str) -> None:
    """Each expression parses, names only existing metrics and labels, and leaves no variable."""
    for expression in expressions(PANELS[title]):
        assert "$" not in expression
        assert list(faults(expression)) == []


def test_every_metric_is_shown() -> None:
    """No metric of the contract is exported for nobody to see."""
    shown = {
        metric
        for panel in PANELS.values()
        for expression in expressions(panel)
        for metric in selected_metrics(expression)
    }
    suffix = dict.fromkeys(HISTOGRAMS, "_bucket")
    assert shown == {f"{PREFIX}{name}{suffix.get(name, '')}" for name in LABELS}
