"""The `prfaas` command as a process of its own, with its output at hand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class RunningCommand:
    """One `prfaas` process. Lines of both streams are kept as they come."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._news = asyncio.Condition()
        self._readers = [
            asyncio.create_task(self._read(process.stdout, self.stdout)),
            asyncio.create_task(self._read(process.stderr, self.stderr)),
        ]

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process alone."""
        self.process.send_signal(number)

    async def said(self, pattern: str, *, within: float = 60.0) -> re.Match[str]:
        """Wait for a line of output that matches."""
        async with asyncio.timeout(within), self._news:
            while True:
                for line in [*self.stdout, *self.stderr]:
                    if match := re.search(pattern, line):
                        return match
                assert not self._at_end(), f"ended without saying {pattern!r}: {self.stderr}"
                await self._news.wait()

    async def ended(self, *, within: float = 60.0) -> int:
        """Wait for the end; return the exit code, negative for a signal."""
        async with asyncio.timeout(within):
            code = await self.process.wait()
            await asyncio.gather(*self._readers)
        return code

    def children(self) -> list[int]:
        """Return the ids of the processes that this one started and that live."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in path.read_text("ascii").split()]

    async def stop(self) -> None:
        """Kill it if it still runs."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _at_end(self) -> bool:
        return all(reader.done() for reader in self._readers)

    async def _read(self, stream: asyncio.StreamReader, lines: list[str]) -> None:
        try:
            async for line in stream:
                async with self._news:
                    lines.append(line.decode().rstrip("\n"))
                    self._news.notify_all()
        finally:
            async with self._news:
                self._news.notify_all()


@asynccontextmanager
async def prfaas(
    *arguments: str, directory: Path, module: str = "router"
) -> AsyncIterator[RunningCommand]:
    """Run `prfaas` for the time of the block, without the test's environment in its settings.

    `module` may be another one, that runs it with something more.
    """
    environment = {name: value for name, value in os.environ.items() if "PRFAAS" not in name}
    if module != "router":
        environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        cwd=directory,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    command = RunningCommand(process)
    try:
        yield command
    finally:
        await command.stop()


async def gone(pids: list[int], *, within: float = 60.0) -> None:
    """Wait until none of these processes lives; a zombie does not."""

    def lives(pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        return state != "Z"

    async with asyncio.timeout(within):
        while any(lives(pid) for pid in pids):  # noqa: ASYNC110 - not our children: nothing tells
            await asyncio.sleep(0.02)
