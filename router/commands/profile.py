"""`prfaas profile`: what prefills of a live engine cost, measured and written as a profile."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Final

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from router.adapters.clocks import SystemClock
from router.adapters.profiled_engines import HttpProfiledEngine
from router.commands.admin_client import check_url
from router.commands.kv_sources import KvSource, MeasuredKv, ModelledKv, choose_kv_source
from router.commands.output import (
    AsJson,
    CommandFailed,
    Unusable,
    check_writable,
    print_fault,
    print_json,
)
from router.commands.profile_view import describe_outcome, list_notes, show_outcome
from router.domain.units import Bytes, Seconds, Tokens
from router.ports import Clock
from router.service.profiling import EngineIdentity, PrefillClock, Profiler, ProfilingRules, Step
from router.settings.profile_files import ProfileFile
from router.settings.profile_writing import build_profile, render_profile, write_profile
from router.sim.replay.prompts import Vocabulary, make_block
from router.sim.replay.traces import BLOCK_TOKENS
from router.throughput.measurements import (
    ANSWER_TOKENS,
    Measurement,
    NotMeasured,
    check_sizes,
    suggest_lengths,
)
from router.throughput.profiles import KvLine, ProfilePoint, ProfileSource

CONNECT_SECONDS: Final[Seconds] = 5.0
"""As for the admin API's callers: an engine that cannot be reached by then will not be."""

_IDENTITY_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """What is measured, and under which names it is written."""

    url: str
    model: str | None
    lengths: tuple[Tokens, ...] | None
    rules: ProfilingRules
    kv: KvSource
    vocabulary: Vocabulary
    api_key: str | None
    timeout: Seconds
    revision: str
    hardware: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a plan."""

    identity: EngineIdentity
    prefills: Sequence[Measurement]
    sizes: Sequence[Bytes]


def register(app: typer.Typer) -> None:
    """Add `profile`."""
    app.command("profile")(profile)


def profile(
    url: Annotated[str, typer.Argument(metavar="URL", help="The engine, e.g. http://host:8000.")],
    *,
    revision: Annotated[str, typer.Option(help="The model's revision that the engine runs.")],
    hardware: Annotated[str, typer.Option(help="What the instance consists of, e.g. 8xH20.")],
    lengths: Annotated[
        str | None,
        typer.Option(help="Prompt lengths in tokens, by commas; default: doubling from 1024."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model; left out, the engine's first.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measured prefills a length.")] = 5,
    warmup: Annotated[int, typer.Option(min=0, help="Prefills a length before those.")] = 1,
    max_spread: Annotated[
        float, typer.Option(min=0, help="Longest less shortest over the median, at most.")
    ] = 0.1,
    clock: Annotated[
        PrefillClock, typer.Option(help="Whose clock: the engine's metrics, or ours.")
    ] = PrefillClock.ENGINE,
    decode_url: Annotated[
        str | None, typer.Option(help="KV bytes: measured by this engine, which pulls them.")
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option(help="KV bytes: computed from this config.json.")
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="The KV cache's dtype, where not the model's.")
    ] = None,
    kv_bytes_per_token: Annotated[
        int | None, typer.Option(min=1, help="KV bytes: computed from this many a token.")
    ] = None,
    kv_fixed_bytes: Annotated[
        int | None, typer.Option(min=0, help="And this many for every prompt.")
    ] = None,
    lowest_id: Annotated[
        int, typer.Option(min=0, help="Lowest token id of prompts.")
    ] = Vocabulary().low,
    highest_id: Annotated[
        int, typer.Option(min=1, help="Highest token id of prompts.")
    ] = Vocabulary().high - 1,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds of silence after which a prefill failed.")
    ] = 600.0,
    api_key: Annotated[
        str | None, typer.Option(envvar="PRFAAS_ENGINE_KEY", help="The engines' key.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the profile here, not on stdout.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure T_prefill and S_kv of a live vLLM engine and write them as a profile.

    Prompts are random token ids, so no cache helps; each figure is checked against the engine's
    metrics, and nothing is written unless all of them hold. Take the engine out of traffic first.

    Example: prfaas profile http://10.0.0.7:8000 --revision main --hardware 8xH20
    --decode-url http://10.0.1.3:8000 --lengths 1000,8000,32000 -o h20.yaml
    """
    if lowest_id > highest_id:
        raise Unusable("--lowest-id must not exceed --highest-id")
    for option, value in (("--revision", revision), ("--hardware", hardware)):
        if not value.strip():
            raise Unusable(f"{option} must not be empty")
    if output is not None:
        check_writable(output)
    address = check_url(url, option="URL")
    if decode_url is not None and check_url(decode_url, option="--decode-url") == address:
        raise Unusable("--decode-url must be another engine: none pulls KV from itself")
    plan = ProfilePlan(
        url=address,
        model=model,
        lengths=None if lengths is None else read_lengths(lengths),
        rules=ProfilingRules(repeats, warmup, max_spread, clock),
        kv=choose_kv_source(
            decode_url=decode_url,
            config=model_config,
            dtype=kv_dtype,
            bytes_per_token=kv_bytes_per_token,
            fixed_bytes=kv_fixed_bytes,
        ),
        vocabulary=Vocabulary(lowest_id, highest_id + 1),
        api_key=api_key,
        timeout=timeout,
        revision=revision,
        hardware=hardware,
    )
    system = SystemClock()
    try:
        measured = asyncio.run(run_profile(plan, system))
    except NotMeasured as error:
        raise CommandFailed(f"{error}; nothing was written") from error
    document = make_document(plan, measured, system.now().date())
    text = render_profile(document, list_notes(plan.rules, plan.kv, measured.prefills))
    if output is not None:
        _write(output, text)
    if as_json:
        print_json(describe_outcome(document, plan.rules, plan.kv, measured.prefills))
    elif output is not None:
        show_outcome(document, measured.prefills, output)
    else:
        print(text, end="")


def read_lengths(text: str) -> tuple[Tokens, ...]:
    """Read lengths in tokens, in increasing order. Raises Unusable."""
    try:
        lengths = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise Unusable(f"--lengths {text!r} are no numbers with commas between") from error
    if len(lengths) < 2:
        raise Unusable("--lengths needs two different lengths: a profile is a curve")
    if lengths[0] < 1:
        raise Unusable("--lengths must be positive")
    return tuple(lengths)


async def run_profile(plan: ProfilePlan, clock: Clock) -> Measured:
    """Measure what a plan asks for. Raises NotMeasured, or Unusable for lengths over the limit."""
    headers = {"authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    patience = httpx.Timeout(plan.timeout, connect=CONNECT_SECONDS)
    async with httpx.AsyncClient(timeout=patience, headers=headers, trust_env=False) as client:
        engine = HttpProfiledEngine(plan.url, client)
        identity = await engine.identify(plan.model)
        lengths = settle_lengths(plan.lengths, identity)
        with _show_progress(_count_requests(plan, lengths)) as note:
            profiler = Profiler(
                engine,
                identity.model,
                rules=plan.rules,
                clock=clock,
                draw_prompt=lambda tokens: draw_prompt(tokens, plan.vocabulary),
                note=note,
            )
            sizes = await find_sizes(plan.kv, profiler, client, identity, lengths)
            check_sizes(lengths, sizes)
            prefills = await profiler.measure_prefills(lengths)
    return Measured(identity, prefills, sizes)


async def find_sizes(
    kv: KvSource,
    profiler: Profiler,
    client: httpx.AsyncClient,
    identity: EngineIdentity,
    lengths: Sequence[Tokens],
) -> list[Bytes]:
    """Return S_kv at each length, measured or computed. Raises NotMeasured."""
    match kv:
        case MeasuredKv(decode_url):
            peer = HttpProfiledEngine(decode_url, client)
            there = await peer.identify(identity.model)
            if there.version != identity.version:
                raise NotMeasured(
                    f"the decode engine is vLLM {there.version}, the other {identity.version}: "
                    "they hand no KV over"
                )
            return await profiler.measure_transfers(peer, lengths)
        case ModelledKv(geometry):
            return [geometry.kv_bytes(tokens) for tokens in lengths]


def settle_lengths(
    asked: tuple[Tokens, ...] | None, identity: EngineIdentity
) -> tuple[Tokens, ...]:
    """Return the lengths to measure, within what the model takes. Raises Unusable."""
    limit = identity.max_model_len
    if asked is None:
        if limit is None:
            raise Unusable("the engine does not tell its max_model_len: give --lengths")
        suggested = suggest_lengths(limit)
        if len(suggested) < 2:
            raise Unusable(f"the model takes {limit} tokens: give --lengths below that")
        return suggested
    if limit is not None and asked[-1] + ANSWER_TOKENS > limit:
        raise Unusable(
            f"--lengths {asked[-1]} is over the limit: prompt and answer have {limit} tokens"
        )
    return asked


def draw_prompt(tokens: Tokens, vocabulary: Vocabulary) -> list[int]:
    """Return random token ids that no engine has seen: two draws never share a block."""
    ids: list[int] = []
    for _ in range(0, tokens, BLOCK_TOKENS):
        ids += make_block(secrets.randbits(_IDENTITY_BITS), vocabulary)
    return ids[:tokens]


def make_document(plan: ProfilePlan, measured: Measured, day: date) -> ProfileFile:
    """Put a profile together. It is `measured` only if times and bytes both are."""
    source, kv_line = _judge_kv(plan.kv)
    points = [
        ProfilePoint(prefill.tokens, size, prefill.seconds)
        for prefill, size in zip(measured.prefills, measured.sizes, strict=True)
    ]
    return build_profile(
        points,
        model=measured.identity.model,
        revision=plan.revision,
        hardware=plan.hardware,
        engine=f"vLLM {measured.identity.version}",
        day=day,
        source=source,
        kv_line=kv_line,
    )


def _judge_kv(kv: KvSource) -> tuple[ProfileSource, KvLine | None]:
    """How a whole profile is known that has its bytes from there, and S_kv as a line if it is one.

    Measured bytes are not declared a line: whoever reads the points may fit one.
    """
    match kv:
        case MeasuredKv():
            return ProfileSource.MEASURED, None
        case ModelledKv(geometry):
            return ProfileSource.MODELLED, geometry.line


def _count_requests(plan: ProfilePlan, lengths: Sequence[Tokens]) -> int:
    each = plan.rules.warmup + plan.rules.repeats
    match plan.kv:
        case MeasuredKv():
            return len(lengths) * (each + 1)
        case ModelledKv():
            return len(lengths) * each


def _write(path: Path, text: str) -> None:
    try:
        write_profile(path, text)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def _show_progress(total: int) -> Iterator[Callable[[Step, Tokens], None]]:
    """Show on stderr how far the measurement is: a bar on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield _tell_lengths()
        return
    columns = (
        TextColumn("profile"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[step]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("profile", total=total, step="")

        def note(step: Step, tokens: Tokens) -> None:
            bar.update(task, advance=1, step=f"{step.value} of {tokens:,} tokens")

        yield note


def _tell_lengths() -> Callable[[Step, Tokens], None]:
    """Tell each step at its first request: repeats are nothing new."""
    told: set[tuple[Step, Tokens]] = set()

    def note(step: Step, tokens: Tokens) -> None:
        if (step, tokens) not in told:
            told.add((step, tokens))
            print_fault(f"profile: {step.value} of {tokens:,} tokens")

    return note
