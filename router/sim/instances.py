"""The simulated engines: when an instance is free, what it holds, who decodes on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from kvmeta.types import CacheBelief, SourceState
from router.domain.decision import InstanceView
from router.domain.topology import Role
from router.domain.units import Seconds, Tokens
from router.sim.caches import PrefixCache
from router.sim.plants import PoolSpec
from router.throughput.profiles import Profile

_T = TypeVar("_T")

NOTHING = CacheBelief(0, SourceState.SYNCED)


class Instance(Generic[_T]):
    """One engine. Prompts are prefilled one by one in the order of `take`; `_T` is who decodes.

    `held` counts the requests that decode here or are promised to, `running` those that do.
    """

    __slots__ = (
        "_decode_views", "_starts", "busy", "cache", "cluster", "free_at", "held", "kind", "name",
        "profile", "ready", "role", "running", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, pool: PoolSpec, role: Role, cache: PrefixCache) -> None:
        self.name = name
        self.cluster = pool.name
        self.kind = pool.kind
        self.profile: Profile = pool.profile
        self.role = role
        self.cache = cache
        self.ready = True
        self.free_at: Seconds = 0.0
        self.busy: Seconds = 0.0
        self.held = 0
        self.running = 0
        self.waiting: deque[_T] = deque()
        self._starts: deque[Seconds] = deque()
        self._decode_views: dict[int, InstanceView] = {}

    def __repr__(self) -> str:
        return f"<Instance {self.name} {self.role}, {self.held} held>"

    def take(self, now: Seconds, work: Seconds) -> Seconds:
        """Queue `work` seconds of prefill; return when it starts."""
        start = self.free_at
        if start > now:
            self._starts.append(start)
        else:
            start = now
        self.free_at = start + work
        self.busy += work
        return start

    def depth(self, now: Seconds) -> int:
        """Return how many prompts wait here for their prefill to start."""
        starts = self._starts
        while starts and starts[0] <= now:
            starts.popleft()
        return len(starts)

    def view_prefill(
        self, now: Seconds, depth: int, belief: CacheBelief, seconds: Seconds
    ) -> InstanceView:
        """Return what the rule may see of a prefill instance, for a prompt that takes `seconds`."""
        ahead = self.free_at - now
        return InstanceView(
            name=self.name,
            cluster=self.cluster,
            role=Role.PREFILL,
            ready=True,
            takes_handoff=False,
            compatibility="",
            belief=belief,
            ahead=ahead if ahead > 0 else 0.0,
            prefill=seconds,
            queue_depth=depth,
            inflight=depth,
        )

    def view_decode(self, slots: int | None) -> InstanceView:
        """Return what the rule may see of a decode instance."""
        view = self._decode_views.get(self.held)
        if view is None:
            view = self._decode_views[self.held] = InstanceView(
                name=self.name,
                cluster=self.cluster,
                role=Role.DECODE,
                ready=True,
                takes_handoff=True,
                compatibility="",
                belief=NOTHING,
                queue_depth=0,
                inflight=self.held,
                slots=slots,
            )
        return view


class Pool(Generic[_T]):
    """A cluster's instances, and which of them can be chosen at all.

    `choose_local_prefill` and its like take the least of a list. An instance that holds nothing of
    a prompt can only be taken if it is the least of those that hold nothing, so the others need not
    be shown: the decision is the same (`tests/property/test_simulation_laws.py`), and costs less
    than a view of each.
    """

    def __init__(self, spec: PoolSpec, instances: Iterable[Instance[_T]]) -> None:
        self.spec = spec
        self.instances = tuple(instances)
        self.prefills: list[Instance[_T]] = []
        self.decodes: list[Instance[_T]] = []
        self.refresh()

    def refresh(self) -> None:
        """Look anew at who is ready for what."""
        ready = [each for each in self.instances if each.ready]
        self.prefills = [each for each in ready if each.role is Role.PREFILL]
        self.decodes = [each for each in ready if each.role is Role.DECODE]

    def view_candidates(
        self,
        now: Seconds,
        blocks: tuple[int, ...],
        total: Tokens,
        whole: Seconds,
        limit: int,
        only: Instance[_T] | None = None,
        *,
        every: bool = False,
    ) -> list[InstanceView]:
        """Return the prefill instances among which the rule would choose.

        `whole` is the prompt's prefill time with nothing cached, `limit` the queue that is full.
        Where `only` is one of them, it alone; with `every` all of them are shown.
        """
        views: list[InstanceView] = []
        least: Instance[_T] | None = None
        rank, queued = (True, float("inf"), ""), 0
        among = [only] if only in self.prefills else self.prefills
        for each in among:
            cached = each.cache.match(blocks, total) if blocks else 0
            if cached or every:
                seconds = each.profile.prefill_seconds(total - cached) if cached else whole
                belief = CacheBelief(cached, SourceState.SYNCED)
                views.append(each.view_prefill(now, each.depth(now), belief, seconds))
                continue
            ahead, depth = each.free_at - now, 0
            if ahead > 0:
                depth = each.depth(now)
            else:
                ahead = 0.0
            this = (depth >= limit, ahead, each.name)
            if this < rank:
                least, rank, queued = each, this, depth
        if least is not None:
            views.append(least.view_prefill(now, queued, NOTHING, whole))
        return views

    def least_loaded(self, limit: int | None = None) -> Instance[_T] | None:
        """Return the decode instance that the rule would choose; None if all hold `limit`."""
        least: Instance[_T] | None = None
        for each in self.decodes:
            if (limit is None or each.held < limit) and (
                least is None or (each.held, each.name) < (least.held, least.name)
            ):
                least = each
        return least
