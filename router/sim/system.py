"""A running plant: its instances, its links as bytes and as the scheduler's state, its requests."""

from __future__ import annotations

import math
from collections import deque

from router.control.links import (
    LinkState,
    RegimeBounds,
    Telemetry,
    book,
    release,
    report,
    view_link,
)
from router.domain.decision import (
    ClusterView,
    Decision,
    InstanceView,
    KvSizing,
    LinkView,
    PairView,
    RequestView,
    Snapshot,
    ThresholdView,
    TokenSource,
)
from router.domain.topology import ClusterKind, Link, Role
from router.domain.units import NO_BYTES, Bytes, BytesPerSecond, Seconds, Tokens
from router.policy.gates import link_starves
from router.policy.select import expected_seconds
from router.sim.caches import PrefixCache
from router.sim.fair_links import FairLink
from router.sim.instances import Instance, Pool
from router.sim.plants import LinkSpec, PlantFault, PlantSpec, PoolSpec, Reference
from router.sim.traffic import Demand

MODEL = "model"
_BOUNDS = RegimeBounds()
_NEVER = math.nan


class Job:
    """One request on its way.

    `whole` are its prefill seconds in each pool with nothing cached, `kv_bytes` is S_kv.
    """

    __slots__ = (
        "admitted", "answered", "attempts", "booked", "crossed", "dead", "decision", "decode",
        "demand", "kv_bytes", "legs", "number", "prefill", "prefilled", "started", "unloaded",
        "wasted", "whole", "wire", "work",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        demand: Demand,
        whole: tuple[Seconds, ...],
        kv_bytes: Bytes,
        unloaded: Seconds,
    ) -> None:
        self.number = number
        self.demand = demand
        self.whole = whole
        self.kv_bytes = kv_bytes
        self.unloaded = unloaded
        self.decision: Decision | None = None
        self.prefill: Instance[Job] | None = None
        self.decode: Instance[Job] | None = None
        self.wire: Wire | None = None
        self.admitted = self.started = self.prefilled = self.answered = _NEVER
        self.work: Seconds = 0.0
        self.legs = 0
        self.attempts = 0
        self.booked = NO_BYTES
        self.crossed = 0.0
        self.wasted = 0.0
        self.dead = False

    def __repr__(self) -> str:
        return f"<Job {self.number}, {self.demand.total} tokens>"

    def succeed(self) -> Job:
        """Return the request's next attempt; what is planned for this one is void."""
        self.dead = True
        job = Job(self.number, self.demand, self.whole, self.kv_bytes, self.unloaded)
        job.admitted, job.attempts, job.wasted = self.admitted, self.attempts, self.wasted
        return job


class Wire:
    """A link: its bytes in flight, and what the scheduler knows and has booked of it."""

    def __init__(self, spec: LinkSpec, target: str, prefills: tuple[str, ...]) -> None:
        self.spec = spec
        self.link: FairLink[Job] = FairLink(spec.rate)
        self.state = LinkState(Link(spec.name, spec.source, target, spec.rate))
        self.stamp = 0
        self.line: dict[str, deque[Job]] = {name: deque() for name in prefills}
        self._jobs: dict[int, Job] = {}
        self._told = 0.0
        self._viewed: tuple[LinkState, LinkView] | None = None

    def __repr__(self) -> str:
        return f"<Wire {self.spec.name}, {len(self._jobs)} hand-offs booked>"

    def view(self, now: Seconds, budget: Seconds) -> LinkView:
        """Return what the rule may see; the same object as long as nothing changes."""
        if self._viewed is None or self._viewed[0] is not self.state:
            self._viewed = (self.state, view_link(self.state, now, budget))
        return self._viewed[1]

    def book(self, job: Job) -> None:
        """Reserve the bytes of a job's hand-off, at dispatch."""
        assert job.decision is not None  # noqa: S101 - booked is what was decided
        job.booked = job.decision.kv_bytes or NO_BYTES
        self._jobs[job.number] = job
        self.state = book(self.state, job.booked)

    def release(self, job: Job) -> None:
        """Give the bytes back, at completion or abort."""
        del self._jobs[job.number]
        self.state = release(self.state, job.booked)

    def booked_jobs(self) -> list[Job]:
        """Return whose hand-offs are booked, in the order of dispatch."""
        return list(self._jobs.values())

    def abandon(self, job: Job, now: Seconds) -> None:
        """Give up a hand-off; what has crossed is wasted."""
        for line in self.line.values():
            if job in line:
                line.remove(job)
        if job in self.link:
            job.wasted += job.booked - self.link.cut(now, job)
        self.release(job)

    def report(self, now: Seconds, period: Seconds) -> None:
        """Tell the scheduler's state the egress of the last period and what is available now."""
        self.link.advance(now)
        egress = (self.link.sent - self._told) / period
        self._told = self.link.sent
        telemetry = Telemetry(BytesPerSecond(egress), now, available=self.link.rate)
        self.state = report(self.state, telemetry, now, _BOUNDS)


class System:
    """All instances and links, and the snapshots taken of them."""

    def __init__(self, plant: PlantSpec) -> None:
        self.plant = plant
        self.pools = tuple(_build_pool(spec, plant) for spec in plant.pools)
        self.home = next(pool for pool in self.pools if pool.spec.kind is ClusterKind.PD)
        self.named = {each.name: each for pool in self.pools for each in pool.instances}
        by_name = {pool.spec.name: pool for pool in self.pools}
        self.wires = {
            spec.source: Wire(
                spec,
                self.home.spec.name,
                tuple(each.name for each in by_name[spec.source].instances),
            )
            for spec in plant.links
        }
        self._position = {pool.spec.name: index for index, pool in enumerate(self.pools)}
        self._profiles = tuple(pool.spec.profile for pool in self.pools)
        self._kv = self._profiles[0]
        self.threshold = plant.rule.tokens

    def __repr__(self) -> str:
        return f"<System of {len(self.named)} instances>"

    def wire_named(self, name: str) -> Wire:
        """Return a link; raises PlantFault for a name that no link has."""
        for wire in self.wires.values():
            if wire.spec.name == name:
                return wire
        raise PlantFault(f"there is no link {name!r}")

    def refresh(self) -> None:
        """Look anew at who is ready for what."""
        for pool in self.pools:
            pool.refresh()

    def admit(self, number: int, demand: Demand, reference: Reference) -> Job:
        """Return a new request, measured."""
        total, fresh = demand.total, demand.fresh
        kv_bytes = self._kv.kv_bytes(total)
        whole = tuple([profile.prefill_seconds(total) for profile in self._profiles])
        known = zip(self._profiles, whole, strict=True) if fresh == total else ()
        unloaded = reference.unloaded(fresh, kv_bytes, known)
        return Job(number, demand, whole, kv_bytes, unloaded)

    def pool_named(self, name: str) -> Pool[Job]:
        """Return a cluster."""
        return self.pools[self._position[name]]

    def prefill_seconds(self, job: Job, pool: Pool[Job], uncached: Tokens) -> Seconds:
        """Return what an instance needs for a job of which `uncached` tokens are to be computed."""
        if uncached == job.demand.total:
            return job.whole[self._position[pool.spec.name]]
        return pool.spec.profile.prefill_seconds(uncached)

    def view(self, job: Job, now: Seconds, only: Instance[Job] | None = None) -> Snapshot:
        """Return the snapshot for one request at this instant.

        With `only` it is the only one of its cluster that is shown as able to prefill.
        """
        demand, rule = job.demand, self.plant.rule
        total, blocks = demand.total, demand.blocks
        clusters: list[ClusterView] = []
        threshold = self.threshold
        links = {source: wire.view(now, rule.link_budget) for source, wire in self.wires.items()}
        # Then the rule leaves one of the home's instances to short prompts, so it must see all.
        starved = any(link_starves(link) for link in links.values())
        for pool, whole in zip(self.pools, job.whole, strict=True):
            views = pool.view_candidates(
                now, blocks, total, whole, rule.remote_queue_limit, only, every=starved
            )
            if pool is self.home:
                if rule.by_total:
                    threshold -= _cached_at_home(views)
                least = pool.least_loaded()
                if least is not None:
                    views.append(least.view_decode(self.plant.decode.slots))
            clusters.append(ClusterView(pool.spec.name, pool.spec.kind, tuple(views)))
        in_force = ThresholdView(rule.mode, threshold)
        pairs = [
            PairView(
                source,
                self.home.spec.name,
                link,
                in_force,
                rule.gates,
            )
            for source, link in links.items()
        ]
        return Snapshot(
            request=RequestView(MODEL, "default", total, TokenSource.CLIENT),
            clusters=tuple(clusters),
            pairs=tuple(pairs),
            sizing=KvSizing(job.kv_bytes, self._kv.kv_bytes_per_token),
            default_threshold=in_force,
            remote_queue_limit=rule.remote_queue_limit,
            rule=rule.rule,
        )


def _cached_at_home(views: list[InstanceView]) -> Tokens:
    """Return the prefix of the home candidate: t less that compares total tokens with t."""
    candidate = min(views, key=lambda view: (expected_seconds(view), view.name), default=None)
    return 0 if candidate is None else candidate.belief.tokens or 0


def _build_pool(spec: PoolSpec, plant: PlantSpec) -> Pool[Job]:
    def make(role: Role, letter: str, count: int) -> list[Instance[Job]]:
        return [
            Instance(
                f"{spec.name}-{letter}{number}",
                spec,
                role,
                PrefixCache(spec.cache_blocks, plant.block_tokens, recurrent=plant.recurrent),
            )
            for number in range(count)
        ]

    return Pool(spec, make(Role.PREFILL, "p", spec.prefills) + make(Role.DECODE, "d", spec.decodes))
