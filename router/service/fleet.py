"""The fleet as it is now: who lives, who is busy, who waits.

Our own dispatches count at once; what engines report arrives about once a second and has an age.
The pure steps are in `router.control.health`; the state they make is in `members`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from router.control.health import (
    CLOSED,
    BreakerRules,
    Health,
    ProbeRules,
    breaker_allows,
    step_dispatched,
    step_failed,
    step_health,
    step_succeeded,
)
from router.domain.errors import Conflict, NotFound
from router.domain.topology import AUTO_EVENTS, Cluster, ClusterKind, Instance, InstanceState, Role
from router.domain.units import Seconds
from router.ports import Clock
from router.service.counted_legs import DecodeCounted, DecodeDue, PrefillCounted
from router.service.members import NO_PEERS, EngineReading, Load, Member, PeerLoad


@dataclass(frozen=True, slots=True)
class FleetRules:
    """How readings and verdicts age."""

    probe: ProbeRules = ProbeRules()
    breaker: BreakerRules = BreakerRules()
    signal_max_age: Seconds = 10.0


class Fleet:
    """All instances by name, with their live state. Single-threaded: owned by one event loop."""

    def __init__(
        self,
        clusters: Iterable[Cluster],
        instances: Iterable[Instance],
        *,
        clock: Clock,
        rules: FleetRules | None = None,
    ) -> None:
        self._clusters = {cluster.name: cluster for cluster in clusters}
        self._members = {instance.name: Member(instance) for instance in instances}
        self._clock = clock
        self.rules = rules or FleetRules()
        self._watchers: list[Callable[[], None]] = []
        self._prefill_watchers: list[Callable[[str], None]] = []
        self._generation = 0
        self._places: dict[tuple[str, str], tuple[Member, ...]] = {}
        self._decoders: dict[str, tuple[Member, ...]] = {}

    @property
    def generation(self) -> int:
        """Changes with every change of who belongs to the fleet, and as what."""
        return self._generation

    def _regroup(self) -> None:
        """Forget what was derived from who belongs to the fleet."""
        self._generation += 1
        self._places.clear()
        self._decoders.clear()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` after each change of who is there, lives, or is told to be busy."""
        self._watchers.append(watcher)

    def watch_prefills(self, watcher: Callable[[str], None]) -> None:
        """Call `watcher` with the instance's name after each end of a prefill of ours."""
        self._prefill_watchers.append(watcher)

    def prefill_ended(self, name: str) -> None:
        """Tell who watches that an instance has a prefill less."""
        for watcher in self._prefill_watchers:
            watcher(name)

    def _changed(self) -> None:
        for watcher in self._watchers:
            watcher()

    def __repr__(self) -> str:
        alive = sum(self.is_ready(member) for member in self._members.values())
        return f"<Fleet {alive}/{len(self._members)} ready>"

    @property
    def clusters(self) -> Iterable[Cluster]:
        """The clusters, in configured order."""
        return self._clusters.values()

    def kind_of(self, cluster: str) -> ClusterKind:
        """Return a cluster's kind; one that nobody knows counts as a PD cluster."""
        known = self._clusters.get(cluster)
        return ClusterKind.PD if known is None else known.kind

    @property
    def members(self) -> Iterable[Member]:
        """The instances, in the order in which they joined."""
        return self._members.values()

    def members_of(self, cluster: str, model: str) -> tuple[Member, ...]:
        """Return the members of a cluster that serve a model, whatever their state."""
        found = self._places.get((cluster, model))
        if found is None:
            found = self._places[cluster, model] = tuple(
                member
                for member in self._members.values()
                if member.instance.cluster == cluster and member.instance.model in (None, model)
            )
        return found

    def decoders_of(self, model: str) -> tuple[Member, ...]:
        """Return the members that could decode for a model at a PD cluster, in any state."""
        found = self._decoders.get(model)
        if found is None:
            found = self._decoders[model] = tuple(
                member
                for name, cluster in self._clusters.items()
                if cluster.kind is ClusterKind.PD
                for member in self.members_of(name, model)
                if member.instance.role is not Role.PREFILL
            )
        return found

    def ready_decoders(self, model: str) -> list[Member]:
        """Return those of `decoders_of` to which new work may go now."""
        members = self.decoders_of(model)
        return [member for member in members if member.sound or self.is_ready(member)]

    def member(self, name: str) -> Member:
        """Return a member; raises NotFound."""
        try:
            return self._members[name]
        except KeyError:
            raise NotFound(f"no instance {name!r}") from None

    def reconfigure(self, clusters: Iterable[Cluster], *, rules: FleetRules) -> None:
        """Go on with other clusters and rules; members of clusters that are gone are to follow."""
        self._clusters = {cluster.name: cluster for cluster in clusters}
        self.rules = rules
        self._regroup()

    def exchange(self, instance: Instance, *, health: Health = Health()) -> None:
        """Let an instance be described otherwise. Raises NotFound.

        At the same URL it is the same engine, of which everything is still known, the ranks that
        it told too. At another one it is a new engine, of which `health` is known.
        """
        old = self.member(instance.name)
        if old.instance.url != instance.url:
            renewed = self._members[instance.name] = Member(instance, old.state, health)
            renewed.judge()
        else:
            told = instance.kv_events == AUTO_EVENTS == old.instance.kv_events
            old.instance = replace(instance, ranks=old.instance.ranks) if told else instance
        self._regroup()
        self._changed()

    def add(self, instance: Instance, *, health: Health = Health()) -> Member:
        """Let a new instance join; it is ready once a probe succeeded, if `health` says no more.

        Raises Conflict for a name in use, NotFound for an unknown cluster.
        """
        if instance.name in self._members:
            raise Conflict(f"instance {instance.name!r} exists already")
        if instance.cluster not in self._clusters:
            raise NotFound(f"no cluster {instance.cluster!r}")
        member = self._members[instance.name] = Member(instance, health=health)
        member.judge()
        self._regroup()
        self._changed()
        return member

    def remove(self, name: str) -> Instance:
        """Forget an instance; legs in flight there run to their end. Raises NotFound."""
        instance = self.member(name).instance
        del self._members[name]
        self._regroup()
        self._changed()
        return instance

    def is_ready(self, member: Member) -> bool:
        """Whether new work may go there: active, alive, breaker closed or due for its trial.

        Where breakers would leave nobody to decode they count for nothing: one client's requests
        that make every engine fail must not end the service of all others.
        """
        return self._is_ready(member, self._clock.monotonic())

    def _is_ready(self, member: Member, now: Seconds) -> bool:
        if member.sound:
            return True
        return member.lives and (
            breaker_allows(member.breaker, now, self.rules.breaker)
            or self._is_last_resort(member, now)
        )

    def _is_last_resort(self, member: Member, now: Seconds) -> bool:
        """Whether no closed breaker is left among those that could decode in its place."""
        return self._decodes(member) and not any(
            self._decodes(each)
            and each.instance.model in (None, member.instance.model)
            and each.lives
            and breaker_allows(each.breaker, now, self.rules.breaker)
            for each in self._members.values()
        )

    def _decodes(self, member: Member) -> bool:
        instance = member.instance
        return (
            instance.role is not Role.PREFILL and self.kind_of(instance.cluster) is ClusterKind.PD
        )

    def breaker_is_open(self, member: Member) -> bool:
        """Whether the instance's breaker keeps work away."""
        return member.breaker.opened_at is not None

    def is_down(self, member: Member) -> bool:
        """Whether probes, or failed calls, have declared the instance down."""
        return member.health.alive is False or self.breaker_is_open(member)

    def record_probe(
        self,
        name: str,
        *,
        ok: bool,
        answered: bool = True,
        reading: EngineReading | None = None,
    ) -> None:
        """Take one probe's outcome; a name that left meanwhile is ignored."""
        member = self._members.get(name)
        if member is None:
            return
        if answered:
            member.answered_at = self._clock.monotonic()
        before = member.health.alive
        member.health = step_health(member.health, ok, self.rules.probe)
        member.judge()
        if member.health.alive is not before and before is not None:
            member.transitions += 1
        if reading is not None:
            member.take_reading(reading)
        self._changed()

    def record_success(self, name: str) -> None:
        """An engine answered as it should, or blamed the client."""
        member = self._members.get(name)
        if member is not None and member.breaker is not CLOSED:
            member.breaker = step_succeeded(member.breaker)
            member.judge()

    def record_failure(self, name: str) -> None:
        """Transport, 5xx or time-out: what the breaker counts (DESIGN 7)."""
        member = self._members.get(name)
        if member is not None:
            member.breaker = step_failed(
                member.breaker, self._clock.monotonic(), self.rules.breaker
            )
            member.judge()
            self._changed()

    def prefill_leg(self, name: str, expected: Seconds) -> AbstractContextManager[None]:
        """Count a prefill of `expected` seconds in flight for the time of the block."""
        member = self._members.get(name)
        return nullcontext() if member is None else PrefillCounted(self, member, expected)

    def decode_due(self, name: str) -> AbstractContextManager[None]:
        """Count a decode that a running prefill will need, for the time of the block.

        A prefill takes seconds. Were its decode counted only afterwards, all that is decided in
        the meantime would go to the same idle instance.
        """
        member = self._members.get(name)
        return nullcontext() if member is None else DecodeDue(member)

    def decode_leg(self, name: str) -> AbstractContextManager[None]:
        """Count a decode in flight for the time of the block."""
        member = self._members.get(name)
        return nullcontext() if member is None else DecodeCounted(self, member)

    def dispatch(self, member: Member, now: Seconds) -> None:
        """Note that one more leg of ours has begun there."""
        inflight = len(member.prefills) + member.decodes
        member.peak = max(member.peak, inflight)
        if member.breaker is not CLOSED:
            member.breaker = step_dispatched(member.breaker, now, self.rules.breaker)

    def now(self) -> Seconds:
        """Read the clock that the fleet lives by."""
        return self._clock.monotonic()

    def fresh_reading(self, member: Member) -> EngineReading | None:
        """Return the last scrape unless it is too old: then nothing is known."""
        reading = member.reading
        if reading is None:
            return None
        age = self._clock.monotonic() - reading.at
        return reading if age <= self.rules.signal_max_age else None

    def transfer_seconds(self, cluster: str) -> Seconds | None:
        """Return how long a cluster's decode instances ever spent on receiving KV, in sum.

        None where one of those that are ready does not tell, or not lately.
        """
        total = 0.0
        for member in self._members.values():
            if member.instance.cluster == cluster and member.instance.role is not Role.PREFILL:
                total += member.received
                reading = self.fresh_reading(member)
                told = reading is not None and reading.transfer_seconds is not None
                if not told and self.is_ready(member):
                    return None
        return total

    def queue_depth(self, member: Member) -> int | None:
        """Return how many wait there: as scraped, and what we sent since; None when too old."""
        reading = self.fresh_reading(member)
        if reading is None:
            return None
        sent = [*(leg.sent_at for leg in member.prefills), *member.peers.sent]
        return reading.waiting + sum(sent_at > reading.at for sent_at in sent)

    def others_running(self, member: Member) -> int:
        """Return how many requests of no gateway run or wait there; 0 when nobody knows.

        Legs that ended just before the scrape may still be in it: the most that we had since the
        one before is taken as ours, so that a slot of ours is never taken for somebody else's.
        """
        others = member.others
        return others if others and self.fresh_reading(member) is not None else 0

    def hear_of_peers(self, loads: Mapping[str, PeerLoad]) -> None:
        """Count what other gateways sent; where they name no load there is none of theirs."""
        now = self._clock.monotonic()
        for name, member in self._members.items():
            before, member.peers = member.peers, loads.get(name, NO_PEERS)
            if member.peers.work != before.work or member.peers.ended != before.ended:
                member.requeue(now, before)
            member.peers_since = max(member.peers_since, member.peers.peak)

    def load(self, member: Member, now: Seconds, mean_prefill: Seconds) -> Load:
        """Return how a member stands `now`, in one look: every decision asks about everybody.

        Ahead is the prefill time queued there: the gateways' as expected, others' at the mean.
        """
        reading, prefills, peers = member.reading, member.prefills, member.peers
        if reading is not None and now - reading.at > self.rules.signal_max_age:
            reading = None
        others = member.others if reading is not None and member.unexplained else 0
        ahead = others * mean_prefill
        if member.busy_until > now and (prefills or peers.work):
            ahead += member.busy_until - now
        depth = None
        if reading is not None:
            depth = reading.waiting
            if prefills:
                depth += sum([leg.sent_at > reading.at for leg in prefills])
            if peers.sent:
                depth += sum([sent_at > reading.at for sent_at in peers.sent])
        promised = len(prefills) + member.decodes + member.decodes_due
        ready = member.sound or self._is_ready(member, now)
        return Load(ready, ahead, depth, promised + others + peers.promised)

    def seconds_ahead(self, name: str) -> Seconds:
        """Return the prefill time that is queued at an instance, as the gateways expect it."""
        member, now = self._members.get(name), self._clock.monotonic()
        if member is None:
            return 0.0
        queued = member.prefills or member.peers.work
        return max(0.0, member.busy_until - now) if queued else 0.0

    def set_state(self, name: str, state: InstanceState) -> Member:
        """Activate, drain or disable an instance. Raises NotFound."""
        member = self.member(name)
        member.state = state
        member.judge()
        self._changed()
        return member

    def set_ranks(self, name: str, ranks: int) -> None:
        """Note how many data-parallel ranks an instance says that it has; a removed one is gone."""
        if (member := self._members.get(name)) is not None:
            member.instance = replace(member.instance, ranks=ranks)
            self._regroup()

    def set_role(self, name: str, role: Role) -> Member:
        """Change what an instance is used for: it serves both roles, routing chooses.

        Raises as `check_role`.
        """
        member = self.check_role(name, role)
        member.instance = replace(member.instance, role=role)
        self._regroup()
        self._changed()
        return member

    def check_role(self, name: str, role: Role) -> Member:
        """Return a member that may have a role.

        Raises NotFound; Conflict where the cluster has no such role (DESIGN 1).
        """
        member = self.member(name)
        cluster = self._clusters[member.instance.cluster]
        if cluster.kind is ClusterKind.PRFAAS and role is not Role.PREFILL:
            raise Conflict(f"instances of prfaas cluster {cluster.name!r} only prefill")
        return member
