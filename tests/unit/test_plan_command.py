"""`prfaas plan`: text, JSON, page and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.commands.app import run

EXAMPLES = Path(__file__).parents[2] / "examples/scenarios"
CASE, TOY = (str(EXAMPLES / f"{name}.yaml") for name in ("case-study", "walkthrough-toy"))


def test_text_tells_what_to_do_and_how_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    """Verdict, gates, figures with their source, comparisons, sensitivity, what it rests on."""
    assert run(["plan", CASE]) == 0
    text = capsys.readouterr().out
    assert "Offload prompts of more than 19,605 uncached tokens" in text
    assert text.count("passes") == 3
    for wanted in ("modelled", "quoted", "naive: all prefill remote", "PrfaaS binds", "Rests on"):
        assert wanted in text
    assert "Traceback" not in text


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints the plan for programs, and nothing else."""
    assert run(["plan", TOY, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "offload"
    assert document["figures"]["lambda_max"] == {
        "value": 2.0, "unit": "requests/s", "source": "modelled", "label": "Lambda_max",
    }  # fmt: skip


def test_a_refusal_is_an_answer_unless_it_is_to_be_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gate that refuses is exit code 0, and 1 with `--check`."""
    text = Path(TOY).read_text("utf-8").replace("./profiles", str(EXAMPLES / "profiles"))
    path = tmp_path / "s.yaml"
    path.write_text(text + "gate: {max_kv_gbps: 1}\n", "utf-8")
    assert run(["plan", str(path)]) == 0
    assert "Keep prefills at home: the model gate refuses." in capsys.readouterr().out
    assert run(["plan", str(path), "--check", "--json"]) == 1
    assert run(["plan", TOY, "--check", "--json"]) == 0


def test_the_page_is_written_beside_the_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--html` writes one file; where it cannot, that is one line and exit code 2 at once."""
    page = tmp_path / "plan.html"
    assert run(["plan", TOY, "--html", str(page)]) == 0
    assert page.read_text("utf-8").startswith("<!doctype html>")
    capsys.readouterr()
    assert run(["plan", TOY, "--html", str(tmp_path / "none" / "plan.html")]) == 2
    said = capsys.readouterr()
    assert "cannot be written" in said.err
    assert not said.out


def test_a_scenario_that_cannot_be_used_is_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Faults have their place, and nobody sees a traceback."""
    path = tmp_path / "s.yaml"
    path.write_text("nam: x\n", "utf-8")
    assert run(["plan", str(path)]) == 2
    assert f"{path}:1:1: nam: unknown key; did you mean `name`?" in capsys.readouterr().err
    assert run(["plan", str(tmp_path / "missing.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    text = Path(TOY).read_text("utf-8").replace("./profiles", str(EXAMPLES / "profiles"))
    path.write_text(text + "solve: {extrapolation: error}\n", "utf-8")
    assert run(["plan", str(path)]) == 0
    path.write_text(
        text.replace("tokens: 32000}", "tokens: 64000}") + "solve: {extrapolation: error}\n",
        "utf-8",
    )
    capsys.readouterr()
    assert run(["plan", str(path)]) == 2
    err = capsys.readouterr().err
    assert "64,000 tokens are outside the measured 1,000 to 32,000" in err
    assert err.count("\n") == 1
