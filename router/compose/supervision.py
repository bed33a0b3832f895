"""Keeps the workers of one gateway running: starts them, replaces them, ends them with itself.

A new configuration is made ready by every worker before any of them goes on by it: all of them do,
or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from router.adapters.siblings import Seat
from router.compose.listeners import SharedListeners
from router.compose.reloading import ReloadRefused, Reloads
from router.compose.running import Drain
from router.compose.worker_channel import Abandon, Leaving, NoteRefused, Order, Serving, Start, Word
from router.compose.worker_process import WorkerProcess
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
from router.settings.reloads import Settled

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

    settled: Settled = field(repr=False)
    count: int
    directory: Path
    drain: Drain
    log_level: str


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
        self._workers: dict[int, WorkerProcess] = {}
        self._served: set[int] = set()
        self._ending = asyncio.Event()
        self._reloading = asyncio.Lock()

    async def run(self, load: Callable[[], Loaded]) -> None:
        """Keep the workers running until SIGTERM or SIGINT, which go to each of them.

        What a worker does with them is in `running.run_gateway`. `load` reads the configuration
        again. Raises SupervisionFailed where no worker comes to serve.
        """
        reloads = Reloads(self._crew.settled.loaded, self, load=load)
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._pass_on, number)
        try:
            with reloads.on_hangup():
                async with asyncio.TaskGroup() as tasks:
                    beside = [
                        tasks.create_task(reloads.run()),
                        tasks.create_task(self._limit_the_end()),
                    ]
                    tending = [
                        tasks.create_task(self._tend(place, tasks))
                        for place in range(self._crew.count)
                    ]
                    await asyncio.wait(tending)
                    for task in beside:
                        task.cancel()
        except* SupervisionFailed as failed:
            raise failed.exceptions[0] from None
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
            await self._end_all()

    # -- one configuration for all

    async def reload(self, settled: Settled) -> None:
        """Have all workers go on by a configuration. Raises ReloadRefused: then none of them does.

        A worker that dies meanwhile is replaced by one that begins with what is in force then.
        """
        async with self._reloading:
            workers = self._serving()
            answers = await asyncio.gather(*(worker.prepare(settled) for worker in workers))
            refusal = next((answer for answer in answers if answer is not None), None)
            if refusal is not None:
                for worker in workers:
                    worker.tell(Abandon())
                raise ReloadRefused(refusal)
            self._crew = replace(self._crew, settled=settled)
            for worker in workers:
                worker.commit(settled, counts=worker is workers[0])

    def note_refused(self, message: str) -> None:
        """Let every worker tell of it, and one count it."""
        workers = self._serving()
        for worker in workers:
            worker.tell(NoteRefused(message, counts=worker is workers[0]))

    async def _catch_up(self, worker: WorkerProcess) -> None:
        """Have a worker that began with an older configuration go on by the one in force."""
        async with self._reloading:
            settled = self._crew.settled
            if worker.settled is settled or not worker.serves:
                return
            refusal = await worker.prepare(settled)
            if refusal is None:
                worker.commit(settled, counts=False)
            else:
                _LOG.warning("worker process %d cannot keep up: %s", worker.pid, refusal)
                worker.signal(signal.SIGTERM)

    def _serving(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers.values() if worker.serves]

    # -- one worker for each place

    async def _tend(self, place: int, tasks: asyncio.TaskGroup) -> None:
        """Have a worker in one place, again and again."""
        restarts = Restarts()
        while not self._ending.is_set():
            worker = self._workers[place] = await WorkerProcess.start(self._first_order(place))
            if self._ending.is_set():
                worker.signal(signal.SIGTERM)  # the signal to all came before it was there
            began: list[Seconds] = []
            code = await worker.listen(partial(self._hear, place, worker, tasks, began))
            del self._workers[place]
            if self._ending.is_set():
                return
            served = self._clock.monotonic() - began[0] if began else None
            restarts = step_ended(restarts, served, self._rules)
            told = worker.complaint or f"worker {place} (process {worker.pid}) {_say(code)}"
            self._check_hope(told, restarts, complained=worker.complaint is not None)
            await self._pause(place, told, pause_before_restart(restarts, self._rules))

    def _first_order(self, place: int) -> Start:
        crew = self._crew
        listeners = tuple(each.fileno() for each in self._listeners.of(place))
        seat = Seat(place, crew.count, crew.directory)
        return Start(crew.settled, seat, listeners, crew.drain, crew.log_level)

    def _hear(
        self,
        place: int,
        worker: WorkerProcess,
        tasks: asyncio.TaskGroup,
        began: list[Seconds],
        word: Order | Word,
    ) -> None:
        """Take note of how far a worker is."""
        match word:
            case Serving() if self._ending.is_set():
                worker.signal(signal.SIGINT)
            case Serving():
                began.append(self._clock.monotonic())
                tasks.create_task(self._catch_up(worker))
                self._note_served(place)
            case Leaving() if self._ending.is_set():
                self._listeners.close(place)
            case _:
                pass  # a worker that leaves by itself is replaced at the same sockets

    def _note_served(self, place: int) -> None:
        before = len(self._served)
        self._served.add(place)
        if before < len(self._served) == self._crew.count:
            self._announce()

    def _check_hope(self, told: str, restarts: Restarts, *, complained: bool) -> None:
        """Raise SupervisionFailed where nobody serves, and nobody will.

        What a worker complains of counts at once as long as none of them has run with this
        configuration; later it may be about a store that is away.
        """
        if complained and not self._served:
            raise SupervisionFailed(told, code=2)
        if not self._serving() and should_give_up(restarts, self._rules):
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

    # -- the end

    def _pass_on(self, number: signal.Signals) -> None:
        self._ending.set()
        for worker in self._workers.values():
            worker.signal(number)

    async def _limit_the_end(self) -> None:
        """Kill workers that do not end in time."""
        await self._ending.wait()
        drain = self._crew.drain
        await asyncio.sleep(drain.delay + drain.grace + _LAST_GRACE)
        self._kill_all()

    async def _end_all(self) -> None:
        """Leave no worker behind, whatever ended the supervisor."""
        for worker in self._workers.values():
            worker.signal(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_GRACE):
                await asyncio.gather(*(worker.wait() for worker in self._workers.values()))
        self._kill_all()

    def _kill_all(self) -> None:
        for place, worker in self._workers.items():
            if worker.kill():
                _LOG.warning("worker %d did not end in time and was killed", place)


def _say(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with code {code}"
