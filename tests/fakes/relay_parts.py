"""Stand-ins for what the relay works with: a fleet that plans, books that count, a hook that notes.

They hold real state and no expectations; tests read it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from msgspec.structs import replace

from router.domain.decision import Decision, LinkView, NoRoute, Placement, Reason, Regime, Route
from router.domain.topology import Instance, Role
from router.domain.units import Bytes
from router.ports import EngineClient, Timeouts
from router.service.bodies import BodyKind, read_body
from router.service.connectors import NixlConnector
from router.service.relay import Relay
from router.service.relay_ports import (
    FailureKind,
    Fallback,
    KvOutcome,
    Leg,
    RelayRequest,
    RelaySettings,
    Target,
    Usage,
)

LOCAL_CLUSTER = "pd-east"
REMOTE_CLUSTER = "prfaas-west"
LINK = LinkView("west-east", up=True, regime=Regime.SCARCE)
KV_BYTES = Bytes(1_000_000)


class LoopClock:
    """The running event loop's time."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return datetime.now(UTC)


class FleetPlanner:
    """Plans over a list of instances: the first that fits, by name, unless it is excluded."""

    def __init__(self, instances: list[Instance], aliases: dict[str, str] | None = None) -> None:
        self.instances = {instance.name: instance for instance in instances}
        self.aliases = aliases or {}

    def resolve(self, instance: str, model: str) -> Target | None:
        found = self.instances.get(instance)
        if found is None:
            return None
        return Target(found, found.served_name or self.aliases.get(model, model))

    async def replan_local(
        self, decision: Decision, reason: Reason, excluded: frozenset[str]
    ) -> Decision | NoRoute:
        return replace(
            decision,
            route=Route.LOCAL,
            reason=reason,
            prefill=self._first(Role.PREFILL, excluded),
            kv_bytes=KV_BYTES,
        )

    async def replan_decode(
        self, decision: Decision, excluded: frozenset[str]
    ) -> Decision | NoRoute:
        decode = self._first(Role.DECODE, excluded)
        return NoRoute("m") if decode is None else replace(decision, decode=decode)

    def decide(self, route: Route | None) -> Decision:
        """Decide as told; None for one call that does everything."""
        decode = self._first(Role.DECODE, frozenset())
        assert decode is not None
        remote = route is Route.PRFAAS
        prefill = self._first(Role.PREFILL, frozenset(), remote=remote) if route else None
        return Decision(
            route=route or Route.LOCAL,
            reason=Reason.ABOVE_THRESHOLD if remote else Reason.BELOW_THRESHOLD,
            blocked_by=None,
            home=LOCAL_CLUSTER,
            prefill=prefill,
            decode=decode,
            uncached_tokens=30_000,
            compute_uncached_tokens=30_000,
            threshold=19_400,
            regime=Regime.SCARCE,
            cached=(),
            link=LINK if remote else None,
            kv_bytes=KV_BYTES if prefill else None,
        )

    def _first(
        self, role: Role, excluded: frozenset[str], *, remote: bool = False
    ) -> Placement | None:
        cluster = REMOTE_CLUSTER if remote else LOCAL_CLUSTER
        for name, instance in sorted(self.instances.items()):
            if name not in excluded and instance.role is role and instance.cluster == cluster:
                return Placement(cluster, name)
        return None


class Books:
    """A ledger with true counts."""

    def __init__(self) -> None:
        self.running: Counter[tuple[str, Leg]] = Counter()
        self.begun: list[tuple[str, Leg]] = []
        self.booked: Counter[str] = Counter()
        self.most_booked = 0
        self.streams: list[bool] = []
        self.courses: list[str] = []
        self.successes: list[str] = []
        self.failures: list[tuple[str, FailureKind]] = []

    @contextmanager
    def leg(self, leg: Leg, placement: Placement, compute_tokens: int) -> Iterator[None]:
        assert compute_tokens >= 0
        key = (placement.instance, leg)
        self.begun.append(key)
        self.running[key] += 1
        try:
            yield
        finally:
            self.running[key] -= 1

    def book(self, link: str, size: Bytes) -> _Booking:
        self.booked[link] += size
        self.most_booked = max(self.most_booked, self.booked[link])
        return _Booking(self, link, size)

    def hand_over(self, decision: Decision, *, streams: bool) -> _Booking:
        link, size = decision.link, decision.kv_bytes
        self.streams.append(streams)
        if decision.route is Route.LOCAL or link is None or size is None:
            return _Booking(self, "", Bytes(0))
        return self.book(link.name, size)

    def succeeded(self, instance: str) -> None:
        self.successes.append(instance)

    def failed(self, instance: str, kind: FailureKind) -> None:
        self.failures.append((instance, kind))

    @property
    def is_clear(self) -> bool:
        """Whether nothing is in flight and nothing is booked."""
        return not any(self.running.values()) and not any(self.booked.values())


@dataclass
class _Booking:
    books: Books
    link: str
    size: int

    def depart(self) -> None:
        self.books.courses.append("depart")

    def arrive(self) -> None:
        self.books.courses.append("arrive")

    def release(self) -> None:
        self.books.booked[self.link] -= self.size
        self.size = 0


@dataclass
class NotingHook:
    """Notes all it is told."""

    fallbacks: list[Fallback] = field(default_factory=list)
    failures: list[tuple[str, Leg, FailureKind]] = field(default_factory=list)
    prefills: list[tuple[str, Usage]] = field(default_factory=list)
    shipped: list[tuple[KvOutcome, int]] = field(default_factory=list)
    first_bytes: list[float] = field(default_factory=list)
    answers: list[tuple[Usage | None, int, bool]] = field(default_factory=list)

    def fell_back(self, decision: Decision, fallback: Fallback) -> None:
        assert decision is not None
        self.fallbacks.append(fallback)

    def upstream_failed(self, instance: str, leg: Leg, kind: FailureKind) -> None:
        self.failures.append((instance, leg, kind))

    def prefill_answered(self, placement: Placement, usage: Usage) -> None:
        self.prefills.append((placement.instance, usage))

    def kv_shipped(self, decision: Decision, size: Bytes, outcome: KvOutcome) -> None:
        assert decision is not None
        self.shipped.append((outcome, size))

    def first_byte(self, decision: Decision, elapsed: float) -> None:
        assert decision is not None
        self.first_bytes.append(elapsed)

    def answered(
        self, decision: Decision, usage: Usage | None, content_events: int, *, complete: bool
    ) -> None:
        assert decision is not None
        self.answers.append((usage, content_events, complete))


def instance(name: str, url: str, role: Role, *, remote: bool = False, **more: str) -> Instance:
    """An engine of one of the two clusters."""
    cluster = REMOTE_CLUSTER if remote else LOCAL_CLUSTER
    return Instance(name=name, cluster=cluster, url=url, role=role, **more)  # type: ignore[arg-type]


class Rig:
    """A relay over real connections, with everything it touches at hand."""

    def __init__(
        self, client: EngineClient, instances: list[Instance], settings: RelaySettings | None = None
    ) -> None:
        self.planner = FleetPlanner(instances)
        self.books = Books()
        self.hook = NotingHook()
        self.clock = LoopClock()
        self.relay = Relay(
            client=client,
            planner=self.planner,
            ledger=self.books,
            hook=self.hook,
            connector=NixlConnector(),
            clock=self.clock,
            settings=settings or RelaySettings(timeouts=Timeouts(1.0, 5.0, 5.0)),
        )
        self._numbers = itertools.count(1)

    def request(
        self,
        body: bytes,
        *,
        kind: BodyKind = BodyKind.COMPLETION,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> RelayRequest:
        """A request as the gateway would hand it over."""
        paths = {
            BodyKind.COMPLETION: "/v1/completions",
            BodyKind.CHAT: "/v1/chat/completions",
            BodyKind.RESPONSES: "/v1/responses",
            BodyKind.MESSAGES: "/v1/messages",
        }
        read = read_body(body, kind)
        return RelayRequest(
            path=paths[kind],
            body=read,
            headers=headers or [],
            request_id=f"req{next(self._numbers)}",
            model=read.model,
            received_at=self.clock.monotonic(),
        )
