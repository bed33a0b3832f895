"""The C programs of the rig: built on first use, run as processes, read as values."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.gateway.processes import announced, call, open_url, pinned
from bench.gateway.workloads import CHUNKS, Form, Workload, bodies_file

SOURCES = Path(__file__).parent.parent / "native"
_COMPILE_SECONDS = 120
_SLACK_SECONDS = 30


class RigError(Exception):
    """The rig cannot do its work; one readable line."""


def build(directory: Path) -> Native:
    """Compile what is older than its source. Raises RigError without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RigError("a C compiler is needed: install gcc")
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("engine", "load"):
        source, program = SOURCES / f"{name}.c", directory / name
        if program.exists() and program.stat().st_mtime > source.stat().st_mtime:
            continue
        options = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
        built = call([compiler, *options, "-o", program, source], _COMPILE_SECONDS)
        if built.returncode != 0:
            raise RigError(f"{source}: {built.stderr.strip()}")
    return Native(directory / "engine", directory / "load")


@dataclass(frozen=True, slots=True)
class Native:
    """Where the two programs are."""

    engine: Path
    load: Path


class Counts(msgspec.Struct, frozen=True):
    """What one port of the mock engine was asked for since it was configured."""

    calls: int
    prefills: int
    decodes: int
    streams: int
    body_bytes: int
    malformed: int
    aborted: int


class Quantiles(msgspec.Struct, frozen=True):
    """Of one run's samples, in microseconds."""

    p50: int
    p90: int
    p99: int
    max: int


class Loaded(msgspec.Struct, frozen=True):
    """What the load generator saw. `answers` and `events` count the warm-up, too."""

    requests_per_second: float
    events_per_second: float
    latency_us: Quantiles | None
    first_us: Quantiles | None
    gap_us: Quantiles | None
    answers: int
    events: int
    shortest_body: int
    longest_body: int
    bad_status: int
    bad_body: int
    broken: int


@dataclass(frozen=True, slots=True)
class MockEngine:
    """The mock engine's process, and one port for each engine that it plays."""

    pid: int
    ports: tuple[int, ...]

    @property
    def urls(self) -> list[str]:
        """The engines' addresses, in the order of their ports."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def configure(self, workload: Workload) -> None:
        """Set how streams go, and start counting anew."""
        query = f"chunks={CHUNKS}&interval_us={workload.interval_us}"
        url = f"{self.urls[0]}/mock?{query}"
        open_url(urllib.request.Request(url, method="POST"))  # noqa: S310 - http to loopback

    def counts(self) -> Mapping[int, Counts]:
        """Return what each port was asked for."""
        return msgspec.json.decode(open_url(f"{self.urls[0]}/mock"), type=dict[int, Counts])


@contextmanager
def run_engine(native: Native, cpu: int, engines: int) -> Iterator[MockEngine]:
    """Run the mock engine for the time of the block."""
    with announced([native.engine, str(engines)], cpu) as (pid, line):
        if not line:
            raise RigError("the mock engine did not start")
        yield MockEngine(pid, tuple(int(port) for port in line.split()))


def run_load(
    native: Native, cpu: int, port: int, workload: Workload, form: Form, bodies: Path
) -> Loaded:
    """Put a workload on a port until its time is up. Raises RigError."""
    command: list[str | Path] = [
        *pinned(cpu),
        native.load,
        *("--port", str(port)),
        *("--path", form.path),
        *("--bodies", str(bodies_file(bodies, workload, form))),
        *("--connections", str(workload.connections)),
        *("--warm-up", str(workload.warm_up)),
        *("--seconds", str(workload.seconds)),
        *("--events", str(workload.events)),
    ]
    timeout = workload.warm_up + workload.seconds + _SLACK_SECONDS
    try:
        done = call(command, timeout)
    except subprocess.TimeoutExpired as error:
        raise RigError(f"the load generator did not end in {timeout:.0f} s") from error
    if done.returncode != 0:
        raise RigError(done.stderr.strip() or f"the load generator ended with {done.returncode}")
    return msgspec.convert(json.loads(done.stdout), Loaded)
