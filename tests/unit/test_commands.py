"""The command as a whole: exit codes, one-line faults, no traceback ever."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from router.commands.app import build_app, run

ROOT = Path(__file__).parents[2]


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """`prfaas --version` prints name and version and exits 0."""
    assert run(["--version"]) == 0
    assert re.fullmatch(r"prfaas \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("arguments", [[], ["ctl"], ["config"]])
def test_nothing_asked_shows_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the help is shown; that is still no success."""
    assert run(arguments) == 2
    assert "Usage: prfaas" in capsys.readouterr().out


def test_help_of_options_shows_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    """What an option is without a value is told: brackets would be taken for a style and vanish."""
    assert run(["simulate", "--help"]) == 0
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    assert "else the scenario's number" in shown
    assert " ." not in shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nonsense"], "prfaas: No such command 'nonsense'. (see `prfaas --help`)"),
        (
            ["confg"],
            "prfaas: No such command 'confg'. Did you mean 'config'? (see `prfaas --help`)",
        ),
        (
            ["config", "check"],
            "prfaas: Missing argument 'FILE'. (see `prfaas config check --help`)",
        ),
        (["config", "check", "--jsn", "x"], "prfaas: No such option: --jsn"),
    ],
)
def test_usage_errors_are_one_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be understood is one line on stderr that says where to look, exit code 2."""
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(told)
    assert printed.err.count("\n") == 1


def all_commands() -> Iterator[list[str]]:
    """Every path of words that names a command."""

    def below(command: object, path: list[str]) -> Iterator[list[str]]:
        yield path
        for name, inner in getattr(command, "commands", {}).items():
            yield from below(inner, [*path, name])

    yield from below(typer.main.get_command(build_app()), [])


@pytest.mark.parametrize("path", list(all_commands()), ids=" ".join)
def test_every_command_explains_itself(path: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each command and group has a help text, reachable by -h."""
    assert run([*path, "-h"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0].startswith("Usage: prfaas")
    assert not lines[1].startswith("╭"), "a help text says what the command does"


def test_a_closed_pipe_is_no_noise() -> None:
    """`prfaas config schema | head -1` ends quietly."""
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m router config schema | head -n 1"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.stdout, done.stderr) == ("{\n", "")
