"""Rows -> medians, ratios against the goals, and the page that tells them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from bench.gateway.contestants import Mode
from bench.gateway.runs import DIRECT, Row
from bench.gateway.workloads import WORKLOADS, Form

Quantity: TypeAlias = Callable[[Row], float | None]
Key: TypeAlias = tuple[str, str, Form]
"""Mode, contestant and form of a line."""

MEMORY_GOAL_MIB = 300.0


@dataclass(frozen=True, slots=True)
class Goal:
    """A quantity of ours as a ratio of a peer's; `at_least`, or at most."""

    name: str
    mode: Mode
    peer: str
    workload: str
    quantity: Quantity
    unit: str
    bound: float
    at_least: bool = True


def requests_per_second(row: Row) -> float | None:
    """Answers a second."""
    return row.requests_per_second


def events_per_second(row: Row) -> float | None:
    """Events of streams a second."""
    return row.events_per_second


def cpu_us(row: Row) -> float | None:
    """The router's processor time a request or event."""
    return row.cpu_us


def p50_us(row: Row) -> float | None:
    """Median time from request to end."""
    return row.p50_us


GOALS = (
    Goal(
        "P/D, 32 connections", Mode.PD, "vllm-router", "small-32", requests_per_second,
        "requests/s", 1.5,
    ),
    Goal(
        "regular, 32 connections, against round_robin", Mode.REGULAR, "vllm-router-round-robin",
        "small-32", requests_per_second, "requests/s", 1.0,
    ),
    Goal(
        "regular, 32 connections, against cache_aware", Mode.REGULAR, "vllm-router-cache-aware",
        "small-32", requests_per_second, "requests/s", 2.5,
    ),
    Goal(
        "P/D, paced streams", Mode.PD, "vllm-router", "paced", cpu_us, "us of CPU a chunk", 1.0,
        at_least=False,
    ),
    Goal(
        "P/D, burst streams", Mode.PD, "vllm-router", "burst", events_per_second, "events/s", 2.0
    ),
    Goal(
        "P/D, 495 KB bodies, 4 connections", Mode.PD, "vllm-router", "long-4",
        requests_per_second, "requests/s", 1.5,
    ),
    Goal(
        "P/D, 1 connection", Mode.PD, "vllm-router", "small-1", p50_us, "us at p50", 1.0,
        at_least=False,
    ),
)  # fmt: skip
"""What the gateway is to reach on one processor, with token-id prompts and the embedded store."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal against what was measured. `ratios` are of single rounds, ours to theirs.

    `cpu_ratio` is the median of theirs to ours in processor time, which on a busy machine tells
    more than rates do. All are of token-id prompts; beside them `text` is the median ratio where
    both get text, None where either was not measured with it.
    """

    goal: Goal
    ours: float
    theirs: float
    ratios: tuple[float, ...]
    cpu_ratio: float
    text: float | None = None

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(self.ratios)

    @property
    def reached(self) -> bool:
        """Whether the median is within the bound."""
        goal = self.goal
        return self.ratio >= goal.bound if goal.at_least else self.ratio <= goal.bound


def judge(rows: Iterable[Row], goals: Iterable[Goal] = GOALS) -> Iterator[Verdict]:
    """Compare ours and the peer with the same bodies: token ids, and text beside them.

    Only rounds in which neither has an error count; a goal without any is left out.
    """
    sound = [row for row in rows if not row.errors]
    for goal in goals:
        verdict, text = (_compare(sound, goal, form) for form in (Form.IDS, Form.TEXT))
        if verdict is not None:
            yield replace(verdict, text=text.ratio if text else None)


def _compare(rows: Sequence[Row], goal: Goal, form: Form) -> Verdict | None:
    """Compare in the rounds that both have; None without one."""
    ours, theirs = (_by_round(rows, goal, name, form) for name in ("ours", goal.peer))
    pairs = [(ours[each], theirs[each]) for each in sorted(ours.keys() & theirs.keys())]
    values = [(goal.quantity(one) or 0.0, goal.quantity(other) or 0.0) for one, other in pairs]
    if not pairs:
        return None
    return Verdict(
        goal,
        statistics.median(one for one, _ in values),
        statistics.median(other for _, other in values),
        tuple(one / other for one, other in values),
        statistics.median(other.cpu_us / one.cpu_us if one.cpu_us else 0.0 for one, other in pairs),
    )


def _by_round(rows: Iterable[Row], goal: Goal, contestant: str, form: Form) -> dict[int, Row]:
    """Return the rows of one line that have the goal's quantity."""
    return {
        row.round: row
        for row in rows
        if (row.mode, row.contestant, row.form) == (goal.mode, contestant, form)
        and row.workload == goal.workload
        and goal.quantity(row)
    }


def peak_of_ours(rows: Iterable[Row]) -> float:
    """Return the highest peak of memory with token ids and the embedded store, in MiB, or 0.

    A process runs its token-id workloads first, so what tokenizing takes is not in it.
    """
    peaks = (row.peak_mib for row in rows if row.contestant == "ours" and row.form is Form.IDS)
    return max(peaks, default=0.0)


def tell_goals(rows: Sequence[Row]) -> list[str]:
    """Return the table of goals."""
    lines = [
        "| | ours | vllm-router | ratio (rounds) | goal | | CPU, theirs to ours | with text |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for verdict in judge(rows):
        goal = verdict.goal
        sign = ">=" if goal.at_least else "<="
        lines.append(
            f"| {goal.name} | {verdict.ours:,.0f} {goal.unit} | {verdict.theirs:,.0f}"
            f" | {verdict.ratio:.2f} ({min(verdict.ratios):.2f} to {max(verdict.ratios):.2f})"
            f" | {sign} {goal.bound:g} | {'reached' if verdict.reached else '**missed**'}"
            f" | {verdict.cpu_ratio:.2f} | {format_median([verdict.text], '.2f')} |"
        )
    peak = peak_of_ours(rows)
    reached = "reached" if 0 < peak < MEMORY_GOAL_MIB else "**missed**"
    lines.append(
        f"| peak memory | {peak:.0f} MiB | | | < {MEMORY_GOAL_MIB:.0f} MiB | {reached} | | |"
    )
    return lines


_QUANTITIES: tuple[tuple[str, Quantity, str], ...] = (
    ("requests/s", requests_per_second, ",.0f"),
    ("events/s", events_per_second, ",.0f"),
    ("p50 us", p50_us, ",.0f"),
    ("p99 us", lambda row: row.p99_us, ",.0f"),
    ("first p50 us", lambda row: row.first_p50_us, ",.0f"),
    ("gap p99 us", lambda row: row.gap_p99_us, ",.0f"),
    ("CPU us", cpu_us, ",.1f"),
    ("router CPUs", lambda row: row.router_cpus, ".2f"),
    ("peak MiB", lambda row: row.peak_mib, ".0f"),
)


def tell_workload(rows: Sequence[Row], workload: str) -> list[str]:
    """Return the table of one workload, one line a contestant and form; none without rows."""
    chosen = [row for row in rows if row.workload == workload]
    if not chosen:
        return []
    streams = WORKLOADS[workload].streams
    shown = [each for each in _QUANTITIES if streams or each[0] not in {"events/s", "gap p99 us"}]
    lines = [
        "| | " + " | ".join(name for name, _, _ in shown) + " | spread | |",
        "|---" * (len(shown) + 3) + "|",
    ]
    keys = dict.fromkeys(_key(row) for row in chosen)
    return lines + [
        _tell_line(key, [row for row in chosen if _key(row) == key], shown) for key in keys
    ]


def _key(row: Row) -> Key:
    return (row.mode, row.contestant, row.form)


def _tell_line(key: Key, rows: Sequence[Row], shown: Sequence[tuple[str, Quantity, str]]) -> str:
    sound = [row for row in rows if not row.errors]
    mode, contestant, form = key
    label = DIRECT if mode == DIRECT else f"{mode}, {contestant}, {form}"
    if not sound:
        return f"| {label} |" + " |" * (len(shown) + 1) + f" void: {rows[-1].errors[0]} |"
    cells = [format_median((quantity(row) for row in sound), form) for _, quantity, form in shown]
    rates = [row.requests_per_second for row in sound]
    middle = statistics.median(rates)
    spread = (max(rates) - min(rates)) / middle if middle else 0.0
    return f"| {label} | " + " | ".join(cells) + f" | {spread:.0%} | {_notes(rows, sound)} |"


def format_median(values: Iterable[float | None], form: str) -> str:
    """Return the median of what was measured, empty for nothing."""
    known = [value for value in values if value is not None]
    return format(statistics.median(known), form) if known else ""


def _notes(rows: Sequence[Row], sound: Sequence[Row]) -> str:
    """Tell void rounds, and decisions for other reasons than the prompt's length."""
    notes = []
    if len(sound) < len(rows):
        errors = next(row.errors[0] for row in rows if row.errors)
        notes.append(f"{len(rows) - len(sound)} of {len(rows)} rounds void: {errors}")
    total = sum(sum(row.reasons.values()) for row in sound)
    plain = {"below_threshold", "above_threshold"}
    for reason in sorted({name for row in sound for name in row.reasons} - plain):
        share = sum(row.reasons.get(reason, 0) for row in sound) / total
        notes.append(f"{reason} {share:.1%}")
    return "; ".join(notes)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Where, when and of what a table was made."""

    machine: str
    versions: str
    commit: str
    date: str
    rounds: int
    load_average: float
    disturbed: str | None


def tell_quiet(rows: Sequence[Row], told: Circumstances) -> str:
    """Tell how quiet the machine was."""
    others = [row.others for row in rows]
    stolen = [row.stolen for row in rows]
    verdict = "quiet" if told.disturbed is None else f"**not quiet**: {told.disturbed}"
    return (
        f"The machine was {verdict}. Load average before: {told.load_average:.2f}. Processors that"
        f" others used meanwhile: median {statistics.median(others):.2f}, at most"
        f" {max(others):.2f}; that the host took away: median {statistics.median(stolen):.3f}, at"
        f" most {max(stolen):.3f}."
    )


def find_disturbance(rows: Sequence[Row]) -> str | None:
    """Tell what disturbed the runs, None where nothing did: half of them may be a little off."""
    if not rows:
        return "nothing was measured"
    others = statistics.median(row.others for row in rows)
    stolen = statistics.median(row.stolen for row in rows)
    if others > 0.1:
        return f"others used {others:.2f} processors while it ran"
    if stolen > 0.02:
        return f"the host took {stolen:.2f} processors away while it ran"
    return None


_HEADINGS = {
    "small-1": "Small prompts, 1 connection",
    "small-32": "Small prompts, 32 connections",
    "small-256": "Small prompts, 256 connections",
    "burst": "Streams of 128 events back to back, 16 connections",
    "paced": "Streams of an event each 10 ms, 64 connections",
    "long-4": "Bodies of 495 KB, 4 connections",
}

_READING = """\
The router runs on one processor, the mock engine, the load generator and Redis on another. Bodies
are the same for all: `ids` are completions with token ids (160, or 82,500 in 495 KB), `text` are
chats of as many bytes, which our gateway tokenizes in process. The mock answers at once, so these
are costs of routing, not of serving. `direct` has no router in between: the ceiling of the rig.
Both log warnings only. `ours` has everything on: admission, breakers, probes, metrics, an index
that is synced with four sources and that look-ups find prefixes in, the decision, in P/D mode
between two clusters. P/D is a prefill call, its hand-off, and a decode call. Every answer's status,
framing, length and end are checked, and the calls and bytes that engines got are compared with what
clients sent; an error makes a row void. Medians over rounds, in each of which all contestants run
in turn; `spread` is that of requests/s, largest less smallest by the median. `CPU us` is the
router's processor time a request, for streams an event."""


_PROFILING = """\
P/D, token ids, 32 connections, under Python's profiler, which slows calls down: shares, not times.
What it does not see of the processor time is the event loop's and the sockets' own work."""


def tell_page(rows: Sequence[Row], told: Circumstances, profile: Sequence[str]) -> str:
    """Return the whole page; `profile` is the table of where our time goes."""
    lines = [
        "# The gateway beside vllm-router, measured",
        "",
        f"Written by `make bench` at {told.commit} on {told.date}: {told.machine};"
        f" {told.versions}; {told.rounds} rounds. {tell_quiet(rows, told)}",
        "",
        *tell_goals(rows),
        "",
        "Ratios are medians of the rounds' own ratios. Goals are for token-id prompts, which both"
        " get; the last column tells the ratio where both get text. The one before compares"
        " processor time a request or event, which others' use of the machine disturbs least.",
        "",
        *_READING.splitlines(),
        "",
    ]
    for workload, heading in _HEADINGS.items():
        table = tell_workload(rows, workload)
        if table:
            lines += [f"## {heading}", "", *table, ""]
    lines += ["## Where our time goes", "", *_PROFILING.splitlines(), "", *profile, ""]
    return "\n".join(lines)
