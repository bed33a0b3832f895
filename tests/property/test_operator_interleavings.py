"""Orders, reloads, changes of leader, telemetry and requests in any order: what always holds.

A seeded walk over two whole gateways on one Redis, with their own loops running beside it. Orders
go through the admin API, requests through the rule on live state, their legs and bookings counted
as the relay counts them. After each step the invariants are looked at in both processes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from router.compose.applications import build_routing
from router.compose.gateway import Gateway
from router.domain.decision import Decision, Reason, Route, ThresholdMode
from router.domain.errors import NobodyAlive
from router.domain.topology import InstanceState, Role
from router.service.members import Member
from router.service.routing import Supposition
from router.service.snapshots import WhatIf
from router.settings import load
from router.settings.reloads import settle
from tests.fakes.redis_servers import redis_server
from tests.fakes.systems import MODEL, Document, scripted_system, serve_gateway

TENANTS: Final = ("acme", "beta")
LINK: Final = "west-east"
NAMES: Final = ("p0", "p1", "d0", "d1", "f0", "f1")
SCHEDULER: Final[Document] = {
    "threshold": {"mode": "auto", "tokens": 900, "min_tokens": 64, "max_tokens": 4000},
    "short_loop": {"period_seconds": 0.05, "dwell_seconds": 0.1},
    "leader_lease_seconds": 2,
}
SIGNED: Final = frozenset({"prfaas_balance_residual_ratio"})
"""Gauges that may be below 0."""

Scope = tuple[str | None, str | None]


@dataclass(eq=False)
class Flight:
    """A request under way: who serves it, what it booked, and what ends it."""

    prefill: Member | None
    decode: Member
    booked: int
    stack: ExitStack
    decoding: bool = False


@dataclass
class Process:
    """One gateway, and the requests that run through it."""

    gateway: Gateway
    client: httpx.AsyncClient
    flights: list[Flight] = field(default_factory=list)

    async def order(self, method: str, path: str, body: object = None) -> httpx.Response:
        """Call the admin API."""
        return await self.client.request(method, f"/admin/v1/{path}", json=body)


@dataclass
class Walk:
    """The walk: both processes, the file that they share, and what was ordered."""

    chance: Random
    processes: tuple[Process, Process]
    path: Path
    original: Document
    overrides: dict[Scope, Route] = field(default_factory=dict)
    states: dict[str, InstanceState] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    # -- steps

    async def step(self) -> None:
        """Take one step in one of the processes, and look at both."""
        process = self.chance.choice(self.processes)
        steps: dict[Callable[[Process], Coroutine[Any, Any, None]], int] = {
            self.begin_request: 30,
            self.go_on: 30,
            self.report_telemetry: 10,
            self.order_threshold: 7,
            self.order_override: 8,
            self.order_state: 8,
            self.order_link: 6,
            self.order_nonsense: 4,
            self.hear_probe: 6,
            self.change_leader: 2,
            self.reload: 1,
            self.let_all_hear: 2,
        }
        chosen = self.chance.choices(list(steps), list(steps.values()))[0]
        self.steps[chosen.__name__] = self.steps.get(chosen.__name__, 0) + 1
        await chosen(process)
        for each in self.processes:
            check_bounds(each)
            check_counts(each)
        leading = [each.gateway.core.leadership for each in self.processes]
        terms = [each.term for each in leading if each.leads]
        assert len(set(terms)) == len(terms), "two lead in one term"

    async def begin_request(self, process: Process) -> None:
        """Decide a request on live state, and begin its first leg as the relay does."""
        decision = self.decide(process)
        if decision is None:
            return
        core, stack = process.gateway.core, ExitStack()
        prefill = None if decision.single_call else decision.prefill
        decode = core.fleet.member(decision.decode.instance)
        member = core.fleet.member(prefill.instance) if prefill else None
        booked = 0
        if prefill is not None:
            stack.enter_context(core.fleet.prefill_leg(prefill.instance, 0.1))
            stack.enter_context(core.fleet.decode_due(decision.decode.instance))
            if decision.route is Route.PRFAAS and decision.link is not None:
                booked = decision.kv_bytes or 0
                stack.callback(core.links.book(decision.link.name, decision.kv_bytes).release)
        else:
            stack.enter_context(core.fleet.decode_leg(decision.decode.instance))
        process.flights.append(Flight(member, decode, booked, stack, prefill is None))

    def decide(self, process: Process) -> Decision | None:
        """Decide a request; whatever the state, orders are obeyed."""
        core = process.gateway.core
        total = self.chance.choice((10, 300, 900, 1500, 5000))
        tenant = self.chance.choice(TENANTS)
        supposed = Supposition(
            core.catalog.resolve(MODEL), core.tenants.find(tenant), total, {"east": 0, "west": 0}
        )
        lengths = core.lengths.of(MODEL)
        try:
            record = build_routing(core).suppose(supposed, WhatIf(), request_id="r")
        except NobodyAlive:
            return None
        decision = record.decision
        lengths.note(uncached=total, computed=total, offloaded=decision.route is Route.PRFAAS)
        for place in (decision.prefill, decision.decode):
            if place is not None:
                member = core.fleet.member(place.instance)
                assert member.state is InstanceState.ACTIVE, "a drained instance was chosen"
                assert member.health.alive
        override = core.operator.override(MODEL, tenant)
        if override is not None and decision.reason is not Reason.DISABLED:
            assert decision.reason in {Reason.OVERRIDE, Reason.LOCAL_PREFILL_UNAVAILABLE}
            assert decision.route is override.route or decision.blocked_by is not None
        return decision

    async def go_on(self, process: Process) -> None:
        """Let a request decode, or end: answered, failed or aborted is all the same here."""
        if not process.flights:
            return
        flight = self.chance.choice(process.flights)
        flight.stack.close()
        if flight.decoding or self.chance.random() < 0.2:
            process.flights.remove(flight)
            return
        fleet = process.gateway.core.fleet
        flight.booked, flight.prefill, flight.decoding = 0, None, True
        flight.stack = ExitStack()
        try:
            known = fleet.member(flight.decode.instance.name)
        except Exception:  # noqa: BLE001 - whoever left has no legs to be counted
            known = None
        if known is not flight.decode:
            process.flights.remove(flight)
            return
        flight.stack.enter_context(fleet.decode_leg(flight.decode.instance.name))

    async def report_telemetry(self, process: Process) -> None:
        """Tell of the link: idle, busy, throttled, dead, or of long ago."""
        chance = self.chance
        body: dict[str, object] = {"egress_gbps": chance.choice((0, 0.1, 0.9, 5.0))}
        if chance.random() < 0.6:
            body["available_gbps"] = chance.choice((0, 0.001, 0.05, 1, 100))
        if chance.random() < 0.3:
            body["loss_ratio"] = chance.choice((0, 0.01, 0.5, 1))
        if chance.random() < 0.2:
            body["observed_at"] = "2020-01-01T00:00:00Z"
        answer = await process.order("POST", f"links/{LINK}/telemetry", body)
        assert answer.status_code == 200, answer.text

    async def order_threshold(self, process: Process) -> None:
        """Fix t, leave it to the loop, switch it off, give it back."""
        mode = self.chance.choice(("auto", "auto", "manual", "off", "config"))
        body: dict[str, object] = {"mode": mode}
        if mode == "manual":
            body["tokens"] = self.chance.choice((0, 100, 2_000, 1_000_000))
        scope = self.chance.choice(("", "?prfaas=west", f"?model={MODEL}&pd=east"))
        answer = await self.change(process, "PUT", f"threshold{scope}", body)
        assert answer.status_code == 200, answer.text
        if scope == "" and mode == "manual":
            pairs = process.gateway.core.operator.threshold(MODEL, "west", "east")
            assert (pairs.mode, pairs.tokens) == (ThresholdMode.MANUAL, body["tokens"])

    async def order_override(self, process: Process) -> None:
        """Force a route for somebody, or give it back; it is in force when the call returns."""
        chance = self.chance
        scope: Scope = chance.choice(((None, None), (MODEL, None), (None, "acme"), (MODEL, "beta")))
        named = {"model": scope[0], "tenant": scope[1]}
        if chance.random() < 0.5:
            route = chance.choice(list(Route))
            given = {key: value for key, value in named.items() if value}
            await self.change(process, "PUT", "override", {"route": route, **given})
            self.overrides[scope] = route
        else:
            query = "&".join(f"{key}={value}" for key, value in named.items() if value)
            await self.change(process, "DELETE", f"override?{query}")
            if scope == (None, None):
                self.overrides.clear()
            self.overrides.pop(scope, None)
        self.check_overrides(process)

    def check_overrides(self, process: Process) -> None:
        """The most specific order that was given holds."""
        for tenant in TENANTS:
            covering = [
                (sum(part is not None for part in scope), route)
                for scope, route in self.overrides.items()
                if scope[0] in (None, MODEL) and scope[1] in (None, tenant)
            ]
            view = process.gateway.core.operator.override(MODEL, tenant)
            most = max((rank for rank, _ in covering), default=None)
            wanted = {route for rank, route in covering if rank == most}
            assert (view is None) == (not wanted)
            assert view is None or view.route in wanted

    async def order_state(self, process: Process) -> None:
        """Drain, disable, activate, convert, remove or add an instance."""
        chance, name = self.chance, self.chance.choice(NAMES)
        if chance.random() < 0.15:
            if chance.random() < 0.5:
                answer = await self.change(process, "DELETE", f"instances/{name}")
            else:
                answer = await self.change(process, "POST", "instances", self.entry_of(name))
            assert answer.status_code in {200, 201, 404, 409}, answer.text
            if answer.is_success:
                self.states.pop(name, None)
            return
        body: dict[str, object] = {"state": chance.choice(list(InstanceState))}
        if name[0] != "f" and chance.random() < 0.3:
            body["role"] = chance.choice(list(Role))
        answer = await self.change(process, "PATCH", f"instances/{name}", body)
        assert answer.status_code in {200, 404}, answer.text
        if answer.is_success:
            self.states[name] = InstanceState(str(body["state"]))
            assert process.gateway.core.fleet.member(name).state is self.states[name]

    def entry_of(self, name: str) -> Document:
        """Return an instance's entry in the original file, for the admin API."""
        for cluster in self.original["clusters"]:
            for entry in cluster["instances"]:
                if entry["name"] == name:
                    return {**entry, "cluster": cluster["name"]}
        raise AssertionError(name)

    async def order_link(self, process: Process) -> None:
        """Close, open or narrow the link, or fix its regime."""
        chance = self.chance
        if chance.random() < 0.5:
            mode = chance.choice(("auto", "scarce", "abundant", "config"))
            answer = await self.change(process, "PUT", "bandwidth", {"mode": mode})
        else:
            body = {
                "health": chance.choice(("up", "down", "auto", "auto")),
                "capacity_gbps": chance.choice((None, 0.01, 1, 100)),
            }
            answer = await self.change(process, "PUT", f"links/{LINK}", body)
        assert answer.status_code == 200, answer.text

    async def order_nonsense(self, process: Process) -> None:
        """What is refused, or only tried, changes nothing."""
        orders = process.gateway.orders
        await orders.refresh()
        before = orders.orders
        method, path, body, match = self.chance.choice(
            (
                ("PUT", "threshold", {"mode": "manual", "tokens": -1}, None),
                ("PUT", "threshold?pd=moon", {"mode": "off"}, None),
                ("PUT", "override", {"route": "local", "ttl_seconds": -1}, None),
                ("PATCH", "instances/f0", {"role": "decode"}, None),
                ("PATCH", "instances/nobody", {"state": "active"}, None),
                ("PUT", f"links/{LINK}", {"capacity_gbps": -1}, None),
                ("PUT", "threshold", {"mode": "off"}, '"never"'),
                ("PUT", "override?dry_run=true", {"route": "local"}, None),
                ("DELETE", "override?dry_run=true", None, None),
            )
        )
        headers = {} if match is None else {"if-match": match}
        answer = await process.client.request(
            method, f"/admin/v1/{path}", json=body, headers=headers
        )
        assert answer.status_code < 500, answer.text
        assert ("dry_run" in path) == answer.is_success
        await orders.refresh()
        assert orders.orders == before

    async def change(
        self, process: Process, method: str, path: str, body: object = None
    ) -> httpx.Response:
        """Give an order, which the gateway may refuse and must not fail on."""
        answer = await process.order(method, path, body)
        assert answer.status_code < 500, answer.text
        return answer

    async def hear_probe(self, process: Process) -> None:
        """An engine fails probes until it is down, or answers until it is up."""
        name, ok = self.chance.choice(NAMES), self.chance.random() < 0.7
        for _ in range(3):
            process.gateway.core.fleet.record_probe(name, ok=ok)

    async def change_leader(self, process: Process) -> None:
        """The leader steps down; somebody takes over, and t stays what it was."""
        await process.gateway.core.leadership.leave()
        await self.chance.choice(self.processes).gateway.core.leadership.look()

    async def reload(self, _: Process) -> None:
        """Go on by another file: other bounds, another number, another capacity."""
        before = load(self.path, {})
        document = yaml.safe_load(self.path.read_text("utf-8"))
        low = self.chance.choice((16, 64, 500, 2_000))
        document["scheduler"]["threshold"] |= {
            "min_tokens": low,
            "max_tokens": low * self.chance.choice((1, 2, 8)),
            "tokens": self.chance.choice((10, 900, 50_000)),
            "mode": self.chance.choice(("auto", "auto", "manual")),
        }
        document["links"][0]["capacity_gbps"] = self.chance.choice((0.1, 1, 10))
        self.path.write_text(yaml.safe_dump(document), "utf-8")
        for each in self.processes:
            await each.gateway.reload(settle(before, load(self.path, {})))

    async def let_all_hear(self, process: Process) -> None:
        """Once everybody heard everybody, all agree on what is ordered and what is booked."""
        for each in self.processes:
            await each.gateway.orders.refresh()
        for each in (*self.processes, *self.processes):
            if each.gateway.peers is not None:
                await each.gateway.peers.exchange()
        one, two = self.processes
        assert repr(one.gateway.orders) == repr(two.gateway.orders)
        for each, other in ((one, two), (two, one)):
            self.check_overrides(each)
            for state in each.gateway.core.links.states:
                assert state.peers_booked == sum(flight.booked for flight in other.flights)
            for member in each.gateway.core.fleet.members:
                ordered = self.states.get(member.instance.name, InstanceState.ACTIVE)
                assert member.state is ordered, member.instance.name
        await check_gauges(process)


def check_bounds(process: Process) -> None:
    """What `auto` has in force is within the bounds of now."""
    operator = process.gateway.core.operator
    view = operator.threshold(MODEL, "west", "east")
    if view.mode is ThresholdMode.AUTO and operator.solved.of(MODEL, "east") is not None:
        assert operator.rules.low <= view.tokens <= operator.rules.high


def check_counts(process: Process) -> None:
    """Legs and bookings are those of the requests in flight, no more and no less."""
    core, flights = process.gateway.core, process.flights
    for state in core.links.states:
        assert state.booked == sum(flight.booked for flight in flights)
        assert state.peers_booked >= 0
    for member in core.fleet.members:
        prefills = sum(flight.prefill is member for flight in flights)
        decodes = sum(flight.decoding and flight.decode is member for flight in flights)
        due = sum(not flight.decoding and flight.decode is member for flight in flights)
        assert (len(member.prefills), member.decodes, member.decodes_due) == (
            prefills,
            decodes,
            due,
        )


async def check_gauges(process: Process) -> None:
    """No gauge is negative, or no number."""
    text = (await process.client.get("/metrics")).text
    for family in text_string_to_metric_families(text):
        if family.name.startswith("prfaas_"):
            for sample in family.samples:
                assert not math.isnan(sample.value), sample
                assert sample.value >= 0 or sample.name in SIGNED, sample


@asynccontextmanager
async def walking(directory: Path, url: str, seed: int) -> AsyncIterator[Walk]:
    """Two gateways over the same engines and the same store, whose probes are rare."""
    changes: dict[str, Any] = {
        "store": {"url": url, "timeout_ms": 60_000},
        "scheduler": SCHEDULER,
        "tenants": [{"name": name, "api_keys": [f"sk-{name}"]} for name in TENANTS],
        "upstream": {"probe": {"interval_seconds": 600}},
        "model": {"profiles": {"prfaas": "./profile.yaml", "pd": "./profile.yaml"}},
        "names": " ".join(NAMES),
    }
    async with (
        scripted_system(directory, **changes) as one,
        serve_gateway(directory / "prfaas.yaml", engines=one.engines) as two,
    ):
        clients = [
            httpx.AsyncClient(
                transport=httpx.ASGITransport(system.gateway.application),  # type: ignore[arg-type]  # an ASGI application, in our own words
                base_url="http://gateway",
            )
            for system in (one, two)
        ]
        processes = (Process(one.gateway, clients[0]), Process(two.gateway, clients[1]))
        path = directory / "prfaas.yaml"
        original = yaml.safe_load(path.read_text("utf-8"))
        yield Walk(Random(seed), processes, path, original)
        for client in clients:
            await client.aclose()


@pytest.mark.parametrize(
    "steps", [250, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
async def test_whatever_happens_in_whatever_order(tmp_path: Path, steps: int) -> None:
    """Bounds hold, overrides win, counts are those of requests in flight, drained is left alone.

    The number of steps is the seed.
    """
    with redis_server() as redis:
        async with walking(tmp_path, redis.url, steps) as walk:
            for _ in range(steps):
                await walk.step()
            for process in walk.processes:
                while process.flights:
                    await walk.go_on(process)
                check_counts(process)
                assert all(not state.booked for state in process.gateway.core.links.states)
            await walk.let_all_hear(walk.processes[0])
            await asyncio.sleep(0)
            assert len(walk.steps) == 12
