"""An event loop's clock and timers, moved by hand."""

from __future__ import annotations

import asyncio


class Loop:
    """A loop's clock and timers, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []
        self.made = 0

    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def call_later(self, delay: float, callback: object) -> Timer:
        timer = Timer(self, self.now + delay, callback)
        self.timers.append(timer)
        self.made += 1
        return timer

    def run_until(self, moment: float) -> None:
        while due := sorted([each for each in self.timers if each.at <= moment], key=Timer.when):
            self.now = max(self.now, due[0].at)
            self.timers.remove(due[0])
            due[0].callback()  # type: ignore[operator]
        self.now = moment


class Timer:
    """One timer of it."""

    def __init__(self, loop: Loop, at: float, callback: object) -> None:
        self.loop = loop
        self.at = at
        self.callback = callback

    def when(self) -> float:
        return self.at

    def cancel(self) -> None:
        if self in self.loop.timers:
            self.loop.timers.remove(self)
