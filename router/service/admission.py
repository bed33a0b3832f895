"""Decode slots: counted, granted to whoever is next, and given back exactly once.

A slot is granted before its request is decided, not after: the decision is made on the fleet as it
is when the request may run, and moves the slot to the instance that it chose. What engines report
beyond the gateways' own requests takes slots as well. How many of an instance's slots are this
process's to grant, its `SlotSource` says.

The order is `router.control.admission`'s; here are the counts, the time-out and those who wait.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from router.control.admission import AdmissionRules, FairQueue, Lane, Waiting
from router.domain.errors import NobodyAlive, Overloaded, RouterError
from router.domain.topology import Role
from router.domain.units import Seconds
from router.ports import Clock
from router.service.decisions import Document
from router.service.fleet import Fleet
from router.service.members import Member
from router.service.slot_shares import Need
from router.service.tenants import Tenant

_NOBODY: Final[frozenset[str]] = frozenset()


class AdmissionHook(Protocol):
    """Watches the queue; metrics hang here. Implementations never raise."""

    def waited(self, tenant: str, elapsed: Seconds) -> None:
        """Told how long each request waited for a slot, whether it got one or not."""
        ...


class SlotSource(Protocol):
    """Says how many slots this process may grant. Answers at once: it is asked at every grant."""

    def room(self, member: Member, limit: int, held: int) -> int:
        """Return how many more of our requests may decode at an instance, which `held` do now.

        `limit` is what the instance has for all.
        """
        ...

    def short(self) -> None:
        """Told that a request found no slot and waits."""
        ...

    def came_back(self, instance: str) -> None:
        """Told that a slot was released."""
        ...


class OwnSlots:
    """A `SlotSource` for one gateway alone: all that nobody else takes is its own."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def room(self, member: Member, limit: int, held: int) -> int:
        """Return what is left of the limit."""
        others = self._fleet.others_running(member) if member.unexplained else 0
        return limit - held - others

    def short(self) -> None:
        """Do nothing: nobody could give more."""

    def came_back(self, instance: str) -> None:
        """Do nothing: nobody else waits for it."""


class Slot:
    """One decode slot of one instance, until it is released."""

    def __init__(self, admission: Admission, instance: str) -> None:
        self._admission = admission
        self._instance: str | None = instance

    def __repr__(self) -> str:
        return f"<Slot {self._instance or 'released'}>"

    @property
    def instance(self) -> str | None:
        """Where it is; None once it is released."""
        return self._instance

    def move(self, instance: str) -> None:
        """Hold a slot of another instance instead: one that `Admission.full` did not name."""
        if self._instance is not None and self._instance != instance:
            self._admission.take(instance)
            left, self._instance = self._instance, instance
            self._admission.give_back(left)

    def release(self) -> None:
        """Give the slot back. Idempotent."""
        if self._instance is not None:
            left, self._instance = self._instance, None
            self._admission.give_back(left)


class _Turn:
    """One request's wait, from its own side."""

    def __init__(self) -> None:
        self.slot: Slot | None = None
        self.came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def grant(self, slot: Slot) -> None:
        self.slot = slot
        if not self.came.done():
            self.came.set_result(None)

    def fail(self, error: RouterError) -> None:
        if not self.came.done():
            self.came.set_exception(error)

    def give_up(self) -> None:
        """Free what was granted to a request that leaves before it could learn of it."""
        if self.came.done() and not self.came.cancelled():
            self.came.exception()  # so that asyncio does not report it as never seen
        if self.slot is not None:
            self.slot.release()


class Admission:
    """All decode slots and all who wait for one. Single-threaded: owned by one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        slots: Mapping[str, int | None],
        *,
        source: SlotSource,
        clock: Clock,
        hook: AdmissionHook,
        rules: AdmissionRules,
        timeout: Seconds,
    ) -> None:
        """`slots` are an instance's decode slots by model; None is any number.

        `source` says how many of them are ours to grant. `timeout` is the longest wait.
        """
        self._fleet = fleet
        self._slots = slots
        self._source = source
        self._clock = clock
        self._hook = hook
        self._timeout = timeout
        self._queue = FairQueue(rules)
        self._turns: dict[Waiting, _Turn] = {}
        self._held: dict[str, int] = {}
        fleet.watch(self.let_in)

    def __repr__(self) -> str:
        return f"<Admission {sum(self._held.values())} slots held, {len(self._queue)} waiting>"

    def reconfigure(
        self, slots: Mapping[str, int | None], *, rules: AdmissionRules, timeout: Seconds
    ) -> None:
        """Go on by other numbers. Whoever has a slot keeps it, whoever waits keeps its place."""
        self._slots, self._timeout, self._queue.rules = slots, timeout, rules
        self.let_in()

    # -- what is seen

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._queue)

    def depth(self, tenant: str) -> int:
        """Return how many of a tenant's requests wait."""
        return self._queue.depth(tenant)

    def held(self, instance: str) -> int:
        """Return how many slots of an instance our requests hold."""
        return self._held.get(instance, 0)

    def used(self, member: Member) -> int:
        """Return how many slots of an instance are taken, by our requests or others'."""
        others = self._fleet.others_running(member) if member.unexplained else 0
        return self._held.get(member.instance.name, 0) + member.peers.promised + others

    def full(self, model: str) -> frozenset[str]:
        """Return the instances that could decode for a model and have no slot left for it."""
        limit = self._slots.get(model)
        if limit is None:
            return _NOBODY
        full: list[str] = []
        room, held = self._source.room, self._held
        for member in self._fleet.decoders_of(model):
            name = member.instance.name
            if room(member, limit, held.get(name, 0)) <= 0:
                full.append(name)
        return frozenset(full) if full else _NOBODY

    def needs(self) -> dict[str, Need]:
        """Return how the slots of every instance with a limit stand.

        Who waits for several counts at each for his part.
        """
        waiting: dict[str, float] = defaultdict(float)
        for lane, count in Counter(each.lane for each in self._queue).items():
            candidates = self._candidates(lane)
            for member in candidates:
                waiting[member.instance.name] += count / len(candidates)
        return {
            name: Need(
                limit=limit,
                held=self.held(name),
                waiting=math.ceil(waiting[name]),
                foreign=self._fleet.others_running(member),
            )
            for member in self._fleet.members
            if (limit := self._limit_of(member)) is not None
            for name in [member.instance.name]
        }

    def _limit_of(self, member: Member) -> int | None:
        """Return an instance's decode slots, of the models that it serves the most."""
        if member.instance.role is Role.PREFILL:
            return None
        served = self._slots if member.instance.model is None else [member.instance.model]
        return max((n for name in served if (n := self._slots.get(name)) is not None), default=None)

    def describe(self, tenants: Iterable[str]) -> Document:
        """Return the queue as operators see it."""
        now = self._clock.monotonic()
        oldest = min((each.since for each in self._queue), default=None)
        return {
            "waiting": self.waiting,
            "size": self._queue.rules.queue_size,
            "oldest_seconds": None if oldest is None else now - oldest,
            "tenants": {name: self.depth(name) for name in sorted(tenants)},
        }

    # -- what is done

    async def admit(
        self,
        tenant: Tenant,
        priority: int,
        lane: Lane,
        *,
        since: Seconds,
        ahead: bool = False,
    ) -> Slot:
        """Return a slot, at once if one is free and nobody is before.

        `since` is when the request began to wait: now, or before if it waited already. It keeps
        its age, and the time-out counts from there. With `ahead`, for a request that had a slot
        before, it goes before its tenant's others. Raises Overloaded where the queue is full or
        the wait too long, NobodyAlive where no instance is left that could have one. Cancelled, it
        holds nothing.
        """
        # Where others wait in other lanes only, what is free is nothing that they could have.
        is_first = not self._turns or lane not in self._queue.lanes
        if is_first and (instance := self._find(lane)) is not None:
            self._hook.waited(tenant.name, self._clock.monotonic() - since)
            return Slot(self, instance)
        if not self._candidates(lane):
            raise NobodyAlive(f"no live instance can decode {lane.model!r} now")
        waiting = self._queue.join(tenant.name, tenant.weight, priority, lane, since, ahead=ahead)
        turn = self._turns[waiting] = _Turn()
        try:
            self._source.short()
            self._turn_away(self._queue.overflow())
            left = self._timeout - (self._clock.monotonic() - since)
            async with asyncio.timeout(max(0.0, left)):
                await turn.came
        except BaseException as error:
            self._queue.leave(waiting)
            turn.give_up()
            if isinstance(error, TimeoutError):
                raise self._overloaded("no decode slot became free in time") from None
            raise
        finally:
            del self._turns[waiting]
            self._hook.waited(tenant.name, self._clock.monotonic() - since)
        assert turn.slot is not None  # noqa: S101 - a turn that came has one
        return turn.slot

    def take(self, instance: str) -> None:
        """Count one more slot of an instance as held."""
        self._held[instance] = self._held.get(instance, 0) + 1

    def give_back(self, instance: str) -> None:
        """Count one slot less as held, and let in whoever is next."""
        self._held[instance] -= 1
        if not self._held[instance]:
            del self._held[instance]
        self._source.came_back(instance)
        self.let_in()

    def let_in(self) -> None:
        """Grant what is free to those who are next; send those away who wait for nobody alive."""
        if not self._turns:
            return
        for grant in self._queue.grant(self._clock.monotonic(), self._find):
            self._turns[grant.waiting].grant(Slot(self, grant.instance))
        dead = {lane for lane in self._queue.lanes if not self._candidates(lane)}
        for waiting in [each for each in self._queue if each.lane in dead] if dead else ():
            self._queue.leave(waiting)
            self._turns[waiting].fail(
                NobodyAlive(f"no live instance can decode {waiting.lane.model!r} now")
            )

    def _turn_away(self, dropped: Iterable[Waiting]) -> None:
        for waiting in dropped:
            self._turns[waiting].fail(self._overloaded("too many requests wait for a decode slot"))

    def _overloaded(self, message: str) -> Overloaded:
        """Tell to come back when whoever waits longest now would have been served, at a guess."""
        oldest = min((each.since for each in self._queue), default=None)
        age = 0.0 if oldest is None else self._clock.monotonic() - oldest
        return Overloaded(message, retry_after=max(1.0, math.ceil(age)))

    def _find(self, lane: Lane) -> str | None:
        """Take a slot of the least loaded instance of a lane; None where all are taken."""
        limit = self._slots.get(lane.model)
        room, held = self._source.room, self._held
        least: tuple[int, str] | None = None
        for member in self._candidates(lane):
            name = member.instance.name
            if limit is None or room(member, limit, held.get(name, 0)) > 0:
                rank = (self.used(member), name)
                if least is None or rank < least:
                    least = rank
        if least is None:
            return None
        _, name = least
        self.take(name)
        return name

    def _candidates(self, lane: Lane) -> list[Member]:
        """Return the live instances that could decode: at the home asked for, else anywhere."""
        alive = self._fleet.ready_decoders(lane.model)
        if lane.excluded:
            alive = [member for member in alive if member.instance.name not in lane.excluded]
        if lane.home is None:
            return alive
        return [member for member in alive if member.instance.cluster == lane.home] or alive
