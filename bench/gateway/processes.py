"""Processes on their processors: started, ended, and their use of the machine read from /proc."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

_END_SECONDS = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def pinned(cpu: int) -> list[str]:
    """Return the words before a command that keep it and its threads on one processor."""
    return ["taskset", "--cpu-list", str(cpu)]


@contextmanager
def started(
    command: Sequence[str | Path],
    cpu: int,
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Run a program on one processor for the time of the block, without its output or to a log."""
    with log.open("w") if log is not None else nullcontext(subprocess.DEVNULL) as output:
        process = subprocess.Popen(  # noqa: S603 - programs that the rig builds or configures
            [*pinned(cpu), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=directory,
            env=environment,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                end(process)


@contextmanager
def announced(command: Sequence[str | Path], cpu: int) -> Iterator[tuple[int, str]]:
    """Run a program on one processor; yield its process and the line that it says first."""
    process = subprocess.Popen(  # noqa: S603 - programs of the rig itself
        [*pinned(cpu), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process.pid, process.stdout.readline() if process.stdout is not None else ""
        finally:
            end(process)


def call(command: Sequence[str | Path], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and keep what it says. Raises subprocess.TimeoutExpired."""
    return subprocess.run(  # noqa: S603 - compilers, git, and programs of the rig itself
        command, capture_output=True, text=True, timeout=timeout, check=False
    )


def open_url(request: str | urllib.request.Request, timeout: float = 5.0) -> bytes:
    """Return the body of a loopback URL, past any proxy. Raises OSError."""
    with _OPENER.open(request, timeout=timeout) as answer:
        body: bytes = answer.read()
        return body


def end(process: subprocess.Popen[str]) -> None:
    """End a process and those that it started; those that do not go are killed."""
    family = tree(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    for pid in family[1:] if process.poll() is not None else family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(_END_SECONDS)


def tree(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    family = [pid]
    for member in family:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{member}/task").iterdir():
                family += [int(child) for child in (task / "children").read_text().split()]
    return family


def cpu_seconds(pids: list[int]) -> float:
    """Return the processor time that live processes have used, threads included."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def peak_mib(pids: list[int]) -> float:
    """Return the sum of the processes' peaks of resident memory."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return total / 1024


@dataclass(frozen=True, slots=True)
class MachineTime:
    """Seconds since boot, summed over processors: at work for somebody here, and stolen from us."""

    at: float
    busy: float
    stolen: float


def read_machine() -> MachineTime:
    """Read what the whole machine did. Interrupts count for no process, so they are left out."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _wait, _irq, _softirq, steal, *_ = map(int, fields)
    return MachineTime(time.monotonic(), (user + nice + system) / _TICKS, steal / _TICKS)


@dataclass(frozen=True, slots=True)
class Quiet:
    """How busy the machine was without us. `others` and `stolen` are in processors."""

    load_average: float
    others: float
    stolen: float

    @property
    def disturbed(self) -> str | None:
        """Why a measurement now would not count, None for a quiet machine."""
        if self.others > 0.15:
            return f"other processes use {self.others:.2f} processors"
        if self.stolen > 0.05:
            return f"the host takes {self.stolen:.2f} processors away"
        return None


def watch_machine(seconds: float) -> Quiet:
    """Look on for a while, doing nothing."""
    before = read_machine()
    time.sleep(seconds)
    after = read_machine()
    wall = after.at - before.at
    return Quiet(
        os.getloadavg()[0],
        (after.busy - before.busy) / wall,
        (after.stolen - before.stolen) / wall,
    )


def name_machine() -> str:
    """Return the processors and the kernel in a few words."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}"
