"""How fast the engine client and the relay are: `python -m tests.bench.relay_speed`.

One process plays all engines on the second CPU, the relay runs on the first (where there are
two). Prints requests per second and CPU time per request; a streamed answer has 128 events in one
burst. Numbers compare builds on one quiet machine; they say nothing about another.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Awaitable, Callable
from multiprocessing.queues import Queue
from typing import cast

import uvloop

from router.adapters.engine_http import HttpEngineClient
from router.domain.decision import Route
from router.domain.topology import Role
from router.ports import EngineRequest, Timeouts
from tests.fakes.relay_parts import Rig, instance
from tests.fakes.scripted_engine import LAST_CHUNK, Send, chunk, head
from tests.integration.relay_scenes import DONE, PROMPT, STREAMED, event, prefilled

EVENTS = 128
WORKERS = 32


class FastEngine(asyncio.Protocol):
    """Answers whatever comes with bytes made beforehand; a request comes in one read."""

    whole = cast("Send", prefilled()[0]).payload
    burst = b"".join(
        step.payload
        for step in (
            head(200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")]),
            *[chunk(event("word"))] * EVENTS,
            chunk(DONE),
            LAST_CHUNK,
        )
    )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.burst if b'"stream":true' in data else self.whole)


def pin(cpu: int) -> None:
    if (os.cpu_count() or 1) > cpu:
        os.sched_setaffinity(0, {cpu})


def play_engines(ports: Queue[int]) -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(FastEngine, "127.0.0.1", 0)
        ports.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    pin(1)
    uvloop.run(serve())


async def measure(name: str, once: Callable[[], Awaitable[None]], count: int, workers: int) -> None:
    async def work(times: int) -> None:
        for _ in range(times):
            await once()

    await work(50)
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work(count // workers) for _ in range(workers)))
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    done = count // workers * workers
    print(f"{name:34} {done / wall:8.0f} requests/s {cpu / done * 1e6:6.0f} us CPU a request")  # noqa: T201


async def run(url: str) -> None:
    client = HttpEngineClient()
    rig = Rig(client, [instance("p", url, Role.PREFILL), instance("d", url, Role.DECODE)])
    call = EngineRequest("d", url, "/v1/completions", PROMPT, timeouts=Timeouts(2.0, 0.0, 300.0))

    async def fetch() -> None:
        await (await client.send(call)).read()

    def relayed(route: Route | None, body: bytes) -> Callable[[], Awaitable[None]]:
        async def once() -> None:
            decision = rig.planner.decide(route)
            async with await rig.relay.run(rig.request(body), decision) as response:
                async for _ in response.chunks():
                    pass

        return once

    await measure("client, 1 at a time", fetch, 5_000, 1)
    await measure(f"client, {WORKERS} at a time", fetch, 50_000, WORKERS)
    await measure("relay, one call", relayed(None, PROMPT), 10_000, WORKERS)
    await measure("relay, prefill and decode", relayed(Route.LOCAL, PROMPT), 6_000, WORKERS)
    name = f"relay, both legs, {EVENTS} events"
    await measure(name, relayed(Route.LOCAL, STREAMED), 1_500, WORKERS)
    await client.aclose()


def main() -> None:
    ports: Queue[int] = multiprocessing.Queue()
    engines = multiprocessing.Process(target=play_engines, args=(ports,), daemon=True)
    engines.start()
    port = ports.get(timeout=10)
    pin(0)
    try:
        uvloop.run(run(f"http://127.0.0.1:{port}"))
    finally:
        engines.terminate()
        engines.join()


if __name__ == "__main__":
    main()
