"""The rule `slack` at work: who waits, for which lane, and which instances are free."""

from __future__ import annotations

from collections.abc import Iterator

from router.control.slack import Guests, Pending, Server, SlackQueue, SlackRules
from router.domain.decision import Decision, NoRoute
from router.domain.units import Seconds
from router.policy.berths import choose_lane
from router.policy.completion import arrive_if_begun
from router.policy.route import decide, decide_bound
from router.sim.instances import Instance, Pool
from router.sim.system import Job, System


class LateBinding:
    """The slack queue of a system."""

    def __init__(self, system: System, rules: SlackRules) -> None:
        self._system = system
        self._queue = SlackQueue(rules)
        self._jobs: dict[int, Job] = {}
        self._guests = Guests()

    def __repr__(self) -> str:
        return f"<LateBinding {self._queue!r}>"

    def join(self, job: Job, now: Seconds) -> bool:
        """Let a job wait; False, and nothing done, where the queue is full or nobody decodes."""
        decision = decide(self._system.view(job, now))
        if isinstance(decision, NoRoute) or self._queue.is_full:
            return False
        lane, work = self._choose_lane(job, decision)
        arrived = job.demand.at
        self._jobs[job.number] = job
        deadline = arrived + self._queue.rules.promise.within(job.unloaded)
        self._queue.join(Pending(job.number, arrived, deadline, work, lane))
        return True

    def bind(self, now: Seconds, slots: int | None) -> Iterator[tuple[Job, Decision]]:
        """Yield jobs with their decisions while instances and decode slots are free for them.

        The caller carries each out before it asks for the next.
        """
        for pool in reversed(self._system.pools):
            for instance in pool.prefills:
                if not self._queue or self._system.home.least_loaded(slots) is None:
                    return
                if instance.free_at > now:
                    continue
                job = self._pick(pool, instance, now)
                if job is not None:
                    snapshot = self._system.view(job, now, only=instance)
                    decision = decide_bound(snapshot, instance.name)
                    assert isinstance(decision, Decision)  # noqa: S101 - somebody has a free slot
                    yield job, decision

    def _pick(self, pool: Pool[Job], instance: Instance[Job], now: Seconds) -> Job | None:
        may_steal = self._guests.may_steal(
            [each.name for each in pool.prefills],
            lambda name: self._system.named[name].free_at > now,
        )
        server = Server(instance.name, pool.spec.name, may_steal=may_steal)

        def finish(pending: Pending) -> Seconds | None:
            return self._finish_seconds(self._jobs[pending.number], instance, now)

        pending = self._queue.pick(now, server, finish, self._closed(now))
        if pending is None:
            return None
        self._guests.note(server, pending.lane)
        return self._jobs.pop(pending.number)

    def _choose_lane(self, job: Job, decision: Decision) -> tuple[str, Seconds]:
        """Return the lane on the prompt's side of t, and its prefill time there."""
        pool = self._system.home
        if decision.uncached_tokens > decision.threshold and decision.link is not None:
            pool = self._system.pool_named(self._system.wire_named(decision.link.name).spec.source)
        whole = self._system.prefill_seconds(job, pool, job.demand.total)
        holders = pool.prefills if job.demand.blocks else ()
        works = ((each.name, self._work(job, each)) for each in holders)
        return choose_lane(pool.spec.name, whole, works)

    def _work(self, job: Job, instance: Instance[Job]) -> Seconds:
        demand = job.demand
        cached = instance.cache.match(demand.blocks, demand.total) if demand.blocks else 0
        pool = self._system.pool_named(instance.cluster)
        return self._system.prefill_seconds(job, pool, demand.total - cached)

    def _finish_seconds(self, job: Job, instance: Instance[Job], now: Seconds) -> Seconds | None:
        work = self._work(job, instance)
        wire = self._system.wires.get(instance.cluster)
        if wire is None:
            return work + job.kv_bytes / self._system.plant.fabric
        view = wire.view(now, self._system.plant.rule.link_budget)
        return arrive_if_begun(work, view, job.kv_bytes)

    def _closed(self, now: Seconds) -> set[str]:
        """Return the lanes that nobody serves now."""
        closed: set[str] = set()
        for pool in self._system.pools:
            wire = self._system.wires.get(pool.spec.name)
            up = wire is None or wire.view(now, self._system.plant.rule.link_budget).up
            served = {each.name for each in pool.prefills} if up else set()
            closed.update(each.name for each in pool.instances if each.name not in served)
            if not served:
                closed.add(pool.spec.name)
        return closed
