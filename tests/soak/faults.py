"""What goes wrong during a soak: one fault after the other, each undone after a while.

Every fault is a coroutine that does it, waits and undoes it. Two run side by side at most, never
at the same engine, so that there is a system left for the traffic.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from tests.fakes.engine_processes import EngineProcess
from tests.fakes.systems import Document


@dataclass
class Breaking:
    """Breaks engines, links and orders for as long as it runs.

    `more` are faults of the variant that runs, by name.
    """

    engines: Mapping[str, EngineProcess]
    admin: httpx.AsyncClient
    chance: random.Random
    more: Mapping[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    now: set[str] = field(default_factory=set)
    _broken: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Break one thing after the other until cancelled; what is broken then is undone."""
        at_engines = {
            "status": self._status,
            "slow": self._slow,
            "cut_streams": self._cut_streams,
            "refuse": self._refuse,
            "swallow": self._swallow,
            "kill": self._kill,
            "freeze": self._freeze,
            "lose_events": self._lose_events,
            "drain": self._drain,
        }
        elsewhere = {"link": self._link, "regime": self._regime, "threshold": self._threshold}
        while True:
            await asyncio.sleep(self.chance.uniform(0.2, 1.5))
            whole = [name for name in self.engines if name not in self._broken]
            if self.chance.random() < 0.75 and whole:
                kind = self.chance.choice(sorted(at_engines))
                await self._break_engine(kind, self.chance.choice(whole), at_engines[kind])
            else:
                others = elsewhere | dict(self.more)
                kind = self.chance.choice(sorted(others))
                await self._note(kind, others[kind]())

    async def heal(self) -> None:
        """Undo everything, whatever was under way."""
        for engine in self.engines.values():
            engine.thaw()
            whole = {"clear": True, "dead": None, "broken_stream_after": None}
            if not (engine.runs and await self._order(engine, whole)):
                await engine.kill()
                await engine.start()
            await self._admin("PATCH", f"instances/{engine.name}", {"state": "active"})
        await self._admin("PUT", "links/west-east", {"health": "auto"})
        await self._admin("PUT", "bandwidth", {"mode": "auto"})
        await self._admin("PUT", "threshold", {"mode": "config"})

    # -- at an engine

    async def _break_engine(
        self, kind: str, name: str, fault: Callable[[EngineProcess], Awaitable[None]]
    ) -> None:
        self._broken.add(name)
        try:
            await self._note(f"{kind} {name}", fault(self.engines[name]))
        finally:
            self._broken.discard(name)

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Count a fault, and tell of it while it lasts."""
        self.done[what.partition(" ")[0]] += 1
        self.now.add(what)
        try:
            yield
        finally:
            self.now.discard(what)

    async def _note(self, what: str, fault: Awaitable[None]) -> None:
        with self.noting(what):
            await fault

    async def _status(self, engine: EngineProcess) -> None:
        status = self.chance.choice([500, 502, 503, 429, 400])
        await self._order(engine, {"status": status, "times": self.chance.randrange(1, 6)})
        await self._wait(0.5, 2.0)
        await self._order(engine, {"clear": True})

    async def _slow(self, engine: EngineProcess) -> None:
        await self._order(engine, {"slow_seconds": self.chance.uniform(0.1, 1.5)})
        await self._wait(1.0, 4.0)
        await self._order(engine, {"clear": True})

    async def _cut_streams(self, engine: EngineProcess) -> None:
        await self._order(engine, {"broken_stream_after": self.chance.randrange(0, 6)})
        await self._wait(0.5, 2.0)
        await self._order(engine, {"broken_stream_after": None})

    async def _refuse(self, engine: EngineProcess) -> None:
        await self._order(engine, {"dead": "refuse"})
        await self._wait(0.2, 4.0)
        # Nothing of it listens: only a new process can be told.
        await engine.kill()
        await engine.start()

    async def _swallow(self, engine: EngineProcess) -> None:
        await self._order(engine, {"dead": "black_hole"})
        await self._wait(0.2, 5.0)
        await self._order(engine, {"dead": None})

    async def _kill(self, engine: EngineProcess) -> None:
        await engine.kill()
        await self._wait(0.2, 3.0)
        await engine.start()

    async def _freeze(self, engine: EngineProcess) -> None:
        engine.freeze()
        await self._wait(0.2, 8.0)
        engine.thaw()

    async def _lose_events(self, engine: EngineProcess) -> None:
        await self._order(engine, {"drop_events": self.chance.randrange(1, 20)})

    async def _drain(self, engine: EngineProcess) -> None:
        state = self.chance.choice(["draining", "disabled"])
        await self._admin("PATCH", f"instances/{engine.name}", {"state": state})
        await self._wait(0.5, 3.0)
        await self._admin("PATCH", f"instances/{engine.name}", {"state": "active"})

    # -- elsewhere

    async def _link(self) -> None:
        await self._admin("PUT", "links/west-east", {"health": "down"})
        await self._wait(0.2, 2.0)
        await self._admin("PUT", "links/west-east", {"health": "auto"})

    async def _regime(self) -> None:
        mode = self.chance.choice(["scarce", "abundant", "auto"])
        await self._admin("PUT", "bandwidth", {"mode": mode})

    async def _threshold(self) -> None:
        tokens = self.chance.choice([0, 100, 200, 600])
        await self._admin("PUT", "threshold", {"mode": "manual", "tokens": tokens})

    async def _wait(self, least: float, most: float) -> None:
        await asyncio.sleep(self.chance.uniform(least, most))

    async def _order(self, engine: EngineProcess, order: Document) -> bool:
        """Tell a stand-in; False for one that is away, and needs no telling."""
        try:
            await self.admin.post(f"{engine.url}/standin/faults", json=order, timeout=5.0)
        except httpx.HTTPError:
            return False
        return True

    async def _admin(self, method: str, path: str, body: Document) -> None:
        url = f"/admin/v1/{path}"
        for _ in range(60):
            answer = await self.admin.request(method, url, json=body, timeout=30.0)
            if answer.status_code != 503:  # as while the store is away: nobody could keep it
                break
            await asyncio.sleep(0.5)
        if answer.status_code != 404:  # a reload may have taken the instance away for a while
            answer.raise_for_status()
