"""What is seen of a scene while it plays: the link as it is, and what each gateway makes of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import httpx

from bench.live.clients import Clients
from bench.live.plants import LINK, Document
from bench.live.systems import LiveSystem, SceneFailed
from router.domain.units import Seconds, Tokens, to_gbps

LOOK_SECONDS: Final = 0.25
REPORT_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class View:
    """What one gateway says at one moment. Bytes and rates are of the link."""

    threshold: Tokens
    solved: Tokens | None
    booked: int
    peers_booked: int
    usable_gbps: float
    utilization: float | None
    regime: str
    up: bool
    inflight: int


@dataclass(frozen=True, slots=True)
class Look:
    """One moment of a scene. `views` has None for a gateway that does not answer.

    `crossing` are the bytes that flows on the link still have to send, `sent` those that crossed.
    """

    at: Seconds
    gbps: float
    crossing: int
    sent: int
    views: tuple[View | None, ...]

    @property
    def booked(self) -> int:
        """What the gateways have booked together, each counting its own."""
        return sum(view.booked for view in self.views if view is not None)


class Watch:
    """Looks at everything, again and again."""

    def __init__(self, clients: Clients) -> None:
        self.looks: list[Look] = []
        self._clients = clients
        self._system = clients.system

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.looks.append(await self._look())
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> Look:
        # What crosses is read first: it is booked before it starts, and ends before its release.
        link = await self._system.read_link()
        views = [await self._view(number) for number in range(len(self._system.replicas))]
        rate = link["gbps"] if link["up"] else 0.0
        return Look(self._clients.now, rate, link["bytes_left"], link["bytes_sent"], tuple(views))

    async def _view(self, replica: int) -> View | None:
        if not self._system.replicas[replica].alive:
            return None
        try:
            links = await self._system.order("GET", f"links/{LINK}", replica=replica)
            threshold = await self._system.order("GET", "threshold", replica=replica)
            instances = await self._system.order("GET", "instances", replica=replica)
        except (httpx.HTTPError, SceneFailed):
            return None
        return _read(links, threshold, instances)


class Agent:
    """Reports the link's egress as a link agent on a PrfaaS host does, to either gateway in turn.

    It tells what is available only where it `knows`; else that must be inferred. `pretends` is an
    egress in Gbit/s that is told instead of the measured one, and while it is `silent` nothing is.
    """

    def __init__(self, system: LiveSystem, *, knows: bool = True) -> None:
        self.pretends: float | None = None
        self.silent = False
        self._knows = knows
        self._system = system

    async def run(self) -> None:
        """Report until cancelled; a gateway that is gone is passed over."""
        loop = asyncio.get_running_loop()
        before, then = await self._system.read_link(), loop.time()
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            link, now = await self._system.read_link(), loop.time()
            egress = to_gbps((link["bytes_sent"] - before["bytes_sent"]) / (now - then))
            before, then = link, now
            told = egress if self.pretends is None else self.pretends
            if not self.silent:
                await self.report(told, link["gbps"] if link["up"] else 0.0)

    async def report(self, egress_gbps: float, available_gbps: float) -> None:
        """Report once, to the first gateway that takes it."""
        body: Document = {"egress_gbps": egress_gbps}
        if self._knows:
            body["available_gbps"] = available_gbps
        for number, replica in enumerate(self._system.replicas):
            if replica.alive:
                with contextlib.suppress(httpx.HTTPError, SceneFailed):
                    await self._system.order(
                        "POST", f"links/{LINK}/telemetry", body, replica=number
                    )
                    return


class Work(Protocol):
    """What runs beside a scene."""

    async def run(self) -> None:
        """Run until cancelled."""
        ...


@asynccontextmanager
async def beside(*work: Work) -> AsyncIterator[None]:
    """Run watches, agents and the like for the time of the block; what they raise ends it."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in work]
        try:
            yield
        finally:
            for task in running:
                task.cancel()


def _read(link: Document, threshold: Document, instances: Document) -> View:
    return View(
        threshold=threshold["effective_tokens"],
        solved=threshold["solved_tokens"],
        booked=link["inflight_bytes"],
        peers_booked=link["peers_inflight_bytes"],
        usable_gbps=link["usable_gbps"],
        utilization=link["utilization"],
        regime=link["regime"],
        up=link["up"],
        inflight=sum(each["inflight"] for each in instances["instances"]),
    )
