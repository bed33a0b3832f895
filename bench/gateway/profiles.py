"""Where our gateway's time goes: a run under Python's profiler, summed up by room of the house.

The profiler charges each call, so it makes code of many small functions look worse than it is. What
it does not see is the event loop's and the sockets' own work in C: the rest of the processor time.
"""

from __future__ import annotations

import dataclasses
import heapq
import pstats
from dataclasses import dataclass
from pathlib import Path

from bench.gateway.contestants import Contestant
from bench.gateway.native import run_load
from bench.gateway.processes import cpu_seconds, tree
from bench.gateway.runs import LOAD_CPU, Bench, run_contestant, warm_up
from bench.gateway.workloads import Form, Workload

LOOP = "event loop and sockets"
_FIRST = 3
"""Functions named of each room."""

_Function = tuple[str, int, str]
_Times = dict[_Function, float]
"""Seconds in each function itself."""


@dataclass(frozen=True, slots=True)
class Share:
    """A room's share of the time, and its functions that take most, with theirs."""

    room: str
    share: float
    functions: tuple[tuple[str, float], ...]


def profile(bench: Bench, contestant: Contestant, workload: Workload, form: Form) -> list[Share]:
    """Run a contestant of ours under the profiler, once idle and once with a workload on it.

    What starting takes is the same in both and taken away.
    """
    file = bench.directory / "profile.pstats"
    longer = dataclasses.replace(workload, seconds=4.0)
    with run_contestant(bench, contestant, profile=file) as running:
        warm_up(bench, running, longer, form)
    idle = read_times(file)
    with run_contestant(bench, contestant, profile=file) as running:
        warm_up(bench, running, longer, form)
        bench.engine.configure(longer)
        family = tree(running.pid)
        before = cpu_seconds(family)
        run_load(bench.native, LOAD_CPU, running.port, longer, form, bench.bodies)
        seconds = cpu_seconds(family) - before
    loaded = read_times(file)
    return sum_up({name: own - idle.get(name, 0.0) for name, own in loaded.items()}, seconds)


def read_times(file: Path) -> _Times:
    """Return what the profiler wrote."""
    stats = pstats.Stats(str(file)).stats  # type: ignore[attr-defined]  # typeshed has no `stats`
    return {function: own for function, (_calls, _all_calls, own, *_) in stats.items()}


def sum_up(times: _Times, seconds: float) -> list[Share]:
    """Return each room's share of the `seconds` of processor time, the greatest first."""
    rooms: dict[str, dict[str, float]] = {}
    for (path, _line, function), own in times.items():
        if own > 0:
            name = function if path == "~" else f"{Path(path).stem}.{function}"
            room = rooms.setdefault(name_room(path), {})
            room[name] = room.get(name, 0.0) + own
    seen = sum(sum(functions.values()) for functions in rooms.values())
    total = max(seconds, seen) or 1.0
    shares = [
        Share(
            room,
            sum(functions.values()) / total,
            tuple(
                (name, functions[name] / total)
                for name in heapq.nlargest(_FIRST, functions, key=lambda each: functions[each])
            ),
        )
        for room, functions in rooms.items()
    ]
    shares.append(Share(LOOP, (total - seen) / total, ()))
    return sorted(shares, key=lambda share: share.share, reverse=True)


def name_room(path: str) -> str:
    """Return where a function of a file lives; `~` is what the profiler calls C."""
    if path == "~":
        return "functions in C"
    parts = Path(path).parts
    for top in ("router", "kvmeta"):
        if top in parts:
            inner = parts[parts.index(top) :]
            return "/".join(inner[:2] if top == "router" and len(inner) > 2 else inner[:1])
    return "libraries"


def tell_profile(shares: list[Share]) -> list[str]:
    """Return the table, without rooms of less than a hundredth."""
    lines = ["| room | share | of which |", "|---|---|---|"]
    for each in shares:
        if each.share < 0.01:
            continue
        named = ", ".join(
            f"`{name.strip('<>')}` {share:.0%}" for name, share in each.functions if share >= 0.01
        )
        lines.append(f"| {each.room} | {each.share:.0%} | {named} |")
    return lines
