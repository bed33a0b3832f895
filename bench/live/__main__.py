"""Play what can go wrong, on real processes: `python -m bench.live [--only a,b] [--out DIR]`.

Writes `live.md`, `live.html` and the series of every scene; ends with 1 where a claim fails.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import os
import platform
import sys
from pathlib import Path

from bench.live.programs import SCENES, choose_scenes, play_scenes
from bench.live.promises import judge
from bench.live.reports import summarize, write_reports


def main(arguments: list[str]) -> int:
    """Play the scenes asked for, and tell what came of them."""
    parser = argparse.ArgumentParser(prog="live", description=__doc__)
    known = "; ".join(f"{scene.letter}: {scene.title}" for scene in SCENES)
    parser.add_argument("--only", default="", metavar="LETTERS", help=f"some of {known}")
    parser.add_argument("--quick", action="store_true", help="cut short, as the tests play them")
    parser.add_argument("--out", type=Path, default=Path("build/live"), metavar="DIR")
    given = parser.parse_args(arguments)
    try:
        letters = [letter for letter in given.only.split(",") if letter]
        scenes = choose_scenes(letters, quick=given.quick)
    except KeyError as error:
        parser.error(f"no scene {error.args[0]!r}; there are {known}")
    played = asyncio.run(play_scenes(scenes, _say, quick=given.quick))
    write_reports(played, given.out, _describe_machine())
    for outcome in played.values():
        for line in summarize(outcome):
            _say(line)
    _say("")
    for promise, verdict in judge(played):
        _say(f"{verdict:<10}  {promise.what}")
    failed = sum(not outcome.holds for outcome in played.values())
    _say(f"\n{len(played)} scenes, {failed} with claims that fail; written to {given.out}")
    return 1 if failed else 0


def _describe_machine() -> str:
    today = dt.datetime.now(tz=dt.UTC).date()
    return (
        f"{today}, {platform.machine()}, {os.cpu_count()} processors,"
        f" Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f} at the end"
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
