"""All engines of one cluster in one event loop: `serve_cluster`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

import httpx

from router.domain.topology import Role
from router.sim.engines.answers import Answers
from router.sim.engines.asgi import Listener
from router.sim.engines.egress import Egress
from router.sim.engines.engine import Engine
from router.sim.engines.errors import RequestError
from router.sim.engines.faults import Dead, FaultOrder, Faults, apply_order
from router.sim.engines.link import Link
from router.sim.engines.publisher import EventPublisher
from router.sim.engines.pulling import HttpPuller
from router.sim.engines.server import EngineApp
from router.sim.engines.specs import ClusterSpec, EngineSpec, Tokenizer
from router.sim.engines.timing import SimClock
from router.sim.engines.transfers import Puller

logger = logging.getLogger(__name__)

PULL_TIMEOUT_SECONDS = 300.0
"""Wall time that one KV transfer may take: a link that is down must not hold requests for ever."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the engines of a process have in common."""

    spec: ClusterSpec
    clock: SimClock
    tokenizer: Tokenizer
    answers: Answers
    egress: Egress
    puller: Puller
    spawn: Callable[[Coroutine[object, object, None]], None]
    new_id: Callable[[], str]
    wall_time: Callable[[], float]


class Background:
    """Work that outlives the request that began it, owned until the cluster stops."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Start `work`; its failure is logged, for nobody waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    async def stop(self) -> None:
        """Cancel what still runs, and wait for it to end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("background work failed", exc_info=task.exception())


class EngineHost:
    """One engine's place in the process: its ports, and the incarnation that lives there now."""

    def __init__(
        self, spec: EngineSpec, shared: Shared, siblings: Mapping[str, EngineHost]
    ) -> None:
        self.spec = spec
        self.faults = Faults()
        self.restarts = 0
        self._shared = shared
        self._siblings = siblings
        self._app = EngineApp(
            self, shared.tokenizer, new_id=shared.new_id, wall_time=shared.wall_time
        )
        self._listener: Listener | None = None
        self._engine: Engine | None = None
        self._changing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<EngineHost {self.spec.name} at {self.url}>"

    @property
    def engine(self) -> Engine:
        """The incarnation that lives now, or lived last."""
        if self._engine is None:
            raise RequestError(f"{self.spec.name} has not started", status=503)
        return self._engine

    @property
    def url(self) -> str:
        """The base URL of the engine's HTTP surface."""
        return f"http://{self._shared.spec.host}:{self.spec.port}"

    @property
    def events_endpoint(self) -> str | None:
        """Where its KV events are published, None if they are not."""
        port = self.spec.events_port
        return None if port is None else f"tcp://{self._shared.spec.host}:{port}"

    @property
    def replay_endpoint(self) -> str | None:
        """Where KV events can be replayed, None if they cannot."""
        port = self.spec.replay_port
        return None if port is None else f"tcp://{self._shared.spec.host}:{port}"

    async def start(self, *, patient: bool = False) -> None:
        """Bring an incarnation up on the spec's ports; free ones are fixed from then on.

        Raises OSError or zmq.ZMQError for a port that is taken; `patient` waits for event ports.
        """
        shared = self._shared
        host = shared.spec.host
        publisher = EventPublisher(self.spec, host, shared.wall_time)
        await publisher.start(patient=patient)
        try:
            listener = Listener(self._app)
            await listener.open(host, self.spec.port)
        except BaseException:
            await publisher.stop()
            raise
        self._listener = listener
        self.spec = replace(
            self.spec,
            port=listener.port,
            events_port=publisher.events_port,
            replay_port=publisher.replay_port,
        )
        self._engine = Engine(
            self.spec,
            engine_id=shared.new_id(),
            host=host,
            port=self.spec.port,
            clock=shared.clock,
            answers=shared.answers,
            publisher=publisher,
            egress=shared.egress,
            puller=shared.puller,
            spawn=shared.spawn,
        )

    async def stop(self) -> None:
        """End the incarnation: connections break, requests are aborted, hand-offs are lost."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
            self.engine.stop()
            await self.engine.publisher.stop()

    def sibling(self, name: str | None) -> EngineHost:
        """Return an engine of the process by name, this one for None; raises RequestError."""
        found = self if name is None else self._siblings.get(name)
        if found is None:
            raise RequestError(f"no engine {name} here", status=404, kind="NotFoundError")
        return found

    def find_link(self, name: str) -> Link:
        """Return a link of the cluster by name; raises RequestError."""
        for link in self._shared.egress.links.values():
            if link.spec.name == name:
                return link
        raise RequestError(f"no link {name} here", status=404, kind="NotFoundError")

    def order(self, order: FaultOrder) -> None:
        """Carry a fault out; a restart, a death or a revival goes on after this returns."""
        apply_order(self.faults, order)
        publisher = self.engine.publisher
        if order.drop_events is not None:
            publisher.drop_live = order.drop_events
        if order.drop_replay is not None:
            publisher.drop_replay = order.drop_replay
        if order.clear:
            publisher.drop_live, publisher.drop_replay = 0, False
        dead = order.dead if order.sets_dead else None if order.clear else self.faults.dead
        if order.restart or dead is not self.faults.dead:
            self._shared.spawn(self._change_life(dead, order))

    def describe(self) -> dict[str, object]:
        """Return names, ports and counters, for tests and operators."""
        engine = self.engine
        return {
            "instance": self.spec.name,
            "cluster": self._shared.spec.name,
            "engine_id": engine.engine_id,
            "restarts": self.restarts,
            "url": self.url,
            "kv_events": self.events_endpoint,
            "kv_replay": self.replay_endpoint,
            "time_scale": self._shared.clock.scale,
            "running": engine.running,
            "waiting": engine.waiting,
            "deferred": engine.deferred,
            "handoffs": len(engine.handoffs),
            "handoffs_expired": engine.handoffs.expired,
            "blocks_used": engine.cache.pool.used,
            "blocks_total": engine.cache.pool.capacity,
            "blocks_named": engine.cache.pool.named,
            "kv_event_seq": engine.publisher.sequence,
            "lookups": engine.look_ups[-1].number if engine.look_ups else 0,
            "links": [link.describe() for link in self._shared.egress.links.values()],
        }

    async def _change_life(self, dead: Dead | None, order: FaultOrder) -> None:
        """Restart, die or come back. The ports stay the same."""
        async with self._changing:
            was, self.faults.dead = self.faults.dead, dead
            if order.restart or dead is Dead.REFUSE:
                await self.stop()
            if order.restart and dead is not Dead.REFUSE:
                await asyncio.sleep(order.down_seconds)
            if self._listener is None and dead is not Dead.REFUSE:
                await self.start(patient=True)
                self.restarts += 1
            logger.info("engine %s: dead %s, was %s", self.spec.name, dead, was)


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """A cluster that serves. Specs of `engines` show the ports that were taken."""

    spec: ClusterSpec
    engines: Mapping[str, EngineHost]
    links: Mapping[str, Link]


@asynccontextmanager
async def serve_cluster(
    spec: ClusterSpec,
    *,
    tokenizer: Tokenizer,
    monotonic: Callable[[], float] = time.monotonic,
    wall_time: Callable[[], float] = time.time,
    new_id: Callable[[], str] = lambda: uuid4().hex,
) -> AsyncIterator[RunningCluster]:
    """Serve all engines of a cluster until the context ends; all are up when it begins.

    Raises OSError or zmq.ZMQError if a port is taken. On leaving, connections break at once.
    """
    clock = SimClock(monotonic, spec.time_scale)
    links = tuple(Link(link, clock) for link in spec.links)
    leaves = all(engine.role is Role.PREFILL for engine in spec.engines)
    hosts: dict[str, EngineHost] = {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    background = Background()
    async with httpx.AsyncClient(limits=limits, trust_env=False) as client:
        shared = Shared(
            spec=spec,
            clock=clock,
            tokenizer=tokenizer,
            answers=Answers(tokenizer),
            egress=Egress(spec.name, links, leaves=leaves),
            puller=HttpPuller(client, PULL_TIMEOUT_SECONDS),
            spawn=background.spawn,
            new_id=new_id,
            wall_time=wall_time,
        )
        try:
            for engine in spec.engines:
                hosts[engine.name] = EngineHost(engine, shared, hosts)
                await hosts[engine.name].start()
            yield RunningCluster(spec, hosts, {link.spec.name: link for link in links})
        finally:
            await background.stop()
            for host in hosts.values():
                await host.stop()
            await background.stop()  # aborted requests left notices behind
            for link in links:
                link.stop()
