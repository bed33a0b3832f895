"""Limits that are armed, and shelters that are built, only where something waits."""

from __future__ import annotations

import asyncio

import pytest

from router.service.budgets import Sheltered, within


async def test_work_that_never_waits_needs_no_loop_turn() -> None:
    """What ends without waiting is done in the same turn of the loop, whatever the limit."""
    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "turn")

    async def work() -> int:
        return 3

    assert await within(0.0001, work()) == 3
    assert not turns


async def test_work_over_its_limit_is_cancelled() -> None:
    """What waits for longer than the limit is cancelled where it waits, and TimeoutError raised."""
    steps: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise

    with pytest.raises(TimeoutError):
        await within(0.01, work())
    assert steps == ["cancelled"]


async def test_several_waits_give_their_result() -> None:
    """Work that waits again and again, without a limit, gives what it returns."""

    async def work() -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return await asyncio.to_thread(lambda: "done")

    assert await within(0, work()) == "done"


@pytest.mark.parametrize("waits", [0, 1])
async def test_errors_pass(waits: int) -> None:
    """An error of the work is raised as it is, before its first wait and after."""

    async def work() -> None:
        for _ in range(waits):
            await asyncio.sleep(0)
        raise LookupError("of the work")

    with pytest.raises(LookupError, match="of the work"):
        await within(5, work())


async def test_work_may_outlive_a_cancellation_that_it_handles() -> None:
    """The work sees its caller's cancellation at its first wait, and may answer it."""

    async def work() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "saved"
        return "unreached"

    task = asyncio.create_task(within(60, work()))
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "saved"


@pytest.mark.parametrize("waits", [0, 1, 3])
async def test_sheltered_work_gives_its_result(waits: int) -> None:
    """Work that is left alone gives what it returns, and what it raises."""

    async def work(outcome: str) -> str:
        for turn in range(waits):
            await asyncio.sleep(0.001 * turn)
        if outcome == "error":
            raise LookupError(outcome)
        return outcome

    assert await Sheltered(work("done")).result() == "done"
    with pytest.raises(LookupError, match="error"):
        await Sheltered(work("error")).result()


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_sheltered_work_goes_on_after_its_awaiter(turns: int) -> None:
    """A cancelled awaiter leaves the work where it was; `go_on` finishes it, nothing twice."""
    steps: list[str] = []
    gate = asyncio.Event()

    async def work() -> str:
        steps.append("begun")
        await asyncio.sleep(0)
        steps.append("waits")
        await gate.wait()
        steps.append("done")
        return "result"

    sheltered = Sheltered(work())
    task = asyncio.create_task(sheltered.result())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    rest = sheltered.go_on()
    gate.set()
    assert await rest == "result"
    assert steps == ["begun", "waits", "done"]


async def test_the_rest_of_sheltered_work_can_be_cancelled() -> None:
    """Once it goes on by itself, the work is a task like any other."""
    steps: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            steps.append("ended")

    sheltered = Sheltered(work())
    task = asyncio.create_task(sheltered.result())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not steps
    rest = sheltered.go_on()
    await asyncio.sleep(0)
    rest.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rest
    assert steps == ["ended"]


async def test_who_is_cancelled_while_the_work_wakes_is_cancelled_all_the_same() -> None:
    """What sheltered work waits for may end, in whatever way, in the turn of the cancellation."""
    for end in ("result", "error", "cancelled"):
        gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def work(gate: asyncio.Future[str] = gate) -> str:
            return await gate

        sheltered = Sheltered(work())
        task = asyncio.create_task(sheltered.result())
        await asyncio.sleep(0)
        match end:
            case "result":
                gate.set_result("here")
            case "error":
                gate.set_exception(LookupError("gone"))
            case _:
                gate.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        rest = sheltered.go_on()
        await asyncio.wait({rest})
        assert rest.cancelled() == (end == "cancelled")
        if not rest.cancelled():
            assert (rest.exception() is None) == (end == "result")


async def test_sheltered_work_hears_of_what_it_waits_for_being_cancelled() -> None:
    """A future that somebody else cancels is the work's to deal with, not its awaiter's."""
    gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            return await gate
        except asyncio.CancelledError:
            return "none came"

    task = asyncio.create_task(Sheltered(work()).result())
    await asyncio.sleep(0)
    gate.cancel()
    assert await task == "none came"
