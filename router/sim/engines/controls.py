"""What tests and engines ask of an engine beside vLLM's surface: `/standin/…`.

| path | does |
|---|---|
| `GET /standin/lookups?since=` | the log of cache look-ups after number `since` |
| `GET /standin/state` | counters of this engine, its ports, its cluster's links |
| `POST /standin/faults` | order a fault (`faults.FaultOrder`) |
| `GET`, `PUT /standin/link/{name}` | read or change a link: `gbps`, `up`, `overlap` |
| `POST /standin/pull`, `/standin/discard` | the KV transfer between engines |

`?instance=` addresses another engine of the same process, which may be the dead one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Protocol, TypeAlias

from router.sim.engines.asgi import Exchange
from router.sim.engines.engine import Engine
from router.sim.engines.errors import PullError, RequestError, SpecError, UnknownHandoffError
from router.sim.engines.faults import FaultOrder, Faults, read_order
from router.sim.engines.link import Link
from router.sim.engines.pulling import DISCARD_PATH, PULL_PATH
from router.sim.engines.requests import Body, read_body, require_field
from router.sim.engines.specs import EngineSpec
from router.sim.engines.transfers import PullAsk

Handler: TypeAlias = Callable[[Exchange], Awaitable[None]]

LINK_PREFIX = "/standin/link/"


class Site(Protocol):
    """The engine as its process sees it, across restarts."""

    spec: EngineSpec
    faults: Faults

    @property
    def engine(self) -> Engine:
        """The living incarnation."""
        ...

    def sibling(self, name: str | None) -> Site:
        """Return another engine of the process, this one for None; raises RequestError."""
        ...

    def describe(self) -> dict[str, object]:
        """Return names, ports and counters."""
        ...

    def find_link(self, name: str) -> Link:
        """Return a link of the cluster; raises RequestError."""
        ...

    def order(self, order: FaultOrder) -> None:
        """Carry a fault out; a restart or a death goes on after this returns."""
        ...


def list_control_routes(site: Site) -> dict[str, dict[str, Handler]]:
    """Return the handlers by path and method; `LINK_PREFIX` stands for all that begin with it."""
    controls = _Controls(site)
    return {
        PULL_PATH: {"POST": controls.pull},
        DISCARD_PATH: {"POST": controls.discard},
        "/standin/lookups": {"GET": controls.list_look_ups},
        "/standin/state": {"GET": controls.show_state, "POST": controls.order_fault},
        "/standin/faults": {"POST": controls.order_fault},
        LINK_PREFIX: {"GET": controls.show_link, "PUT": controls.change_link},
    }


class _Controls:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def pull(self, exchange: Exchange) -> None:
        ask = _read_ask(await _read(exchange))

        async def work() -> None:
            try:
                receipt = await self._site.engine.serve_pull(ask)
            except UnknownHandoffError as error:
                raise RequestError(str(error), status=404, kind="NotFoundError") from error
            except PullError as error:
                raise RequestError(str(error), status=502, kind="BadGatewayError") from error
            await exchange.reply_json(200, {"bytes": receipt.size})

        await exchange.run_while_connected(work())

    async def discard(self, exchange: Exchange) -> None:
        self._site.engine.discard_handoff(_read_ask(await _read(exchange)))
        await exchange.reply_json(200, {})

    async def list_look_ups(self, exchange: Exchange) -> None:
        since = exchange.query("since") or "0"
        if not since.isdecimal():
            raise RequestError("since must be a number", param="since")
        engine = self._site.sibling(exchange.query("instance")).engine
        entries = [asdict(entry) for entry in engine.look_ups if entry.number > int(since)]
        await exchange.reply_json(200, {"lookups": entries})

    async def show_state(self, exchange: Exchange) -> None:
        await exchange.reply_json(200, self._site.sibling(exchange.query("instance")).describe())

    async def order_fault(self, exchange: Exchange) -> None:
        order = read_order(await _read(exchange))
        site = self._site.sibling(exchange.query("instance"))
        await exchange.reply_json(202, {"accepted": True})
        site.order(order)

    async def show_link(self, exchange: Exchange) -> None:
        await exchange.reply_json(200, self._find_link(exchange).describe())

    async def change_link(self, exchange: Exchange) -> None:
        link = self._find_link(exchange)
        _change_link(link, await _read(exchange))
        await exchange.reply_json(200, link.describe())

    def _find_link(self, exchange: Exchange) -> Link:
        return self._site.find_link(exchange.path.removeprefix(LINK_PREFIX))


async def _read(exchange: Exchange) -> Body:
    return read_body("application/json", await exchange.read())


def _change_link(link: Link, body: Body) -> None:
    gbps, up, overlap = body.get("gbps"), body.get("up"), body.get("overlap")
    if gbps is not None and (isinstance(gbps, bool) or not isinstance(gbps, int | float)):
        raise RequestError("gbps must be a number", param="gbps")
    try:
        link.change(
            gbps=gbps,
            up=up if isinstance(up, bool) else None,
            overlap=overlap if isinstance(overlap, bool) else None,
        )
    except SpecError as error:
        raise RequestError(str(error), param="gbps") from error


def _read_ask(body: Body) -> PullAsk:
    local = body.get("local_tokens")
    return PullAsk(
        engine_id=str(require_field(body, "engine_id")),
        request_id=str(require_field(body, "request_id")),
        cluster=str(body.get("cluster", "")),
        local_tokens=local if isinstance(local, int) else 0,
    )
