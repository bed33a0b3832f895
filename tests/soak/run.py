"""One soak: a system of processes, traffic and faults for a while, then the books."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from tests.fakes.engine_processes import EngineFleet, engine_fleet
from tests.fakes.processes import RunningCommand, prfaas
from tests.fakes.redis_servers import Server, redis_server
from tests.fakes.systems import Document, Metrics
from tests.soak.accounts import Books, count_codes, read_log
from tests.soak.faults import Breaking
from tests.soak.reloads import Reloading
from tests.soak.traffic import TENANTS, Asking
from tests.soak.visits import Ending, Result, pay_visit
from tests.soak.vitals import Vitals, growth_bytes, read_vitals

ENGINES: Final = "p0 p1 d0 d1 d2 f0 f1"
LEASE_SECONDS: Final = 5.0
VISIT_LIMIT_SECONDS: Final = 60.0
"""Longest answer: far over what any time-out of the configuration lets happen."""

_GROWTH_BYTES: Final = 12 * 2**20
_GROWTH_SHARE: Final = 0.08
"""What memory may grow over the second half, the larger counts: allocators are not exact."""

_PROGRESS_SECONDS: Final = 5.0
_SETTLE_SECONDS: Final = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """What is run. `clients` ask at once, each again after a short pause.

    Several `workers` share a Redis, so there is one then. With `reloads` the configuration changes
    by SIGHUP about twice a minute.
    """

    minutes: float = 5.0
    seed: int = 1
    clients: int = 24
    workers: int = 1
    with_redis: bool = False
    reloads: bool = True


@dataclass(slots=True)
class Report:
    """What came of it; `faults` empty is a pass."""

    options: SoakOptions
    seconds: float = 0.0
    endings: dict[str, int] = field(default_factory=dict)
    statuses: dict[int, int] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)
    first: Vitals | None = None
    last: Vitals | None = None
    growth_bytes: float = 0.0
    handoffs_expired: int = 0
    faults: list[str] = field(default_factory=list)


class Soak:
    """The running system and what was seen of it."""

    def __init__(
        self, options: SoakOptions, fleet: EngineFleet, gateway: RunningCommand, url: str, say: Say
    ) -> None:
        self._options = options
        self._fleet = fleet
        self._gateway = gateway
        self._url = url
        self._say = say
        self._began = time.monotonic()
        self._results: list[Result] = []
        self._looks: list[Vitals] = []
        chance = random.Random(f"{options.seed}-reloads")
        self._reloading = Reloading(fleet.configuration, gateway, chance)
        self._books = Books()

    async def run(self, client: httpx.AsyncClient, store: Server | None) -> Report:
        """Run it."""
        report = Report(self._options)
        await self._until_ready(client)
        before = await self._tasks()
        report.first = self._look()
        counted = count_codes(await self._scrape(client))
        breaking = self._breaking(client, store)
        await self._storm(breaking)
        if self._options.reloads:
            await self._reloading.restore()
        await breaking.heal()
        await self._until_ready(client)
        state = await self._settled(client)
        await asyncio.sleep(LEASE_SECONDS + 1)
        metrics = await self._scrape(client)
        report.last = self._look()
        self._books.compare(
            self._results, read_log(self._gateway.stderr), count_codes(metrics) - counted
        )
        self._books.check_rest(state, metrics)
        self._books.check_output(self._gateway.stderr)
        report.handoffs_expired = await self._check_engines(client)
        self._check_process(report, before, await self._tasks())
        self._fill(report, metrics, breaking)
        return report

    # -- the storm

    async def _storm(self, breaking: Breaking) -> None:
        """Let clients ask and things break for the time given; end with every visit over."""
        ends = self._began + 60 * self._options.minutes
        asking = Asking(self._options.seed)
        beside = [
            asyncio.create_task(breaking.run()),
            asyncio.create_task(breaking.run()),
            asyncio.create_task(self._watch(breaking)),
        ]
        if self._options.reloads:
            beside.append(asyncio.create_task(self._reloading.run(breaking.noting)))
        try:
            async with asyncio.TaskGroup() as clients:
                for number in range(self._options.clients):
                    clients.create_task(self._ask(asking, number, ends))
        finally:
            for task in beside:
                task.cancel()
            done = await asyncio.gather(*beside, return_exceptions=True)
        for outcome in done:
            if not isinstance(outcome, asyncio.CancelledError):
                self._books.faults.append(f"the soak itself failed: {outcome!r}")

    async def _ask(self, asking: Asking, number: int, ends: float) -> None:
        chance = random.Random(f"{self._options.seed}-{number}")
        while time.monotonic() < ends:
            result = await pay_visit(
                self._url, asking.next(), limit=VISIT_LIMIT_SECONDS, chance=chance
            )
            self._results.append(result)
            await asyncio.sleep(chance.expovariate(1 / 0.1))

    async def _watch(self, breaking: Breaking) -> None:
        """Look at the process each second, and tell how it goes now and then."""
        told = time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            self._looks.append(self._look())
            if time.monotonic() - told >= _PROGRESS_SECONDS:
                told = time.monotonic()
                self._say(self._progress(breaking))

    def _progress(self, breaking: Breaking) -> str:
        look = self._looks[-1]
        statuses = Counter(result.status for result in self._results)
        seen = " ".join(f"{code}:{count}" for code, count in sorted(statuses.items(), key=str))
        left = sum(result.ending is Ending.LEFT for result in self._results)
        now = ", ".join(sorted(breaking.now)) or "all well"
        return (
            f"{look.at:6.0f} s  {len(self._results)} visits ({seen}; {left} left)"
            f"  {look.resident_bytes / 2**20:.0f} MiB  {look.descriptors} fds  [{now}]"
        )

    def _breaking(self, client: httpx.AsyncClient, store: Server | None) -> Breaking:
        more = {}
        if store is not None:

            async def freeze_store() -> None:
                store.freeze()
                await asyncio.sleep(2.0)
                store.thaw()

            async def flush_store() -> None:
                await asyncio.to_thread(store.call, "FLUSHALL")

            more = {"freeze_store": freeze_store, "flush_store": flush_store}
        chance = random.Random(f"{self._options.seed}-faults")
        return Breaking(self._fleet.engines, client, chance, more)

    # -- looks

    def _look(self) -> Vitals:
        pids = [self._gateway.pid]
        if self._options.workers > 1:
            pids += self._gateway.children()
        return read_vitals(time.monotonic() - self._began, *pids)

    async def _scrape(self, client: httpx.AsyncClient) -> Metrics:
        return Metrics((await client.get("/metrics")).text)

    async def _state(self, client: httpx.AsyncClient) -> Document:
        document: Document = (await client.get("/admin/v1/state")).json()
        return document

    async def _tasks(self) -> Counter[str]:
        """Return how many tasks the gateway has, by what they run; of workers nobody tells."""
        if self._options.workers > 1:
            return Counter()
        seen = len(self._gateway.stderr)
        self._gateway.send(signal.SIGUSR1)
        async with asyncio.timeout(20):
            while True:
                for line in self._gateway.stderr[seen:]:
                    if line.startswith("tasks "):
                        return Counter(json.loads(line.removeprefix("tasks ")))
                await asyncio.sleep(0.05)

    async def _until_ready(self, client: httpx.AsyncClient) -> None:
        async with asyncio.timeout(_SETTLE_SECONDS):
            while True:
                state = await self._state(client)
                ready = {each["name"] for each in state["instances"] if each["ready"]}
                if ready == self._fleet.engines.keys():
                    return
                await asyncio.sleep(0.1)

    async def _settled(self, client: httpx.AsyncClient) -> Document:
        """Wait until nothing is in flight; return the state then, or the last one seen."""
        deadline = time.monotonic() + 10
        while True:
            state = await self._state(client)
            busy = any(each["inflight"] for each in state["instances"])
            if not busy or time.monotonic() > deadline:
                return state
            await asyncio.sleep(0.1)

    # -- the books

    async def _check_engines(self, client: httpx.AsyncClient) -> int:
        expired = 0
        for engine in self._fleet.engines.values():
            state = (await client.get(f"{engine.url}/standin/state")).json()
            self._books.check_engine(engine.name, state)
            expired += state["handoffs_expired"]
        return expired

    def _check_process(self, report: Report, before: Counter[str], after: Counter[str]) -> None:
        """Compare the process at rest before and after."""
        first, last = report.first, report.last
        assert first is not None
        assert last is not None
        report.growth_bytes = growth_bytes(self._looks)
        allowed = max(_GROWTH_BYTES, _GROWTH_SHARE * last.resident_bytes)
        if report.growth_bytes > allowed:
            grown = report.growth_bytes / 2**20
            self._books.faults.append(f"memory grew by {grown:.1f} MiB over the second half")
        # A probe may have one connection more to an engine than it had at first.
        spare = 2 * len(self._fleet.engines) * self._options.workers
        if last.descriptors > first.descriptors + spare:
            self._books.faults.append(f"{first.descriptors} descriptors became {last.descriptors}")
        more = {name: count for name, count in (after - before).items() if count > spare}
        if more:
            self._books.faults.append(f"tasks are left: {more}")

    def _fill(self, report: Report, metrics: Metrics, breaking: Breaking) -> None:
        report.seconds = time.monotonic() - self._began
        report.endings = dict(Counter(result.ending.value for result in self._results))
        report.statuses = dict(Counter(result.status or 0 for result in self._results))
        report.broken = dict(breaking.done)
        report.fallbacks = {
            sample.labels["reason"]: int(sample.value)
            for sample in metrics.samples
            if sample.name == "prfaas_fallbacks_total" and sample.value
        }
        report.faults = self._books.faults


async def run_soak(options: SoakOptions, directory: Path, say: Say) -> Report:
    """Run one soak in a directory of its own."""
    async with AsyncExitStack() as stack:
        shared = options.with_redis or options.workers > 1
        store = stack.enter_context(redis_server()) if shared else None
        fleet = await stack.enter_async_context(_engines(directory, store))
        gateway = await stack.enter_async_context(
            prfaas(
                "serve",
                "--config",
                str(fleet.configuration),
                "--port",
                "0",
                "--workers",
                str(options.workers),
                directory=directory,
                module="tests.soak.gateway",
            )
        )
        url = (await gateway.said(r"prfaas gateway on (http://[^\s,]+)", within=60))[1]
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, timeout=30, trust_env=False)
        )
        return await Soak(options, fleet, gateway, url, say).run(client, store)


def _engines(
    directory: Path, store: Server | None
) -> contextlib.AbstractAsyncContextManager[EngineFleet]:
    """Start the engines; times are short, so that each is met many times in a few minutes."""
    changes: Document = {
        "server": {"max_body_bytes": 1_000_000},
        "tenants": TENANTS,
        "upstream": {
            "connect_timeout_seconds": 1,
            # A stand-in that swallowed a request and is well again never answers it.
            "first_byte_timeout_seconds": 10,
            "idle_timeout_seconds": 20,
            "lost_stream_timeout_seconds": 2,
            "probe": {"interval_seconds": 0.5, "timeout_seconds": 1.5},
            "breaker": {"failures": 5, "window_seconds": 10, "cooldown_seconds": 2},
        },
        "admission": {"queue_size": 12, "queue_timeout_seconds": 5},
        "transfer": {"lease_seconds": LEASE_SECONDS, "lease_margin_seconds": 1},
        "engines": {"time_scale": 2, "blocks": 1024, "max_model_len": 4096},
        "scheduler": {"decision_timeout_ms": 400},
        "admin": {"decision_log_size": 500},  # full in the warm-up: memory is compared
    }
    if store is not None:
        changes["store"] = {"url": store.url}
        changes["kvmeta"] = {"ingest": "embedded"}
    model = {"decode": {"max_concurrency": 4}}
    return engine_fleet(directory, ENGINES, threshold=200, model=model, **changes)
