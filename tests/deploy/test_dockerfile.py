"""The Dockerfile: linted, and read for what a linter does not know."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HADOLINT = Path(sys.executable).with_name("hadolint")


@pytest.fixture(scope="module")
def instructions(root: Path) -> list[tuple[str, str]]:
    """Return the (keyword, arguments) of each instruction, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (root / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [
        (keyword, arguments)
        for keyword, _, arguments in (line.strip().partition(" ") for line in lines)
        if keyword
    ]


def arguments_of(instructions: list[tuple[str, str]], keyword: str) -> list[str]:
    return [arguments for name, arguments in instructions if name == keyword]


def test_hadolint_finds_nothing(root: Path) -> None:
    """Hadolint passes with no rule ignored, in the file or by a configuration."""
    assert "hadolint ignore" not in (root / "Dockerfile").read_text()
    linted = subprocess.run(
        [HADOLINT, "--no-color", "--failure-threshold", "style", "Dockerfile"],
        cwd=root,
        env={"HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (linted.returncode, linted.stdout, linted.stderr) == (0, "", "")


def test_two_stages_start_from_one_pinned_image(instructions: list[tuple[str, str]]) -> None:
    """Both stages start from the same tagged slim Python 3.12, and only the first is named."""
    first, second = arguments_of(instructions, "FROM")
    assert first == f"{second} AS build"
    assert second.startswith("python:3.12-slim")


def test_the_image_runs_as_a_numeric_user(instructions: list[tuple[str, str]]) -> None:
    """The last USER is a number other than root's, as `runAsNonRoot` wants it."""
    user = arguments_of(instructions, "USER")[-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


def test_dependencies_are_hash_checked(instructions: list[tuple[str, str]]) -> None:
    """Each pip call checks hashes, or installs the wheel that was built here and nothing else."""
    scripts = arguments_of(instructions, "RUN")
    calls = [call for script in scripts for call in re.split(r"&&", script) if " pip " in call]
    assert calls
    for call in calls:
        assert "--require-hashes" in call or "--no-deps" in call, call
        assert "--no-cache-dir" in call, call


def test_the_process_is_the_product_and_gets_the_signal(
    instructions: list[tuple[str, str]],
) -> None:
    """No shell stands between the signal that stops the container and the process that drains."""
    assert arguments_of(instructions, "STOPSIGNAL") == ["SIGTERM"]
    (entrypoint,) = arguments_of(instructions, "ENTRYPOINT")
    (command,) = arguments_of(instructions, "CMD")
    assert json.loads(entrypoint) == ["prfaas"]
    assert json.loads(command) == ["serve", "--config", "/etc/prfaas/config.yaml"]


def test_the_health_check_is_python_that_asks_health(
    instructions: list[tuple[str, str]],
) -> None:
    """The health check needs no tool that a slim image lacks."""
    (check,) = arguments_of(instructions, "HEALTHCHECK")
    python, flag, script = json.loads(check[check.index("[") :])
    assert (python, flag) == ("python", "-c")
    compile(script, "HEALTHCHECK", "exec")
    assert "http://127.0.0.1:8000/health" in script


def test_labels_follow_the_package(root: Path, instructions: list[tuple[str, str]]) -> None:
    """The image's labels carry the version and license of pyproject.toml."""
    (labels,) = arguments_of(instructions, "LABEL")
    project = (root / "pyproject.toml").read_text()
    for label, key in (("version", "version"), ("licenses", "license")):
        (value,) = re.findall(rf'^{key} = "([^"]+)"', project, flags=re.MULTILINE)
        assert f'org.opencontainers.image.{label}="{value}"' in labels


def test_the_build_context_holds_what_is_copied_and_no_more(
    root: Path, instructions: list[tuple[str, str]]
) -> None:
    """The context starts empty and lets in exactly the sources of the COPY instructions."""
    ignore = [
        line
        for line in (root / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert ignore[0] == "*"
    admitted = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    copied = {
        source
        for arguments in arguments_of(instructions, "COPY")
        if not arguments.startswith("--from=")
        for source in arguments.split()[:-1]
    }
    assert copied == admitted
    for source in copied:
        assert (root / source).exists(), source
