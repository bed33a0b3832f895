"""Keeps the workers of one gateway running: starts them, replaces them, ends them with itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from router.adapters.siblings import Seat
from router.compose.listeners import SharedListeners
from router.compose.running import Drain
from router.compose.worker_channel import (
    Leaving,
    Serving,
    Start,
    Unstartable,
    read_message,
    write_message,
)
from router.control.restarts import (
    RestartRules,
    Restarts,
    pause_before_restart,
    should_give_up,
    step_ended,
)
from router.domain.units import Seconds
from router.ports import Clock
from router.settings import Loaded

_LOG = logging.getLogger(__name__)

_LAST_GRACE: Final[Seconds] = 10.0
"""What a worker gets beyond its drain before it is killed: its own clean-up takes a second."""


class SupervisionFailed(Exception):
    """No worker can be kept running; one readable line, and the exit code that it deserves."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Crew:
    """How many workers, on what; `directory` is theirs alone and outlives each of them."""

    loaded: Loaded = field(repr=False)
    count: int
    directory: Path
    drain: Drain
    log_level: str


@dataclass(slots=True)
class _Worker:
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    serving_since: Seconds | None = None
    complaint: str | None = None


class Supervisor:
    """Runs the workers of one gateway until a signal."""

    def __init__(
        self,
        crew: Crew,
        listeners: SharedListeners,
        *,
        clock: Clock,
        announce: Callable[[], None],
        rules: RestartRules | None = None,
    ) -> None:
        """`announce` is called once, when every worker serves."""
        self._crew = crew
        self._listeners = listeners
        self._clock = clock
        self._announce = announce
        self._rules = rules or RestartRules()
        self._workers: dict[int, _Worker] = {}
        self._served: set[int] = set()
        self._ending = asyncio.Event()

    async def run(self) -> None:
        """Keep the workers running until SIGTERM or SIGINT, which go to each of them.

        What a worker does with them is in `running.run_gateway`. Raises SupervisionFailed where no
        worker comes to serve.
        """
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._pass_on, number)
        try:
            async with asyncio.TaskGroup() as tasks:
                limit = tasks.create_task(self._limit_the_end())
                tending = [
                    tasks.create_task(self._tend(place)) for place in range(self._crew.count)
                ]
                await asyncio.wait(tending)
                limit.cancel()
        except* SupervisionFailed as failed:
            raise failed.exceptions[0] from None
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
            await self._end_all()

    async def _tend(self, place: int) -> None:
        """Have a worker in one place, again and again."""
        restarts = Restarts()
        while not self._ending.is_set():
            worker = self._workers[place] = await self._start(place)
            await self._listen_to(place, worker)
            code = await worker.process.wait()
            del self._workers[place]
            if self._ending.is_set():
                return
            ended = self._clock.monotonic()
            served = None if worker.serving_since is None else ended - worker.serving_since
            restarts = step_ended(restarts, served, self._rules)
            told = worker.complaint or f"worker {place} (process {worker.process.pid}) {_say(code)}"
            self._check_hope(told, restarts, deserved=2 if worker.complaint else 1)
            await self._pause(place, told, pause_before_restart(restarts, self._rules))

    def _check_hope(self, told: str, restarts: Restarts, *, deserved: int) -> None:
        """Raise SupervisionFailed where nobody serves, and nobody will.

        What a worker says of its configuration counts at once as long as none of them has run with
        it; later it may be about a store that is away.
        """
        if not self._served and deserved == 2:
            raise SupervisionFailed(told, code=deserved)
        serving = any(worker.serving_since is not None for worker in self._workers.values())
        if not serving and should_give_up(restarts, self._rules):
            raise SupervisionFailed(f"no worker comes to serve: {told}", code=1)

    async def _pause(self, place: int, told: str, seconds: Seconds) -> None:
        if not seconds:
            _LOG.warning("%s; another one takes its place", told)
            return
        _LOG.warning("%s; another one takes its place in %g s", told, seconds)
        self._listeners.close(place)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    async def _start(self, place: int) -> _Worker:
        listeners = tuple(each.fileno() for each in self._listeners.of(place))
        ours, theirs = socket.socketpair()
        with theirs:
            # A session of its own: Ctrl-C reaches the supervisor alone, which passes it on.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "router", "worker", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *listeners),
                start_new_session=True,
            )
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        crew = self._crew
        seat = Seat(place, crew.count, crew.directory)
        write_message(writer, Start(crew.loaded, seat, listeners, crew.drain, crew.log_level))
        return _Worker(process, reader, writer)

    async def _listen_to(self, place: int, worker: _Worker) -> None:
        """Take note of what a worker says, until it is gone."""
        while (word := await read_message(worker.reader)) is not None:
            match word:
                case Serving():
                    worker.serving_since = self._clock.monotonic()
                    self._note_served(place)
                    if self._ending.is_set():
                        _send(worker, signal.SIGINT)
                case Leaving() if self._ending.is_set():
                    self._listeners.close(place)
                case Unstartable(message):
                    worker.complaint = message
                case _:
                    continue
        worker.writer.close()

    def _note_served(self, place: int) -> None:
        before = len(self._served)
        self._served.add(place)
        if before < len(self._served) == self._crew.count:
            self._announce()

    def _pass_on(self, number: signal.Signals) -> None:
        self._ending.set()
        for worker in self._workers.values():
            _send(worker, number)

    async def _limit_the_end(self) -> None:
        """Kill workers that do not end in time."""
        await self._ending.wait()
        drain = self._crew.drain
        await asyncio.sleep(drain.delay + drain.grace + _LAST_GRACE)
        self._kill_all()

    async def _end_all(self) -> None:
        """Leave no worker behind, whatever ended the supervisor."""
        for worker in self._workers.values():
            _send(worker, signal.SIGINT)
        waits = [worker.process.wait() for worker in self._workers.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_GRACE):
                await asyncio.gather(*waits)
        self._kill_all()

    def _kill_all(self) -> None:
        for place, worker in self._workers.items():
            with contextlib.suppress(ProcessLookupError):
                worker.process.kill()
                _LOG.warning("worker %d did not end in time and was killed", place)


def _send(worker: _Worker, number: signal.Signals) -> None:
    """Send a signal. SIGINT in the middle of Python's own start would leave a traceback."""
    told = signal.SIGTERM if worker.serving_since is None else number
    with contextlib.suppress(ProcessLookupError):
        worker.process.send_signal(told)


def _say(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with code {code}"
