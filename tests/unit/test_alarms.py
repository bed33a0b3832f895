"""`Alarm`: a timer that is moved and taken back for nothing."""

from __future__ import annotations

import asyncio

from router.adapters.alarms import Alarm
from tests.fakes.loops import Loop


def alarm(loop: Loop, fired: list[float]) -> Alarm:
    return Alarm(loop, lambda: fired.append(loop.now))  # type: ignore[arg-type]  # what it uses of a loop


def test_it_goes_off_when_its_time_has_come() -> None:
    """Set once it goes off once, and can be set again."""
    loop, fired = Loop(), []
    one = alarm(loop, fired)
    one.set(2)
    loop.run_until(10)
    one.set(3)
    loop.run_until(20)
    assert fired == [2, 13]
    assert not loop.timers


def test_setting_it_again_moves_it_either_way() -> None:
    """The last time that was set is the one that counts, earlier or later."""
    loop, fired = Loop(), []
    one = alarm(loop, fired)
    one.set(5)
    loop.run_until(1)
    one.set(9)
    loop.run_until(9.9)
    assert fired == []
    loop.run_until(10)
    assert fired == [10]
    one.set(100)
    one.set(1)
    loop.run_until(200)
    assert fired == [10, 11]


def test_a_busy_alarm_makes_few_timers() -> None:
    """A thousand requests in one time-out share a timer; unset, it lets go of it."""
    loop, fired = Loop(), []
    one = alarm(loop, fired)
    for step in range(1000):
        loop.run_until(step / 1000)
        one.set(2)
        one.unset()
    assert loop.made == 1
    loop.run_until(10)
    assert (fired, loop.timers) == ([], [])


def test_closed_it_leaves_nothing_behind() -> None:
    """A connection that ends takes its timer with it."""
    loop, fired = Loop(), []
    one = alarm(loop, fired)
    one.set(1)
    one.close()
    loop.run_until(5)
    assert (fired, loop.made, loop.timers) == ([], 1, [])


async def test_it_keeps_time_on_a_real_loop() -> None:
    """On an event loop it goes off neither before its time nor never."""
    loop = asyncio.get_running_loop()
    gone_off = asyncio.Event()
    one = Alarm(loop, gone_off.set)
    began = loop.time()
    one.set(0.001)
    one.set(0.02)
    await asyncio.wait_for(gone_off.wait(), 30)
    assert loop.time() - began >= 0.019
