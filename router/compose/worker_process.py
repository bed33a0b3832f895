"""A worker as its supervisor sees it: a process, and what is said to it and by it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final, Self

from router.compose.worker_channel import (
    Abandon,
    Commit,
    NoteRefused,
    Order,
    Prepare,
    Prepared,
    Serving,
    Start,
    Unstartable,
    Word,
    read_message,
    write_message,
)
from router.domain.units import Seconds
from router.settings.reloads import Settled

_PREPARATION: Final[Seconds] = 60.0
"""Longest time to make a configuration ready: tokenizers load in seconds, probes time out in 5."""


class WorkerProcess:
    """One process from its start to its end. `settled` is the configuration that it runs by."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        settled: Settled,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._answer: asyncio.Future[str | None] | None = None
        self.settled = settled
        self.serves = False
        self.complaint: str | None = None

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.pid}{' serving' if self.serves else ''}>"

    @classmethod
    async def start(cls, order: Start) -> Self:
        """Start a process and give it its first order."""
        ours, theirs = socket.socketpair()
        with theirs:
            # A session of its own: Ctrl-C reaches the supervisor alone, which passes it on.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "router", "worker", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *order.listeners),
                start_new_session=True,
            )
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        write_message(writer, order)
        return cls(process, reader, writer, order.settled)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def listen(self, heard: Callable[[Order | Word], None]) -> int:
        """Pass on what it says until it is gone; return its exit code, negative for a signal."""
        while (word := await read_message(self._reader)) is not None:
            match word:
                case Prepared(refusal):
                    self._settle_answer(refusal)
                case Serving():
                    self.serves = True
                    heard(word)
                case Unstartable(message):
                    self.complaint = message
                case _:
                    heard(word)
        self.serves = False
        self._writer.close()
        self._settle_answer(None)  # its successor begins with what is in force then
        return await self._process.wait()

    async def prepare(self, settled: Settled) -> str | None:
        """Have it make a configuration ready; return why it cannot, None where it can or is gone.

        One at a time.
        """
        self._answer = asyncio.get_running_loop().create_future()
        write_message(self._writer, Prepare(settled))
        try:
            async with asyncio.timeout(_PREPARATION):
                return await self._answer
        except TimeoutError:
            return f"worker process {self.pid} did not make it ready in {_PREPARATION:g} s"
        finally:
            self._answer = None

    def commit(self, settled: Settled, *, counts: bool) -> None:
        """Have it go on by what it made ready."""
        self.settled = settled
        write_message(self._writer, Commit(counts))

    def tell(self, order: Abandon | NoteRefused) -> None:
        """Tell it something that needs no answer."""
        write_message(self._writer, order)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. SIGINT in the middle of Python's own start would leave a traceback."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number if self.serves else signal.SIGTERM)

    async def wait(self) -> None:
        """Wait for its end."""
        await self._process.wait()

    def kill(self) -> bool:
        """End it at once; False where it has ended."""
        if self._process.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        return True

    def _settle_answer(self, refusal: str | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(refusal)
