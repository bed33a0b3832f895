"""Calls to Redis: a cancellation that the client loses is heard all the same."""

from __future__ import annotations

import asyncio

import pytest

from kvmeta.backends.redis_store import stay_cancellable


@pytest.mark.parametrize("error", [None, OSError("gone")])
async def test_a_lost_cancellation_is_raised_when_the_call_is_done(error: OSError | None) -> None:
    """Whether the call then answers or fails, its task ends as cancelled and does not go on."""
    begun = asyncio.Event()

    async def lose_cancellation() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if error is not None:
                raise error from None
        return "answer"

    async def loop() -> None:
        while True:
            await stay_cancellable(lose_cancellation())

    task = asyncio.create_task(loop())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)


async def test_calls_after_a_cancellation_are_answered() -> None:
    """What a task does while it ends, to say good-bye to a store, is not cut by its own end."""

    async def answer() -> str:
        await asyncio.sleep(0)
        return "answer"

    async def say_good_bye() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            said = await stay_cancellable(answer())
            told.append(said)
        return said

    told: list[str] = []
    task = asyncio.create_task(say_good_bye())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["answer"]


async def test_a_time_out_that_is_lost_is_a_time_out() -> None:
    """Within `asyncio.timeout` the call that lost it raises TimeoutError."""

    async def lose_cancellation() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await stay_cancellable(lose_cancellation())
