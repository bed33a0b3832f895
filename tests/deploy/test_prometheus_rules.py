"""The scrape configuration and the alerting rules."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from promql import faults, selected_metrics

RULES = Path(__file__).parents[2] / "deploy/prometheus/alerts.yml"
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}


def test_the_configuration_loads_the_rules(root: Path) -> None:
    """Prometheus names the rule file that lies beside its configuration."""
    config = yaml.safe_load((root / "deploy/prometheus/prometheus.yml").read_text())
    assert config["rule_files"] == [RULES.name]
    jobs = [job["job_name"] for job in config["scrape_configs"]]
    assert len(jobs) == len(set(jobs))


def test_the_gateway_keeps_its_own_instance_label(root: Path) -> None:
    """The gateway's label `instance` names an engine, so the scrape must not rename it."""
    config = yaml.safe_load((root / "deploy/prometheus/prometheus.yml").read_text())
    (gateway,) = [job for job in config["scrape_configs"] if job["job_name"] == "prfaas-gateway"]
    assert gateway["honor_labels"] is True


def test_alert_names_are_unique() -> None:
    """No rule shadows another, within a group or between two."""
    names = [rule["alert"] for group in GROUPS for rule in group["rules"]]
    assert sorted(names) == sorted(set(names))
    assert len({group["name"] for group in GROUPS}) == len(GROUPS)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_is_well_formed(name: str) -> None:
    """An alert has a Prometheus duration, a known severity, and says what happens and why."""
    alert = ALERTS[name]
    assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Prfaas[A-Za-z]+", name)
    assert re.fullmatch(r"\d+[smh]", alert.get("for", "0s"))
    assert alert["labels"]["severity"] in {"page", "ticket"}
    assert set(alert["annotations"]) == {"summary", "description"}


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_names_what_the_product_exports(name: str) -> None:
    """An alert's expression parses, and its metrics and labels exist."""
    assert list(faults(ALERTS[name]["expr"])) == []


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_mentions_only_labels_that_survive(name: str) -> None:
    """A label that the annotations print is one that the expression keeps."""
    expression = ALERTS[name]["expr"]
    printed = set(re.findall(r"\$labels\.(\w+)", str(ALERTS[name]["annotations"])))
    kept = {label for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(", ")}
    assert printed <= (kept if selected_metrics(expression) else {"job", "instance"})


@pytest.mark.parametrize(
    "name",
    [
        "PrfaasLinkCongested",
        "PrfaasIndexSourceNotSynced",
        "PrfaasFallbacksBurning",
        "PrfaasStoreDown",
        "PrfaasNoLeader",
        "PrfaasAllRemoteRefused",
    ],
)
def test_the_parts_that_fail_have_an_alert(name: str) -> None:
    """Each way in which the system degrades without an error is told to somebody."""
    assert name in ALERTS


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("sum(prfaas_no_such_metric)", "unknown metric prfaas_no_such_metric"),
        ("prfaas_link_up{zone='a'}", "prfaas_link_up has no label zone"),
        ("prfaas_kv_bytes_total{outcome='lost'}", "prfaas_kv_bytes_total never has outcome lost"),
        ("max by (zone) (prfaas_link_up)", "grouped by zone, which nothing here carries"),
    ],
)
def test_the_check_itself_finds_faults(expression: str, fault: str) -> None:
    """The check of expressions refuses an unknown metric, label or value, and a lost grouping."""
    assert list(faults(expression)) == [fault]


def test_the_check_itself_refuses_what_does_not_parse() -> None:
    """An expression with an open parenthesis is an error and not an empty result."""
    with pytest.raises(ValueError, match="parenthesis"):
        list(faults("sum(rate(prfaas_store_up[5m])"))
