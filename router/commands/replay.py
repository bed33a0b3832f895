"""`prfaas replay`: a trace of real traffic against a live gateway."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from router.adapters.clocks import SystemClock
from router.adapters.engine_http import HttpEngineClient
from router.commands.admin_client import DEFAULT_URL, check_url
from router.commands.output import (
    FAILED,
    INTERRUPTED,
    AsJson,
    CommandFailed,
    Unusable,
    print_fault,
    print_json,
)
from router.commands.replay_view import print_report
from router.commands.trace_sender import (
    Gateway,
    Pace,
    TraceSender,
    read_kv_bytes,
    read_models,
)
from router.domain.units import Seconds, Tokens
from router.ports import Clock, EngineClient
from router.sim.replay.prompts import PromptForm, PromptWriter, Vocabulary
from router.sim.replay.reports import Outcome, Report, summarise
from router.sim.replay.traces import TraceFault, TraceRequest, parse_trace

PLAIN_PROGRESS_SECONDS = 10.0
"""Time between two lines of progress where nobody watches a terminal."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What is replayed, against what, and how."""

    requests: Sequence[TraceRequest]
    gateway: Gateway
    pace: Pace
    form: PromptForm
    vocabulary: Vocabulary
    model: str | None
    max_output: Tokens | None
    admin_key: str | None


@dataclass(slots=True)
class Tally:
    """Outcomes as they come, and who wants to hear of them."""

    listeners: Sequence[Callable[[Outcome], None]]
    outcomes: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome and tell it."""
        self.outcomes.append(outcome)
        for listener in self.listeners:
            listener(outcome)


def register(app: typer.Typer) -> None:
    """Add `replay`."""
    app.command("replay")(replay)


def replay(
    trace: Annotated[Path, typer.Argument(help="JSON lines with timestamp, lengths, hash_ids.")],
    *,
    url: Annotated[
        str, typer.Option("--url", envvar="PRFAAS_URL", help="The gateway.")
    ] = DEFAULT_URL,
    speed: Annotated[
        float, typer.Option("--speed", min=0.001, help="Send this many times faster.")
    ] = 1.0,
    sequential: Annotated[
        bool, typer.Option("--sequential", help="Send one after another, whatever the times.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first requests.")] = None,
    max_output: Annotated[
        int | None, typer.Option("--max-output", min=1, help="At most this many output tokens.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="The model; left out, the gateway's first.")
    ] = None,
    form: Annotated[
        PromptForm, typer.Option("--as", help="Prompts as token ids or as words.")
    ] = PromptForm.IDS,
    lowest_id: Annotated[
        int, typer.Option("--lowest-id", min=0, help="Lowest token id of prompts.")
    ] = Vocabulary().low,
    highest_id: Annotated[
        int, typer.Option("--highest-id", min=1, help="Highest token id of prompts.")
    ] = Vocabulary().high - 1,
    concurrency: Annotated[
        int, typer.Option(min=1, max=100_000, help="At most this many requests at once.")
    ] = 1024,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds of silence after which a request failed.")
    ] = 600.0,
    api_key: Annotated[
        str | None, typer.Option("--api-key", envvar="PRFAAS_API_KEY", help="A tenant's key.")
    ] = None,
    admin_key: Annotated[
        str | None,
        typer.Option("--admin-key", envvar="PRFAAS_ADMIN_KEY", help="Sent for /metrics."),
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="Write one JSON line for each request here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a trace against a gateway and report what it did with it.

    Each hash id becomes the same block of 512 tokens wherever it occurs, so prompts share what the
    trace's prompts shared. Ctrl-C ends early and reports what was done so far.

    Example: prfaas replay trace.jsonl --limit 200 --speed 10 --max-output 16
    """
    if lowest_id > highest_id:
        raise Unusable("--lowest-id must not exceed --highest-id")
    plan = ReplayPlan(
        requests=read_trace(trace, limit),
        gateway=Gateway(check_url(url), api_key, silence=timeout),
        pace=Pace(speed, sequential=sequential, concurrency=1 if sequential else concurrency),
        form=form,
        vocabulary=Vocabulary(lowest_id, highest_id + 1),
        model=model,
        max_output=max_output,
        admin_key=admin_key,
    )
    with ExitStack() as stack:
        listeners = [stack.enter_context(_show_progress(len(plan.requests)))]
        if records is not None:
            listeners.append(stack.enter_context(_write_records(records)))
        report = asyncio.run(run_replay(plan, Tally(listeners)))
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        print_report(report)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
    if report.errors:
        raise typer.Exit(FAILED)


def read_trace(path: Path, limit: int | None) -> list[TraceRequest]:
    """Read a trace, or its first requests. Raises Unusable naming the faulty line."""
    requests: list[TraceRequest] = []
    try:
        with path.open("rb") as lines:
            for request in parse_trace(lines):
                requests.append(request)
                if len(requests) == limit:
                    break
    except OSError as error:
        raise Unusable(f"{path} cannot be read: {error.strerror}") from error
    except TraceFault as error:
        raise Unusable(f"{path}: {error}") from error
    if not requests:
        raise Unusable(f"{path} holds no requests")
    return requests


async def run_replay(plan: ReplayPlan, tally: Tally) -> Report:
    """Replay and report. Cancelled once (Ctrl-C), it stops and reports what is known so far."""
    clock = SystemClock()
    client = HttpEngineClient(
        max_connections=plan.pace.concurrency, max_waiting=plan.pace.concurrency
    )
    try:
        model = plan.model or await find_model(plan.gateway, client)
        before = await read_kv_bytes(plan.gateway, client, plan.admin_key)
        writer = PromptWriter(model=model, form=plan.form, vocabulary=plan.vocabulary)
        sender = TraceSender(
            plan.gateway,
            client,
            writer,
            clock,
            max_output=plan.max_output,
            record=tally.add,
        )
        duration, interrupted = await _send_until_stopped(sender, plan, clock)
        after = await read_kv_bytes(plan.gateway, client, plan.admin_key)
    finally:
        await client.aclose()
    egress = None if before is None or after is None else round(after - before)
    return summarise(
        tally.outcomes, duration=duration, egress_bytes=egress, interrupted=interrupted
    )


async def _send_until_stopped(
    sender: TraceSender, plan: ReplayPlan, clock: Clock
) -> tuple[Seconds, bool]:
    start = clock.monotonic()
    interrupted = False
    try:
        await sender.send_all(plan.requests, plan.pace)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        interrupted = True
    return clock.monotonic() - start, interrupted


async def find_model(gateway: Gateway, client: EngineClient) -> str:
    """Return the first model that the gateway lists. Raises CommandFailed."""
    body = await read_models(gateway, client)
    if body is None:
        raise CommandFailed(f"{gateway.url} does not list its models: is it up? or give --model")
    try:
        listed = msgspec.json.decode(body)
        return str(listed["data"][0]["id"])
    except (msgspec.DecodeError, LookupError, TypeError) as error:
        raise CommandFailed(f"{gateway.url} lists no model: give --model") from error


@contextmanager
def _write_records(path: Path) -> Iterator[Callable[[Outcome], None]]:
    """Write each outcome as one JSON line, readable as soon as it is known."""
    try:
        stream = path.open("wb")
    except OSError as error:
        raise Unusable(f"{path} cannot be written: {error.strerror}") from error
    with stream:

        def write(outcome: Outcome) -> None:
            stream.write(msgspec.json.encode(dataclasses.asdict(outcome)) + b"\n")
            stream.flush()

        yield write


@contextmanager
def _show_progress(total: int) -> Iterator[Callable[[Outcome], None]]:
    """Show on stderr how far the replay is: a bar on a terminal, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        yield _PlainProgress(total, SystemClock()).note
        return
    columns = (
        TextColumn("replay"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[errors]} errors"),
        TimeElapsedColumn(),
    )
    errors = 0
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replay", total=total, errors=0)

        def note(outcome: Outcome) -> None:
            nonlocal errors
            errors += outcome.error is not None
            bar.update(task, advance=1, errors=errors)

        yield note


@dataclass(slots=True)
class _PlainProgress:
    """Says how far the replay is, at most every few seconds."""

    total: int
    clock: Clock
    done: int = 0
    errors: int = 0
    told_at: Seconds | None = None

    def note(self, outcome: Outcome) -> None:
        self.done += 1
        self.errors += outcome.error is not None
        now = self.clock.monotonic()
        if self.told_at is None:
            self.told_at = now
        if now - self.told_at >= PLAIN_PROGRESS_SECONDS:
            self.told_at = now
            print_fault(f"replay: {self.done} of {self.total} done, {self.errors} errors")
