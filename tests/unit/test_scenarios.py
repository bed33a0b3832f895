"""Scenario files: what they may say, and where a fault is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from router.compose.models import CompositionError
from router.compose.scenarios import build_scenario
from router.settings import SettingsError
from router.settings.scenarios import load_scenario
from router.throughput.curves import OutOfRange
from router.throughput.demands import DemandTable
from router.throughput.planner import tabulate
from router.throughput.workloads import Atoms, Histogram, Split

EXAMPLES = Path(__file__).parents[2] / "examples/scenarios"

PROFILE = {
    "model": "m",
    "revision": "1",
    "hardware": "one",
    "engine": "none",
    "date": "2026-04-16",
    "source": "modelled",
    "points": [
        {"tokens": 1000, "kv_bytes": 10_000_000, "prefill_seconds": 0.1},
        {"tokens": 9000, "kv_bytes": 90_000_000, "prefill_seconds": 0.9},
    ],
}

SCENARIO = """\
name: a test
model: m
clusters:
  - {name: far, kind: prfaas, instances: 2, profile: ./p.yaml}
  - {name: home, kind: pd, instances: 3, profile: ./p.yaml}
links:
  - {from: far, to: home, gbps: 10}
workload:
  lengths: {kind: lengths, lengths: [{tokens: 2000}, {tokens: 8000, weight: 3}]}
decode: {max_concurrency: 10}
"""


def write(directory: Path, text: str = SCENARIO, **profile: object) -> Path:
    """Write a scenario and the profile that it names."""
    (directory / "p.yaml").write_text(yaml.safe_dump({**PROFILE, **profile}), "utf-8")
    path = directory / "s.yaml"
    path.write_text(text, "utf-8")
    return path


def faults(path: Path) -> list[str]:
    """The faults of a scenario, each without its directory."""
    with pytest.raises(SettingsError) as caught:
        load_scenario(path, {})
    return [str(fault).replace(f"{path.parent}/", "") for fault in caught.value.faults]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_scenario_loads(path: Path) -> None:
    """The examples are sound."""
    assert build_scenario(load_scenario(path, {})).deployment.pds


def test_a_scenario_becomes_pools_and_traffic(tmp_path: Path) -> None:
    """Counts, bandwidth, decode rules and lengths arrive in SI units."""
    scenario = build_scenario(load_scenario(write(tmp_path), {}))
    remote, pd = scenario.deployment.remotes[0], scenario.deployment.pds[0]
    assert (remote.name, remote.instances, remote.egress) == ("far", 2, 1.25e9)
    assert (pd.name, pd.instances, pd.rules.slots) == ("home", 3, 10)
    assert (pd.rules.step_seconds, pd.rules.output_tokens) == (0.025, 1024)
    assert scenario.workload == Atoms.of({2000: 1, 8000: 3})
    assert scenario.baseline.instances == 5
    assert scenario.prices is None


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("name: a test", "nam: a test", "s.yaml:1:1: nam: unknown key; did you mean `name`?"),
        ("gbps: 10", "gbps: fast", "s.yaml:7:33: links[0].gbps: must be a number (got 'fast')"),
        ("kind: prfaas", "kind: prfas", "s.yaml:4:23: clusters[0].kind: must be one of pd, prfaas;"
         " did you mean `prfaas`? (got 'prfas')"),
        ("name: far", "name: home", "s.yaml:5:12: clusters[1].name: the cluster name 'home' is"
         " already taken"),
        ("from: far", "from: nowhere", "s.yaml:7:12: links[0].from: must name a cluster of kind"
         " prfaas (got 'nowhere')"),
        ("to: home", "to: far", "s.yaml:7:21: links[0].to: must name a cluster of kind pd"
         " (got 'far')"),
        ("max_concurrency: 10", "max_concurrency: 0", "s.yaml:10:27: decode.max_concurrency: must"
         " be greater than 0 (got 0)"),
        ("kind: lengths", "kind: length", "s.yaml:9:19: workload.lengths.kind: must be one of"
         " lognormal, histogram, lengths, trace; did you mean `lengths`? (got 'length')"),
        ("instances: 2", "instances: 1000000000", "s.yaml:4:42: clusters[0].instances: must be at"
         " most 100000 (got 1000000000)"),
        ("gbps: 10", "gbps: 1.0e+308", "s.yaml:7:33: links[0].gbps: must be at most 1000000000000.0"
         " (got 1e+308)"),
        ("{max_concurrency: 10}", "{max_concurrency: 10, tokens_per_second_slo: 1.0e-300}",
         "s.yaml:10:54: decode.tokens_per_second_slo: must be at least 1e-09 (got 1e-300)"),
        ("model: m", "model: other", "s.yaml:4:54: clusters[0].profile: p.yaml is a profile of"
         " model 'm', not of 'other'"),
        ("{name: far, kind: prfaas, instances: 2, profile: ./p.yaml}",
         "{name: far, kind: prfaas, instances: 2, profile: ./none.yaml}",
         "s.yaml:4:54: clusters[0].profile: none.yaml cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_a_fault_has_its_place(tmp_path: Path, old: str, new: str, fault: str) -> None:
    """Every kind of fault names file, line, column and setting."""
    found = faults(write(tmp_path, SCENARIO.replace(old, new)))
    assert fault in found


def test_names_between_sections_must_agree(tmp_path: Path) -> None:
    """Prices name every cluster, prefill counts fit their cluster, somebody decodes."""
    text = SCENARIO + (
        "prices: {gpu: {far: 2, nowhere: 1}}\n"
        "configured: {threshold: 1, prefill: {home: 4, far: 1}}\n"
    )
    said = "\n".join(faults(write(tmp_path, text)))
    assert "no cluster is named 'nowhere'" in said
    assert "has no price for home" in said
    assert "must be at most the cluster's instances (3; got 4)" in said
    assert "no PD cluster is named 'far'" in said
    alone = SCENARIO.replace("kind: pd", "kind: prfaas").replace("to: home", "to: home")
    assert "somebody decodes" in "\n".join(faults(write(tmp_path, alone)))


def test_a_faulty_profile_is_told_in_its_own_file(tmp_path: Path) -> None:
    """What is wrong inside a profile has the place in the profile."""
    points = [{"tokens": 10, "kv_bytes": 1, "prefill_seconds": -1}, *PROFILE["points"]]  # type: ignore[misc]
    found = faults(write(tmp_path, points=points))
    assert any("p.yaml:" in each and "prefill_seconds" in each for each in found)


def test_variables_are_read(tmp_path: Path) -> None:
    """`${VAR}` reads the environment, and an unset one is a fault."""
    text = SCENARIO.replace("name: a test", "name: ${TITLE}")
    path = write(tmp_path, text)
    assert load_scenario(path, {"TITLE": "mine"}).settings.name == "mine"
    assert any("TITLE is not set" in each for each in faults(path))


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ("{kind: lognormal, mu: 9, sigma: 1, min_tokens: 9, max_tokens: 9}", "greater than min"),
        ("{kind: histogram, bounds: [1, 1], weights: [1]}", "must increase"),
        ("{kind: histogram, bounds: [1, 2], weights: [1, 1]}", "must be 1, one for each bin"),
        ("{kind: histogram, bounds: [1, 2], weights: [0]}", "must not all be 0"),
        ("{kind: lengths, lengths: []}", "at least 1 element"),
    ],
)
def test_lengths_must_make_a_distribution(tmp_path: Path, lengths: str, said: str) -> None:
    """Bounds out of order and weights that are none are faults of the file."""
    text = SCENARIO.replace(SCENARIO.splitlines()[8], f"  lengths: {lengths}")
    assert any(said in each for each in faults(write(tmp_path, text)))


def test_a_histogram_and_cache_hits(tmp_path: Path) -> None:
    """Bins are taken as they are; a cached share shortens every prompt."""
    line = (
        "  lengths: {kind: histogram, bounds: [1000, 3000], weights: [1]}\n  cache_hit_ratio: 0.5"
    )
    text = SCENARIO.replace(SCENARIO.splitlines()[8], line)
    scenario = build_scenario(load_scenario(write(tmp_path, text), {}))
    assert scenario.workload == Histogram.of((1000, 3000), (1,)).scaled(0.5)
    assert scenario.cache_hit_ratio == 0.5


def trace(directory: Path, **options: object) -> Path:
    """Write a scenario whose lengths are those of a trace of two turns."""
    lines = [
        {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]},
        {"timestamp": 9, "input_length": 1600, "output_length": 1, "hash_ids": [1, 2, 3, 4]},
    ]
    (directory / "t.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    given = json.dumps({"kind": "trace", "path": "./t.jsonl", **options})
    return write(directory, SCENARIO.replace(SCENARIO.splitlines()[8], f"  lengths: {given}"))


def test_a_trace_becomes_uncached_lengths(tmp_path: Path) -> None:
    """The second turn needs only what the first did not compute, unless reuse is off."""
    scenario = build_scenario(load_scenario(trace(tmp_path), {}))
    assert scenario.workload == Atoms.of({1024: 1, 576: 1})
    plain = build_scenario(load_scenario(trace(tmp_path, reuse=False), {}))
    assert plain.workload == Atoms.of({1024: 1, 1600: 1})
    small = build_scenario(load_scenario(trace(tmp_path, cache_blocks=1), {}))
    assert small.workload == Atoms.of({1024: 1, 1600 - 512: 1})


def test_a_trace_that_is_none_is_one_line(tmp_path: Path) -> None:
    """A missing, empty or malformed trace is told with its path and line."""
    path = trace(tmp_path)
    loaded = load_scenario(path, {})
    (tmp_path / "t.jsonl").write_text("{}", "utf-8")
    with pytest.raises(CompositionError, match=r"t\.jsonl:line 1: not a request"):
        build_scenario(loaded)
    (tmp_path / "t.jsonl").write_text("", "utf-8")
    with pytest.raises(CompositionError, match="holds no request"):
        build_scenario(loaded)
    (tmp_path / "t.jsonl").unlink()
    with pytest.raises(CompositionError, match="cannot be read"):
        build_scenario(loaded)


def test_extrapolation_may_be_refused(tmp_path: Path) -> None:
    """With `extrapolation: error` lengths outside the profile's points cannot be planned."""
    text = SCENARIO.replace("tokens: 8000", "tokens: 10000") + "solve: {extrapolation: error}\n"
    scenario = build_scenario(load_scenario(write(tmp_path, text), {}))
    with pytest.raises(OutOfRange, match="10,000 tokens are outside"):
        tabulate(scenario.deployment, scenario.workload)
    table = DemandTable.of(scenario.workload, (), ())
    assert table.at(Split(0)).long_tokens == 8000
