"""The rule `slack` at work: prompts wait here, and instances that are free are given one.

A request that has its decode slot, and of which is known how long it is and where it is cached,
joins `router.control.slack`'s queue and waits on a future. Whenever something may have changed for
the better (a prefill has ended or failed, an instance came or lives again, a link has bytes free, a
place came from another gateway) one pass asks the queue on behalf of every free instance, and gives
whoever is chosen a `Place` there.

A pass never waits, so what it sees is one moment.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from router.control.slack import Guests, Pending, Server, SlackQueue, SlackRules
from router.domain.decision import LinkView
from router.domain.errors import NotFound, Overloaded
from router.domain.topology import ClusterKind
from router.domain.units import Seconds
from router.policy.berths import Berths
from router.policy.completion import arrive_if_begun
from router.ports import Clock
from router.service.decisions import Document
from router.service.fleet import Fleet
from router.service.links import LinkBoard
from router.service.members import Member
from router.service.places import Place, PrefillPlaces
from router.service.slot_shares import Need

TICK_SECONDS: Final[Seconds] = 0.25
"""What no event tells (a prompt ages, a link's telemetry goes stale) is seen that soon."""

Look = Callable[[], Berths | None]
"""Finds where a prompt may be prefilled, as fleet and orders are now; None: it should not wait."""


class BindingOutcome(StrEnum):
    """How a wait for an instance ended; a metric's label."""

    BOUND = "bound"
    STOLEN = "stolen"
    """Bound to an instance of another lane."""
    RELEASED = "released"
    """Left to the rule: the policy was switched, or nobody is left who could take it."""
    REFUSED = "refused"
    LEFT = "left"
    """The client went, or the gateway ends."""


class BindingHook(Protocol):
    """Watches the queue; metrics hang here. Implementations never raise."""

    def bound(self, outcome: BindingOutcome, elapsed: Seconds) -> None:
        """Told once how each wait ended, and how long it was."""
        ...


@dataclass(frozen=True, slots=True)
class BindingRules:
    """How late binding is configured.

    `concurrency` are prefills at once of an instance, for each data-parallel rank. `timeout` is the
    longest wait, together with the one for a decode slot.
    """

    slack: SlackRules = SlackRules()
    concurrency: int = 1
    timeout: Seconds = 60.0


@dataclass(eq=False, slots=True)
class _Waiter:
    """One prompt that waits. `seen` is the state of affairs in which its berths were found."""

    look: Look
    berths: Berths
    seen: object
    pending: Pending
    turn: asyncio.Future[Place | None]
    stolen: bool = False


class LateBinding:
    """All prompts that wait for an instance. Single-threaded: owned by one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        links: LinkBoard,
        places: PrefillPlaces,
        *,
        clock: Clock,
        hook: BindingHook,
        rules: BindingRules,
        is_on: Callable[[], bool],
    ) -> None:
        """`is_on` tells whether `slack` is the rule in force."""
        self._fleet = fleet
        self._links = links
        self._places = places
        self._clock = clock
        self._hook = hook
        self._rules = rules
        self._is_on = is_on
        self._queue = SlackQueue(rules.slack)
        self._waiters: dict[int, _Waiter] = {}
        self._guests = Guests()
        self._numbers = 0
        self._orders = 0
        self._pass_is_due = False
        self._looked: object = None
        fleet.watch(self._stir)
        places.watch(self._stir)
        links.watch(self._stir)

    def __repr__(self) -> str:
        return f"<LateBinding {self._queue!r}>"

    # -- what is seen

    @property
    def waiting(self) -> int:
        """How many prompts wait."""
        return len(self._queue)

    def depths(self) -> dict[str, int]:
        """Return how many wait for each cluster, instances' lanes included."""
        depths = dict.fromkeys((cluster.name for cluster in self._fleet.clusters), 0)
        for pending in self._queue:
            cluster = self._cluster_of(pending.lane)
            if cluster in depths:
                depths[cluster] += 1
        return depths

    def describe(self) -> Document:
        """Return the queue as operators see it."""
        oldest = min((pending.since for pending in self._queue), default=None)
        return {
            "waiting": self.waiting,
            "size": self._rules.slack.queue_size,
            "oldest_seconds": None if oldest is None else self._clock.monotonic() - oldest,
            "clusters": self.depths(),
        }

    def needs(self) -> dict[str, Need]:
        """Return how the instances' places stand; nothing while the rule is another."""
        if not self._is_on():
            return {}
        now, servers = self._clock.monotonic(), self._places.servers()
        return self._places.needs(
            self._queue, lambda member: self._find(member, servers, now) is not None
        )

    # -- what is done

    async def bind(self, look: Look, *, since: Seconds, waited: Seconds) -> Place | None:
        """Wait for an instance; return the place there, or None to go by the rule instead.

        `since` is when its client's request came, `waited` how long it has waited for a slot.
        Raises Overloaded where the queue is full or the wait too long. Cancelled, it holds nothing.
        """
        berths = look()
        if berths is None:
            return None
        began = self._clock.monotonic()
        if self._queue.is_full:
            self._hook.bound(BindingOutcome.REFUSED, 0.0)
            raise self._overloaded("too many prompts wait for a prefill instance")
        waiter = self._join(look, berths, since)
        outcome = BindingOutcome.LEFT
        try:
            self.let_in()
            if not waiter.turn.done():
                self._places.short()
            async with asyncio.timeout(max(0.0, self._rules.timeout - waited)):
                place = await waiter.turn
            outcome = _outcome(waiter, place)
        except TimeoutError:
            outcome = BindingOutcome.REFUSED
            raise self._overloaded("no prefill instance became free in time") from None
        finally:
            self._leave(waiter, kept=outcome in (BindingOutcome.BOUND, BindingOutcome.STOLEN))
            self._hook.bound(outcome, self._clock.monotonic() - began)
        return place

    def follow(self) -> None:
        """Go by the rule and the orders as they are now: a rule that binds nobody lets all go."""
        self._orders += 1
        if self._is_on():
            self._stir()
            return
        for pending in self._queue.drain(self._clock.monotonic()):
            self._settle(self._waiters[pending.number], None)

    def reconfigure(self, rules: BindingRules) -> None:
        """Go on by other numbers. Whoever waits keeps its place in the queue."""
        self._rules = rules
        self._queue.rules = rules.slack
        self._places.concurrency = rules.concurrency
        self.follow()

    async def run(self) -> None:
        """See what no event tells, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.let_in()

    # -- joining and leaving

    def _join(self, look: Look, berths: Berths, since: Seconds) -> _Waiter:
        self._numbers += 1
        deadline = since + self._rules.slack.promise.within(berths.unloaded)
        pending = Pending(self._numbers, since, deadline, berths.work, berths.lane)
        turn: asyncio.Future[Place | None] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(look, berths, self._state(), pending, turn)
        self._waiters[pending.number] = waiter
        self._queue.join(pending)
        return waiter

    def _leave(self, waiter: _Waiter, *, kept: bool) -> None:
        """Forget a prompt; a place that it was given and never learnt of goes back."""
        self._queue.leave(waiter.pending)
        del self._waiters[waiter.pending.number]
        if not kept and waiter.turn.done() and not waiter.turn.cancelled():
            place = waiter.turn.result()
            if place is not None:
                place.release()

    def _settle(self, waiter: _Waiter, place: Place | None) -> None:
        if not waiter.turn.done():
            waiter.turn.set_result(place)
        elif place is not None:
            place.release()

    def _overloaded(self, message: str) -> Overloaded:
        """Tell to come back when whoever waits longest now would have been served, at a guess."""
        oldest = min((pending.since for pending in self._queue), default=None)
        age = 0.0 if oldest is None else self._clock.monotonic() - oldest
        return Overloaded(message, retry_after=max(1.0, math.ceil(age)))

    # -- the pass

    def _stir(self) -> None:
        """Have a pass made soon: whoever tells is in the midst of its own step."""
        if self._queue and not self._pass_is_due:
            self._pass_is_due = True
            asyncio.get_running_loop().call_soon(self.let_in)

    def let_in(self) -> None:
        """Give prompts to instances until no free instance takes any."""
        self._pass_is_due = False
        if not self._queue:
            return
        now = self._clock.monotonic()
        servers = self._places.servers()
        self._look_again(servers)
        found = True
        while found and self._queue:
            found = False
            for member in servers:
                if self._places.is_free(member) and self._serve(member, servers, now):
                    found = True

    def _serve(self, member: Member, servers: list[Member], now: Seconds) -> bool:
        """Give a free instance the prompt that the queue chooses for it; False for none."""
        found = self._find(member, servers, now)
        if found is None:
            return False
        server, pending = found
        self._queue.leave(pending)
        waiter = self._waiters[pending.number]
        waiter.stolen = self._guests.note(server, pending.lane)
        self._settle(waiter, self._take(waiter, server.instance))
        return True

    def _find(
        self, member: Member, servers: list[Member], now: Seconds
    ) -> tuple[Server, Pending] | None:
        """Return what an instance should be given if it is free; None for nothing."""
        name, cluster = member.instance.name, member.instance.cluster
        peers = {each.instance.name: each for each in servers if each.instance.cluster == cluster}
        may_steal = self._guests.may_steal(
            list(peers), lambda peer: self._places.held(peers[peer]) > 0
        )
        server = Server(name, cluster, may_steal=may_steal)
        views: dict[str, LinkView | None] = {}

        def finish(pending: Pending) -> Seconds | None:
            berth = self._waiters[pending.number].berths.by_instance.get(name)
            if berth is None or berth.link is None:
                return None if berth is None else berth.work
            if berth.link not in views:
                views[berth.link] = self._view_link(berth.link)
            link = views[berth.link]
            return None if link is None else arrive_if_begun(berth.work, link, berth.handoff)

        pending = self._queue.find(now, server, finish, self._closed(servers))
        return None if pending is None else (server, pending)

    def _take(self, waiter: _Waiter, instance: str) -> Place:
        berth, booking = waiter.berths.by_instance[instance], None
        if berth.link is not None and berth.handoff is not None:
            booking = self._links.book(berth.link, berth.handoff)
        return self._places.take(instance, waiter.berths.home, booking)

    def _view_link(self, name: str) -> LinkView | None:
        try:
            return self._links.view(name)
        except NotFound:
            return None

    def _is_up(self, link: str) -> bool:
        view = self._view_link(link)
        return view is not None and view.up

    def _closed(self, servers: list[Member]) -> set[str]:
        """Return the lanes that nobody serves now."""
        served: set[str] = set()
        for member in servers:
            served |= {member.instance.name, member.instance.cluster}
        return {lane for lane in self._queue.lanes if lane not in served or self._is_cut_off(lane)}

    def _is_cut_off(self, lane: str) -> bool:
        """Whether no link of a lane's PrfaaS cluster is up."""
        cluster = self._cluster_of(lane)
        if self._fleet.kind_of(cluster) is ClusterKind.PD:
            return False
        links = [each.link for each in self._links.states if each.link.source == cluster]
        return not any(self._is_up(link.name) for link in links)

    def _cluster_of(self, lane: str) -> str:
        """Return the cluster of a lane, which is a cluster's or an instance's name."""
        try:
            return self._fleet.member(lane).instance.cluster
        except NotFound:
            return lane

    # -- when the fleet or the orders change

    def _state(self) -> object:
        return self._fleet.generation, self._orders

    def _look_again(self, servers: list[Member]) -> None:
        """Find berths anew where fleet or orders changed; let those go whom nobody can take.

        Who joins has just looked, so there is nothing to do while all is as it was.
        """
        state = self._state()
        live = {member.instance.name for member in servers}
        links = {each.link.name for each in self._links.states if self._is_up(each.link.name)}
        looked = (state, live, links)
        if looked == self._looked:
            return
        self._looked = looked
        for waiter in list(self._waiters.values()):
            if waiter.turn.done():
                continue
            berths = waiter.berths if waiter.seen == state else waiter.look()
            waiter.seen = state
            if berths is None or not _is_open(berths, live, links):
                self._queue.leave(waiter.pending)
                self._settle(waiter, None)
            elif berths is not waiter.berths:
                self._move(waiter, berths)

    def _move(self, waiter: _Waiter, berths: Berths) -> None:
        """Let a prompt wait on in the lane that it belongs to now."""
        waiter.berths, old = berths, waiter.pending
        if (old.lane, old.work) != (berths.lane, berths.work):
            self._queue.leave(old)
            new = Pending(old.number, old.since, old.deadline, berths.work, berths.lane)
            waiter.pending = new
            self._queue.join(new)


def _is_open(berths: Berths, live: AbstractSet[str], links: AbstractSet[str]) -> bool:
    """Whether somebody lives who could take it: who is busy now will not be for ever."""
    return any(
        berth.instance in live and (berth.link is None or berth.link in links)
        for berth in berths.by_instance.values()
    )


def _outcome(waiter: _Waiter, place: Place | None) -> BindingOutcome:
    if place is None:
        return BindingOutcome.RELEASED
    return BindingOutcome.STOLEN if waiter.stolen else BindingOutcome.BOUND
