"""`python -m tests.fuzz`: throw spoilt inputs at a gateway for as long as one likes."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import uvloop

from tests.fuzz.campaigns import KINDS, Campaign, Kind, campaign, inputs_of

_ROUND = 1000


def main() -> int:
    """Return 0 where nothing was found, 1 where something was."""
    asked = _read_arguments()
    return uvloop.run(_run(asked))


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="how many inputs (10,000)")
    parser.add_argument("--seed", type=int, default=None, help="left out, a new one")
    parser.add_argument("--kind", choices=KINDS, default=None, help="left out, all kinds in turn")
    parser.add_argument("--number", type=int, default=None, help="one input, by its number")
    return parser.parse_args()


async def _run(asked: argparse.Namespace) -> int:
    seed = secrets.randbelow(1 << 32) if asked.seed is None else asked.seed
    kinds: tuple[Kind, ...] = tuple(KINDS) if asked.kind is None else (asked.kind,)
    say(f"seed {seed}")
    with tempfile.TemporaryDirectory() as directory:
        async with campaign(Path(directory), seed) as running:
            if asked.number is not None:
                await running.throw([(kinds[0], asked.number)])
            else:
                await _throw_rounds(running, kinds, asked.inputs)
            await running.settle()
            for finding in running.findings:
                say(str(finding))
            say(f"{len(running.findings)} findings; answers {dict(running.answers)}")
            return 1 if running.findings else 0


async def _throw_rounds(running: Campaign, kinds: tuple[Kind, ...], count: int) -> None:
    began = time.monotonic()
    thrown = 0
    whole: Iterable[tuple[Kind, int]] = inputs_of(kinds, count)
    waiting = list(whole)
    while waiting:
        now, waiting = waiting[:_ROUND], waiting[_ROUND:]
        await running.throw(now)
        thrown += len(now)
        spent = time.monotonic() - began
        memory = running.footprint().memory / 1e6
        say(f"{thrown} inputs, {spent:.0f} s, {memory:.0f} MB")


def say(line: str) -> None:
    """Tell a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
