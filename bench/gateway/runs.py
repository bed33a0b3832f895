"""One contestant started, loaded and checked: a run becomes a row."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.gateway.contestants import Contestant, Mode, Ours, Site, command, ready_path
from bench.gateway.native import Loaded, MockEngine, Native, RigError, run_load
from bench.gateway.processes import (
    announced,
    cpu_seconds,
    open_url,
    peak_mib,
    read_machine,
    started,
    tree,
)
from bench.gateway.workloads import Form, Workload, bodies_file

_START_SECONDS = 60.0
_SOURCES = 4
ROUTER_CPU = 0
LOAD_CPU = 1
DIRECT = "direct"
_DECISION = re.compile(r"^prfaas_decisions_total\{(.*)\} (\S+)$", re.MULTILINE)
_REASON = re.compile(r'reason="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Row:
    """What one run measured. `cpu_us` is the router's processor time a request, or an event.

    `others` is what processes outside the rig used meanwhile, `stolen` what the host took, both in
    processors. A row with `errors` says nothing about speed.
    """

    mode: str
    contestant: str
    form: Form
    workload: str
    round: int
    requests_per_second: float
    events_per_second: float
    p50_us: int | None
    p99_us: int | None
    first_p50_us: int | None
    gap_p99_us: int | None
    cpu_us: float
    router_cpus: float
    peak_mib: float
    others: float
    stolen: float
    reasons: dict[str, int] = field(default_factory=dict)
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bench:
    """What is there for all runs."""

    native: Native
    engine: MockEngine
    events: tuple[tuple[str, str], ...]
    directory: Path
    peer: Path
    aides: list[int]
    """Processes that belong to the rig: the mock engine, its publishers, Redis."""

    @property
    def bodies(self) -> Path:
        """Where the request bodies are."""
        return self.directory / "bodies"


@dataclass(frozen=True, slots=True)
class Running:
    """A contestant that serves."""

    contestant: Contestant
    pid: int
    port: int


@contextmanager
def run_events() -> Iterator[tuple[int, tuple[tuple[str, str], ...]]]:
    """Run the publishers of the mock engines' events; yield their process and endpoints."""
    command = [sys.executable, "-m", "bench.gateway.events", str(_SOURCES)]
    with announced(command, LOAD_CPU) as (pid, line):
        if not line:
            raise RigError("the publisher of events did not start")
        yield pid, tuple((events, replay) for events, replay in json.loads(line))


@contextmanager
def run_contestant(
    bench: Bench, contestant: Contestant, profile: Path | None = None
) -> Iterator[Running]:
    """Run a contestant for the time of the block, ready to serve. Raises RigError.

    `profile` is for ours alone: where Python's profiler is to write what it saw.
    """
    needs_redis = isinstance(contestant.product, Ours) and contestant.product.redis
    with _run_redis(bench) if needs_redis else contextlib.nullcontext() as redis_url:
        site = Site(
            directory=bench.directory,
            port=_free_port(),
            metrics_port=_free_port(),
            engines=bench.engine.urls,
            events=bench.events,
            peer=bench.peer,
            redis_url=redis_url,
        )
        log = bench.directory / f"{contestant.mode}-{contestant.name}.log"
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.lower().endswith("_proxy") and not name.startswith("PRFAAS_")
        }
        program = command(contestant, site)
        if profile is not None:
            program[1:1] = ["-m", "cProfile", "-o", str(profile)]
        with started(program, ROUTER_CPU, environment=environment, log=log) as process:
            _wait_until_ready(process, contestant, site.port, log)
            yield Running(contestant, process.pid, site.port)


def _wait_until_ready(
    process: subprocess.Popen[str], contestant: Contestant, port: int, log: Path
) -> None:
    """Poll until it serves and, for ours, what it does beside at the start is done."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RigError(f"{contestant.name} ended with {process.returncode}: see {log}")
        with contextlib.suppress(OSError):
            open_url(f"http://127.0.0.1:{port}{ready_path(contestant)}", timeout=1)
            if not isinstance(contestant.product, Ours) or _is_settled(port):
                return
        time.sleep(0.05)
    raise RigError(f"{contestant.name} was not ready within {_START_SECONDS:.0f} s: see {log}")


def _is_settled(port: int) -> bool:
    state = json.loads(open_url(f"http://127.0.0.1:{port}/admin/v1/state"))
    sources = [each["state"] for each in state["index"]["sources"]]
    checked = all(model["tokenizer"].get("checked", True) for model in state["models"])
    return checked and "synced" in sources and not {"unknown", "partial"} & set(sources)


@contextmanager
def _run_redis(bench: Bench) -> Iterator[str]:
    """Run a Redis server beside the load; its time is not the router's."""
    program = shutil.which("redis-server")
    if program is None:
        raise RigError("redis-server is not installed")
    port = _free_port()
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    with started([program, *options], LOAD_CPU, directory=bench.directory) as process:
        bench.aides.append(process.pid)
        try:
            _wait_for_port(port)
            yield f"redis://127.0.0.1:{port}"
        finally:
            bench.aides.remove(process.pid)


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RigError("Redis did not start")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def warm_up(bench: Bench, running: Running, workload: Workload, form: Form) -> None:
    """Ask once, until it answers: some routers are healthy before they know their workers."""
    with bodies_file(bench.bodies, workload, form).open("rb") as file:
        body = file.readline()
    url = f"http://127.0.0.1:{running.port}{form.path}"
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, body, headers)
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            open_url(request)
        except urllib.error.URLError as error:
            if time.monotonic() > deadline:
                raise RigError(f"{running.contestant.name} does not answer: {error}") from error
            time.sleep(0.1)
        else:
            return


def wait_until_idle(bench: Bench) -> None:
    """Wait until nothing comes to the engines any more.

    The load before hung up in the middle of requests. A router that queued them may still send
    calls to free what they held: these are no part of the next run.
    """
    deadline = time.monotonic() + _START_SECONDS
    before, now = None, bench.engine.counts()
    while now != before and time.monotonic() < deadline:
        time.sleep(0.2)
        before, now = now, bench.engine.counts()


def measure(
    bench: Bench, running: Running | None, workload: Workload, form: Form, number: int
) -> Row:
    """Put a workload on a contestant, or on the engine itself, and check what came of it."""
    if running is not None:
        wait_until_idle(bench)
        warm_up(bench, running, workload, form)
    bench.engine.configure(workload)
    port = bench.engine.ports[0] if running is None else running.port
    reasons = _decisions(running)
    family = [] if running is None else tree(running.pid)
    before, aides, own = read_machine(), cpu_seconds(bench.aides), _own_seconds()
    router = cpu_seconds(family)
    loaded = run_load(bench.native, LOAD_CPU, port, workload, form, bench.bodies)
    router = cpu_seconds(family) - router
    after = read_machine()
    wall = after.at - before.at
    ours = router + cpu_seconds(bench.aides) - aides + _own_seconds() - own
    latency, first, gap = loaded.latency_us, loaded.first_us, loaded.gap_us
    units = loaded.events if workload.streams else loaded.answers
    return Row(
        mode=DIRECT if running is None else running.contestant.mode,
        contestant=DIRECT if running is None else running.contestant.name,
        form=form,
        workload=workload.name,
        round=number,
        requests_per_second=loaded.requests_per_second,
        events_per_second=loaded.events_per_second,
        p50_us=None if latency is None else latency.p50,
        p99_us=None if latency is None else latency.p99,
        first_p50_us=None if first is None else first.p50,
        gap_p99_us=None if gap is None else gap.p99,
        cpu_us=router / units * 1e6 if units else 0.0,
        router_cpus=router / wall,
        peak_mib=peak_mib(family),
        others=max(0.0, (after.busy - before.busy - ours) / wall),
        stolen=(after.stolen - before.stolen) / wall,
        reasons={
            reason: count - reasons.get(reason, 0)
            for reason, count in _decisions(running).items()
            if count > reasons.get(reason, 0)
        },
        errors=tuple(find_errors(bench, running, workload, form, loaded)),
    )


def _own_seconds() -> float:
    """Return the processor time of this process and of those that it started and that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _decisions(running: Running | None) -> dict[str, int]:
    """Return how often our gateway gave each reason; nothing for others."""
    if running is None or not isinstance(running.contestant.product, Ours):
        return {}
    reasons: dict[str, int] = {}
    text = open_url(f"http://127.0.0.1:{running.port}/metrics").decode()
    for labels, count in _DECISION.findall(text):
        reason = _REASON.search(labels)
        if reason is not None:
            reasons[reason[1]] = reasons.get(reason[1], 0) + int(float(count))
    return reasons


def find_errors(
    bench: Bench, running: Running | None, workload: Workload, form: Form, loaded: Loaded
) -> Iterator[str]:
    """Tell what of a run was not as it must be, by what the client saw and by what engines saw.

    At the end of its time the load hangs up in the middle of at most one request a connection.
    """
    if loaded.bad_status or loaded.bad_body or loaded.broken:
        yield (
            f"{loaded.bad_status} answers were no 200, {loaded.bad_body} were broken,"
            f" {loaded.broken} connections were lost"
        )
    if not loaded.answers:
        yield "no answer"
    if loaded.shortest_body != loaded.longest_body:
        yield f"answers have {loaded.shortest_body} to {loaded.longest_body} bytes"
    counts = list(bench.engine.counts().values())
    calls, prefills = sum(each.calls for each in counts), sum(each.prefills for each in counts)
    decodes = sum(each.decodes for each in counts)
    if sum(each.malformed for each in counts):
        yield "engines got malformed requests"
    slack = workload.connections
    disaggregated = running is not None and running.contestant.mode is Mode.PD
    wanted = {"prefills": prefills, "decodes": decodes} if disaggregated else {"calls": calls}
    for name, count in wanted.items():
        if not 0 <= count - loaded.answers <= slack:
            yield f"{count} {name} for {loaded.answers} answers"
    if calls != (prefills + decodes if disaggregated else calls - prefills):
        yield f"{calls} calls, of which {prefills} prefills and {decodes} decodes"
    with bodies_file(bench.bodies, workload, form).open("rb") as file:
        shortest = min(len(line) for line in file)
    if calls and sum(each.body_bytes for each in counts) < calls * shortest * 0.95:
        yield "engines got less than clients sent"
