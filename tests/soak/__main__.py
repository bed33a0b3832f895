"""The command: `python -m tests.soak --minutes 30`. Ends with 1 where something does not add up."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.soak.run import Report, SoakOptions, run_soak


def main(arguments: list[str]) -> int:
    """Run one soak and tell what came of it."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long clients ask (5)")
    parser.add_argument("--seed", type=int, default=1, help="draws requests and faults (1)")
    parser.add_argument("--clients", type=int, default=24, help="how many ask at once (24)")
    parser.add_argument(
        "--redis", action="store_true", help="with a Redis that freezes and flushes"
    )
    parser.add_argument("--workers", type=int, default=1, help="of the gateway; over a Redis (1)")
    parser.add_argument("--no-reloads", action="store_true", help="leave SIGHUP out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    given = parser.parse_args(arguments)
    options = SoakOptions(
        given.minutes,
        given.seed,
        given.clients,
        given.workers,
        with_redis=given.redis,
        reloads=not given.no_reloads,
    )
    with tempfile.TemporaryDirectory() as directory:
        report = asyncio.run(run_soak(options, Path(directory), say))
    if given.json is not None:
        given.json.write_text(json.dumps(asdict(report), indent=2) + "\n", "utf-8")
    say(summarize(report))
    return 1 if report.faults else 0


def say(line: str) -> None:
    """Tell people."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def summarize(report: Report) -> str:
    """Return the report for people."""
    first, last = report.first, report.last
    assert first is not None
    assert last is not None
    told = [
        f"{sum(report.endings.values())} visits in {report.seconds:.0f} s: {dict(report.endings)}",
        f"statuses: {dict(sorted(report.statuses.items()))} (0: left before any)",
        f"broken: {dict(report.broken)}; fallbacks: {report.fallbacks}",
        f"memory {first.resident_bytes / 2**20:.0f} -> {last.resident_bytes / 2**20:.0f} MiB,"
        f" {report.growth_bytes / 2**20:+.1f} over the second half;"
        f" descriptors {first.descriptors} -> {last.descriptors}",
        f"hand-offs that nobody pulled within their lease: {report.handoffs_expired}",
        *(f"FAULT: {fault}" for fault in report.faults),
        "FAILED" if report.faults else "all accounted for",
    ]
    return "\n".join(told)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
