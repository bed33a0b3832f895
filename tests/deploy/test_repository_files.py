"""What a fresh clone rests on: the locks, the CI entry, and no address of a private place."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKS = ("runtime.txt", "build.txt", "dev.txt", "bench.txt")

# Split, so that this file does not name what it forbids.
REGISTRY_HOSTS = tuple(
    ".".join(labels)
    for labels in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("docker", "io"),
        ("docker", "com"),
        ("ghcr", "io"),
        ("quay", "io"),
        ("gcr", "io"),
        ("npmjs", "org"),
    )
)


def entries(lock: Path) -> list[str]:
    """Return the entries of a lock, each with its continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", lock.read_text(), flags=re.MULTILINE)
    return [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip()]


@pytest.mark.parametrize("name", LOCKS)
def test_every_requirement_is_pinned_and_hash_checked(root: Path, name: str) -> None:
    """Each entry of a lock is one exact version with at least one sha256, and no option."""
    locked = entries(root / "requirements" / name)
    assert locked
    for entry in locked:
        requirement, *hashes = entry.split(" --hash=")
        pins = [specifier.operator for specifier in Requirement(requirement).specifier]
        assert pins == ["=="], entry
        assert hashes, entry
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value.strip()) for value in hashes)


def test_the_runtime_lock_holds_every_dependency(root: Path) -> None:
    """What pyproject.toml asks for is in the runtime lock, at a version that it accepts."""
    project = (root / "pyproject.toml").read_text()
    section = project[project.index("dependencies = [") :]
    section = section[: section.index("\n]")]
    wanted = [Requirement(text) for text in re.findall(r'^  "([^"]+)"', section, re.MULTILINE)]
    locked = {
        canonicalize_name(requirement.name): next(iter(requirement.specifier)).version
        for requirement in (
            Requirement(entry.split(" --hash=")[0])
            for entry in entries(root / "requirements/runtime.txt")
        )
    }
    assert wanted
    for requirement in wanted:
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)])


def test_no_tracked_file_names_a_registry(root: Path) -> None:
    """Where packages and images come from is the machine's setting; no file overrides it."""
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        pytest.skip("needs a clone")
    tracked = subprocess.run(
        [git, "ls-files", "-z"], cwd=root, capture_output=True, text=True, timeout=30, check=True
    ).stdout.split("\0")
    forbidden = re.compile("|".join(re.escape(host) for host in REGISTRY_HOSTS))
    option = re.compile(r"^\s*--?(extra-)?index-url|^\s*--find-links", re.MULTILINE)
    for name in filter(None, tracked):
        path = root / name
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        assert not forbidden.search(text), name
        if name.startswith("requirements/"):
            assert not option.search(text), name


def test_ci_runs_the_suite_and_then_its_long_part(root: Path) -> None:
    """`.ci/run` is an executable bash script that calls `make test`, then `make long`."""
    script = root / ".ci/run"
    assert os.access(script, os.X_OK)
    text = script.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    steps = re.findall(r"^step (.+)$", text, flags=re.MULTILINE)
    assert steps == ["make test", "make long"]
    assert "set -euo pipefail" in text


@pytest.mark.parametrize(
    ("verdicts", "code", "ran"),
    [
        ({"test": 0, "long": 0}, 0, ["test", "long"]),
        ({"test": 2, "long": 0}, 2, ["test"]),
        ({"test": 0, "long": 3}, 3, ["test", "long"]),
    ],
)
def test_ci_ends_with_the_verdict_of_make(
    root: Path, tmp_path: Path, verdicts: dict[str, int], code: int, ran: list[str]
) -> None:
    """The exit code is that of the first step that failed, and nothing runs after it."""
    clone = tmp_path / "clone"
    (clone / ".ci").mkdir(parents=True)
    shutil.copy(root / ".ci/run", clone / ".ci/run")
    shim = tmp_path / "bin/make"
    shim.parent.mkdir()
    # Stands in for make, which turns the code of every failed recipe into 2.
    shim.write_text(
        "#!/usr/bin/env bash\necho ran-$1\ncase $1 in\n"
        + "".join(f"{name}) exit {verdict};;\n" for name, verdict in verdicts.items())
        + "esac\n"
    )
    shim.chmod(0o755)
    finished = subprocess.run(
        [clone / ".ci/run"],
        env={"PATH": f"{shim.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == code, finished.stderr
    assert re.findall(r"^ran-(\w+)$", finished.stdout, flags=re.MULTILINE) == ran


def test_the_makefile_has_the_documented_targets(root: Path) -> None:
    """The targets that documents and CI name exist."""
    makefile = (root / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    assert {"demo", "test", "long", "lint", "types", "check", "lock", "clean"} <= targets
