"""Time limits and shelters for awaited work that cost nothing where they are not needed."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from typing import Any, Generic, TypeVar

from router.domain.units import Seconds

_Result = TypeVar("_Result")


async def within(limit: Seconds, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Await `work`, for at most `limit` seconds (0: for ever). Raises TimeoutError.

    The work runs up to its first wait before any timer is made: a look-up in this process's memory
    never waits, and a timer costs more than it.
    """
    try:
        awaited = work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what the coroutine returned
    async with asyncio.timeout(limit or None):
        return await _resume(work, awaited)


@types.coroutine
def _resume(work: Coroutine[Any, Any, _Result], awaited: object) -> Generator[Any, Any, _Result]:
    """Go on with a coroutine that waits for `awaited` already, as `await` would."""
    while True:
        try:
            answer = yield awaited
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001 - the work's to handle, whatever it is
            step = partial(work.throw, error)
        else:
            step = partial(work.send, answer)
        try:
            awaited = step()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what the coroutine returned


class Sheltered(Generic[_Result]):
    """Work that goes on when whoever awaits it is cancelled.

    As a task under `asyncio.shield`, but the task is made only if it comes to that: until then the
    work runs in its awaiter's turns.
    """

    __slots__ = ("_awaited", "_work")

    def __init__(self, work: Coroutine[Any, Any, _Result]) -> None:
        self._work = work
        self._awaited: asyncio.Future[object] | None = None

    async def result(self) -> _Result:
        """Await the work. Cancelled, it leaves the work as it is, for `go_on`."""
        try:
            awaited = self._work.send(None)
            while True:
                self._awaited = awaited
                await _wait_for(awaited)
                awaited = self._work.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what the coroutine returned

    def go_on(self) -> asyncio.Task[_Result]:
        """Return a task of the work that is left. Call it once, after a cancelled `result`."""
        if self._awaited is not None:
            self._awaited._asyncio_future_blocking = True  # noqa: SLF001 - as left by its `await`
        return asyncio.create_task(_run_rest(self._work, self._awaited))


async def _run_rest(work: Coroutine[Any, Any, _Result], awaited: object) -> _Result:
    return await _resume(work, awaited)


@types.coroutine
def _wait_for(awaited: asyncio.Future[object] | None) -> Generator[Any, Any, None]:
    """Wait until a future that a coroutine gave up on is done; being cancelled leaves it alone."""
    if awaited is None:  # a bare yield
        yield
        return
    awaited._asyncio_future_blocking = False  # noqa: SLF001 - this is not a task's own wait
    if awaited.done():
        return
    onlooker = _Onlooker(awaited)
    try:
        yield onlooker
    except GeneratorExit:
        raise
    except BaseException:  # the future's own outcome: the work gets it from there
        if onlooker.cancelled or not awaited.done():
            raise


class _Onlooker:
    """A future as a task sees it that waits for another's: it wakes with it, and cancels nothing.

    What a task does with whatever it waits for (`asyncio.tasks.Task.__step`) is all that is here.
    """

    __slots__ = ("_asyncio_future_blocking", "_call", "_context", "_watched", "cancelled")

    def __init__(self, watched: asyncio.Future[object]) -> None:
        self._watched = watched
        self.cancelled = False
        self._asyncio_future_blocking = True

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the future that is watched."""
        return self._watched.get_loop()

    def add_done_callback(
        self, call: Callable[[asyncio.Future[object]], object], *, context: Context | None = None
    ) -> None:
        """Have the task woken by the future itself."""
        self._call, self._context = call, context
        self._watched.add_done_callback(call, context=context)

    def cancel(self, msg: object = None) -> bool:
        """Wake the task as by a cancelled future, and look on no more."""
        self.cancelled = True
        if not self._watched.remove_done_callback(self._call):
            return False  # it is being woken already
        loop = self.get_loop()
        gone: asyncio.Future[object] = loop.create_future()
        gone.cancel(msg)
        loop.call_soon(self._call, gone, context=self._context)
        return True
