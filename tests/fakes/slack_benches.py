"""Late binding without engines: a fleet, a link and a clock that move when told.

bench = SlackBench(prefills="p0 p1", remotes="f0")
first = bench.ask(500)                  # a prompt of 500 tokens, and the task that waits
await settle()
bench.begin(first.result())             # its prefill runs
bench.end("p0")                         # and ends
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

from kvmeta.types import CacheLayout, GroupKind, KvGroup
from router.control.links import RegimeBounds
from router.control.slack import SlackRules
from router.domain.decision import RequestView, Rule, Snapshot, ThresholdMode, TokenSource
from router.domain.topology import Cluster, ClusterKind, Instance, Link, Role
from router.domain.units import BytesPerSecond, Seconds, Tokens, from_gbps
from router.policy.berths import Berths, find_berths
from router.service.admission import OwnSlots, SlotSource
from router.service.fleet import Fleet
from router.service.late_binding import BindingOutcome, BindingRules, LateBinding
from router.service.lengths import OperatingLengths
from router.service.links import LinkBoard
from router.service.models import ServedModel
from router.service.operator import Operator, ThresholdRules
from router.service.places import Place, PrefillPlaces
from router.service.snapshots import PolicyRules, SnapshotBuilder
from router.throughput.profiles import Profile
from tests.fakes.clocks import FakeClock
from tests.fakes.plants import a_linear_profile

MODEL = "tiny"
EIGHT_GIGABITS = from_gbps(8)
DEFAULTS = BindingRules()
PROFILES: Mapping[ClusterKind, Profile] = {
    ClusterKind.PD: a_linear_profile(0.002, 1000),
    ClusterKind.PRFAAS: a_linear_profile(0.001, 1000),
}
"""A thousand tokens take 2 s at home and 1 s away, and are a megabyte."""


async def settle() -> None:
    """Let everything happen that can happen without time."""
    for _ in range(10):
        await asyncio.sleep(0)


class Waits:
    """A `BindingHook` that remembers."""

    def __init__(self) -> None:
        self.outcomes: list[BindingOutcome] = []
        self.waits: list[Seconds] = []

    def bound(self, outcome: BindingOutcome, elapsed: Seconds) -> None:
        self.outcomes.append(outcome)
        self.waits.append(elapsed)


class SlackBench:
    """The shell of `slack` with everything around it that it works on."""

    def __init__(
        self,
        *,
        prefills: str = "p0",
        remotes: str = "f0",
        threshold: Tokens = 1000,
        capacity: BytesPerSecond = EIGHT_GIGABITS,
        profiles: Mapping[ClusterKind, Profile] = PROFILES,
        rules: BindingRules = DEFAULTS,
        source: SlotSource | None = None,
        clock: FakeClock | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        clusters = [Cluster("pd", ClusterKind.PD), Cluster("prfaas", ClusterKind.PRFAAS)]
        instances = [an_instance(name) for name in (*prefills.split(), *remotes.split(), "d0")]
        self.fleet = Fleet(clusters, instances, clock=self.clock)
        for instance in instances:
            self.fleet.record_probe(instance.name, ok=True)
        self.links = LinkBoard(
            [Link("wire", "prfaas", "pd", capacity)],
            clock=self.clock,
            bounds=RegimeBounds(),
            budget=5.0,
        )
        self.operator = Operator(
            ThresholdRules(ThresholdMode.MANUAL, threshold), clock=self.clock, policy=Rule.SLACK
        )
        layout = CacheLayout("tiny", 16, (KvGroup(GroupKind.FULL_ATTENTION),))
        self.model = ServedModel(MODEL, layout, MODEL, profiles=profiles)
        self.builder = SnapshotBuilder(
            fleet=self.fleet,
            links=self.links,
            operator=self.operator,
            rules=PolicyRules(),
            lengths=OperatingLengths(),
            clock=self.clock,
        )
        self.hook = Waits()
        self.places = PrefillPlaces(
            self.fleet, source or OwnSlots(self.fleet), concurrency=rules.concurrency
        )
        self.binding = LateBinding(
            self.fleet,
            self.links,
            self.places,
            clock=self.clock,
            hook=self.hook,
            rules=rules,
            is_on=lambda: self.operator.policy is Rule.SLACK,
        )
        self._legs: dict[str, list[AbstractContextManager[None]]] = {}

    def ask(self, tokens: Tokens, *, waited: Seconds = 0.0) -> asyncio.Task[Place | None]:
        """Let a prompt of so many tokens wait."""
        bind = self.binding.bind(
            lambda: self.look(tokens), since=self.clock.monotonic(), waited=waited
        )
        return asyncio.create_task(bind)

    def look(self, tokens: Tokens) -> Berths | None:
        """Find a prompt's berths as the gateway does."""
        return find_berths(
            self.snapshot(tokens), lambda kind: self.model.prefill_seconds(kind, tokens)
        )

    def snapshot(self, tokens: Tokens) -> Snapshot:
        """What a decision about so many tokens sees."""
        request = RequestView(MODEL, "default", tokens, TokenSource.CLIENT)
        return self.builder.build(self.model, request, {})

    def begin(self, place: Place | None, seconds: Seconds = 1.0) -> None:
        """Let the prefill run that a place is for."""
        assert place is not None
        leg = self.fleet.prefill_leg(place.instance, seconds)
        place.release()
        leg.__enter__()
        self._legs.setdefault(place.instance, []).append(leg)

    def end(self, instance: str) -> None:
        """Let the oldest prefill of an instance end."""
        self._legs[instance].pop(0).__exit__(None, None, None)

    def lose(self, *names: str) -> None:
        """Let instances fail their probes until they are down."""
        for name in names:
            for _ in range(self.fleet.rules.probe.failures):
                self.fleet.record_probe(name, ok=False)

    def switch(self, policy: Rule) -> None:
        """Let another rule be in force."""
        self.operator.configured_policy = policy
        self.binding.follow()


def an_instance(name: str) -> Instance:
    """An instance whose first letter tells what it is: p, f or d."""
    cluster = "prfaas" if name.startswith(("f", "prfaas")) else "pd"
    role = Role.DECODE if name.startswith("d") else Role.PREFILL
    return Instance(name, cluster, f"http://{name}", role)


def with_slack(**rules: float) -> BindingRules:
    """The rules of the queue with some of them changed."""
    return BindingRules(slack=SlackRules(**rules))  # type: ignore[arg-type]  # queue_size is an int


def instances_of(tasks: Iterable[asyncio.Task[Place | None]]) -> list[str | None]:
    """Where those who were bound are bound to; None for who waits on, or was let go."""
    places = [task.result() if task.done() else None for task in tasks]
    return [place.instance if place else None for place in places]
