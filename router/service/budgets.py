"""Time limits that cost nothing where nothing waits."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

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
