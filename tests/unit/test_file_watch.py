"""When a file that is looked at again and again has changed."""

from __future__ import annotations

from pathlib import Path

from router.adapters.files import read_states
from router.control.file_watch import FileStates, FileWatch, step_looked

OLD: FileStates = ((1, 100, 10),)
EMPTIED: FileStates = ((1, 200, 0),)
NEW: FileStates = ((1, 201, 12),)
AWAY: FileStates = (None,)


def acted_on(*looks: FileStates) -> list[bool]:
    """Whether each look finds a change to act on, beginning with the old file."""
    watch, found = FileWatch(OLD), []
    for seen in looks:
        watch, due = step_looked(watch, seen)
        found.append(due)
    return found


def test_a_change_counts_once_it_has_come_to_rest() -> None:
    """A file that is emptied and filled, or away for a moment, is read when it is whole; once."""
    assert acted_on(OLD, EMPTIED, NEW, NEW, NEW) == [False, False, False, True, False]
    assert acted_on(AWAY, NEW, NEW) == [False, False, True]


def test_a_file_that_stays_away_counts() -> None:
    """It is told once that there is none."""
    assert acted_on(AWAY, AWAY, AWAY) == [False, True, False]


def test_what_is_undone_in_time_is_no_change() -> None:
    """Between two looks, nobody knows."""
    assert acted_on(NEW, OLD, NEW) == [False, False, False]


def test_a_swapped_link_is_a_change(tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap: the name stays, the directory behind it is another."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("same")
    data, config = tmp_path / "..data", tmp_path / "config.yaml"
    data.symlink_to("first")
    config.symlink_to("..data/config.yaml")
    before = read_states([config])
    (tmp_path / "..new").symlink_to("second")
    (tmp_path / "..new").replace(data)
    assert read_states([config]) != before
    assert read_states([tmp_path / "none"]) == (None,)
