"""`prfaas simulate`: text, JSON, page, records and exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from router.commands.app import run
from router.compose.studies import build_study
from router.settings.scenarios import load_scenario
from router.sim.plants import Conversion, LinkChange
from router.sim.studies import Contestant, find_workload, prepare
from router.sim.tournaments import compare, list_runs, rank, run_all
from router.sim.traffic import SessionTraffic, TraceTraffic

EXAMPLES = Path(__file__).parents[2] / "examples/scenarios"
CASE = str(EXAMPLES / "case-study.yaml")
SMALL = ["--seeds", "2", "--requests", "200", "--jobs", "1"]


def test_text_tells_every_policy_and_that_it_is_modelled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One table a scenario, one row a policy, named as modelled."""
    chosen = [part for each in Contestant for part in ("--policy", each.value)]
    assert run(["simulate", CASE, *SMALL, *chosen]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "modelled" in lines[0]
    assert [line.split()[0] for line in lines[2:9]] == [each.value for each in Contestant]


def test_json_page_and_records_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures with their intervals as one document; a page that loads nothing; CSV of requests."""
    page, records = tmp_path / "s.html", tmp_path / "records"
    files = ["--html", str(page), "--records", str(records), "--policy", "slack"]
    assert run(["simulate", CASE, *SMALL, *files, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (study,) = document["studies"]
    goodput = study["policies"]["slack"]["goodput"]
    assert document["source"] == "modelled"
    assert goodput["mean"] > 0
    assert len(study["policies"]["slack"]["runs"]) == 2
    html = page.read_text("utf-8")
    assert f"{goodput['mean']:.3f} ±" in html
    assert "<svg" in html
    assert "http" not in html.replace("http://www.w3.org", "")
    rows = (records / "1-slack.csv").read_text("utf-8").splitlines()
    assert len(rows) == 201
    assert rows[0].startswith("number,outcome,arrived,total,")


def test_figures_do_not_depend_on_how_many_processes_share_the_runs() -> None:
    """One process or two: the same figures for the same seeds."""
    study = build_study(load_scenario(CASE, {}), requests=100)
    runs = list_runs(study, [Contestant.PAPER, Contestant.SLACK], 2)
    told: list[object] = []
    alone = run_all(runs, 1, told.append)
    assert alone == run_all(runs, 2, told.append)
    assert len(told) == 8


def test_every_shipped_scenario_can_be_simulated() -> None:
    """Each file makes a study with its traffic and what happens to it."""
    files = sorted((EXAMPLES / "simulated").glob("*.yaml"))
    studies = {path.stem: build_study(load_scenario(path, {}), requests=40) for path in files}
    assert len(studies) == 10
    assert isinstance(studies["8-agents"].traffic, SessionTraffic)
    assert isinstance(studies["10-trace"].traffic, TraceTraffic)
    assert [type(each) for each in studies["7-outage"].incidents] == [LinkChange] * 2
    for study in studies.values():
        assert (study.deployment.pds[0].prefill, study.deployment.pds[0].decode) == (3, 5)


def a_scenario(directory: Path, simulation: str) -> str:
    """The case study with this section of its own."""
    text = Path(CASE).read_text("utf-8").replace("../profiles", str(EXAMPLES / "../profiles"))
    path = directory / "s.yaml"
    path.write_text(f"{text}\nsimulation:\n{simulation}\n", "utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("simulation", "told"),
    [
        ("  arrivals: {kind: gamma}", "simulation.arrivals.cv"),
        ("  arrivals: {kind: often}", "simulation.arrivals"),
        (
            "  arrivals: {kind: mmpp, surge: 3, calm_seconds: 0, busy_seconds: 1}",
            "simulation.arrivals.calm_seconds",
        ),
        (
            "  arrivals: {kind: mmpp, surge: 3, calm_seconds: 0.001, busy_seconds: 0.001}",
            "use poisson",
        ),
        ("  surprise: 1", "simulation.surprise"),
        ("  links: [{at_seconds: 1, from: nowhere, gbps: 1}]", "nowhere"),
        ("  conversions: [{at_seconds: 1, instance: pd-east-p9, role: decode}]", "pd-east-p9"),
        (
            "  conversions: [{at_seconds: 1, instance: pd-east-p0, role: decode}]\n  long_loop: {}",
            "leave out conversions",
        ),
    ],
)
def test_what_cannot_be_simulated_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], simulation: str, told: str
) -> None:
    """Faults name their place, exit with 2 and show no traceback."""
    assert run(["simulate", a_scenario(tmp_path, simulation), *SMALL]) == 2
    fault = capsys.readouterr().err
    assert told in fault
    assert "Traceback" not in fault


def test_a_page_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--html` into a directory that is not there ends at once, however much was asked for."""
    path = tmp_path / "none" / "s.html"
    assert run(["simulate", CASE, "--requests", "100000000", "--html", str(path)]) == 2
    assert f"there is no {path.parent}" in capsys.readouterr().err


def test_conversions_and_link_changes_are_read(tmp_path: Path) -> None:
    """What a scenario tells to happen, happens: in SI units, on the instance that it names."""
    path = a_scenario(
        tmp_path,
        "  links: [{at_seconds: 5, from: prfaas-west, gbps: 8}]\n"
        "  conversions: [{at_seconds: 9, instance: pd-east-p0, role: decode, seconds: 3}]",
    )
    change, conversion = build_study(load_scenario(path, {})).incidents
    assert change == LinkChange(5, "prfaas-west-pd-east", 1e9)  # type: ignore[arg-type]
    assert isinstance(conversion, Conversion)
    assert (conversion.instance, conversion.seconds) == ("pd-east-p0", 3)


def test_a_long_loop_is_read_for_the_contestants_with_a_link(tmp_path: Path) -> None:
    """It solves t where the contestant does, and leaves a static t and the baseline alone."""
    study = build_study(
        load_scenario(a_scenario(tmp_path, "  long_loop: {period_seconds: 20, min_gain: 0.1}"), {})
    )
    workload = find_workload(study)
    loops = {each: prepare(study, each, workload).long_loop for each in Contestant}
    tuned, paper = loops[Contestant.TUNED], loops[Contestant.PAPER]
    assert tuned is not None
    assert (tuned.period, tuned.rules.gain) == (20, 0.1)
    assert tuned.threshold is not None
    assert paper is not None
    assert paper.threshold is None
    assert loops[Contestant.HOMOGENEOUS] is loops[Contestant.NAIVE] is None


def test_ratios_are_of_means_with_the_jackknifes_interval() -> None:
    """Twice the goodput in every run is exactly twice; one lean run of the other does not lead."""
    study = build_study(load_scenario(CASE, {}), requests=40)
    figures = run_all(list_runs(study, [Contestant.PAPER], 3), 1, lambda _run: None)
    (paper,) = rank(study, [Contestant.PAPER], 3, figures)
    doubled = replace(paper, runs=[replace(run, goodput=2 * run.goodput) for run in paper.runs])
    exact = compare(doubled, paper, "goodput")
    assert (exact.mean, exact.half) == pytest.approx((2.0, 0.0), abs=1e-9)
    some = zip(paper.runs, (1, 2, 0.01), strict=True)
    lean = [replace(run, goodput=goodput) for run, goodput in some]
    flat = [replace(run, goodput=2.0) for run in paper.runs]
    led = compare(replace(paper, runs=flat), replace(paper, runs=lean), "goodput")
    assert led.mean == pytest.approx(6 / 3.01)
    assert led.half > 0
