"""One instance of the fleet, and everything that changes about it.

`router.service.fleet` holds the members; what one of them tells without the others is here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from router.control.health import CLOSED, Breaker, Health
from router.domain.topology import Instance, InstanceState
from router.domain.units import Seconds


@dataclass(frozen=True, slots=True)
class EngineReading:
    """What one scrape of an engine told. `waiting` counts requests that wait for capacity.

    `at` is the monotonic time at which the scrape was asked for. `transferred_bytes` and
    `transfer_seconds` are sums over the KV transfers that it received since it started.
    """

    at: Seconds
    waiting: int
    running: int
    kv_usage: float | None = None
    transferred_bytes: float | None = None
    transfer_seconds: Seconds | None = None


class PrefillLeg(Struct, eq=False, gc=False):
    """One prefill in flight: when it was sent and how long it was expected to take."""

    sent_at: Seconds
    expected: Seconds


class PeerLoad(Struct, frozen=True):
    """What other gateways have sent to an instance, as they told at `at` (monotonic).

    `promised` counts their legs there and those that will decode there, `inflight` those that run,
    `peak` the most that ran since they told before. `work` is what their prefills in flight take
    from beginning to end, `ended` how many have ended so far, `sent` when those in flight were
    sent, by our clock.
    """

    at: Seconds = 0.0
    promised: int = 0
    inflight: int = 0
    peak: int = 0
    work: Seconds = 0.0
    ended: int = 0
    sent: tuple[Seconds, ...] = ()


NO_PEERS: Final = PeerLoad()
"""Of whom nobody told."""


class Load(Struct, frozen=True, gc=False):
    """How one member stands at one moment, as the rule sees it (see `InstanceView`)."""

    ready: bool
    ahead: Seconds
    queue_depth: int | None
    inflight: int


@dataclass(slots=True)
class Member:
    """One instance and everything that changes about it.

    `answered_at` is when it last answered a probe, whatever its answer. `decodes_due` counts the
    prefills elsewhere that will be decoded here. `peak` is the most legs of ours that ran there
    since the last reading, `unexplained` what that reading told beyond them; `peers_before` and
    `peers_since` are the most of other gateways' about that reading. `received` are the seconds of
    KV transfers that it told of, over its restarts. `busy_until` is when the prefills of all
    gateways are expected to be computed, one after the other; `ended` counts ours. `sound` tells
    that new work may go there whatever the clock says: `judge` says so after each change.
    """

    instance: Instance
    state: InstanceState = InstanceState.ACTIVE
    health: Health = Health()
    answered_at: Seconds | None = None
    breaker: Breaker = CLOSED
    reading: EngineReading | None = None
    prefills: list[PrefillLeg] = field(default_factory=list)
    decodes: int = 0
    decodes_due: int = 0
    busy_until: Seconds = 0.0
    ended: int = 0
    transitions: int = 0
    peak: int = 0
    unexplained: int = 0
    peers: PeerLoad = NO_PEERS
    peers_before: int = 0
    peers_since: int = 0
    received: Seconds = 0.0
    sound: bool = False

    def judge(self) -> None:
        """Note whether it is active, alive, and its breaker closed."""
        self.sound = self.lives and self.breaker.opened_at is None

    @property
    def lives(self) -> bool:
        """Whether it is active and answers its probes."""
        return self.state is InstanceState.ACTIVE and self.health.alive is True

    @property
    def others(self) -> int:
        """What the last reading told beyond all gateways' legs.

        What peers sent just before it, they may tell of just after.
        """
        if not self.unexplained:
            return 0
        return max(0, self.unexplained - max(self.peers_before, self.peers_since))

    @property
    def work(self) -> Seconds:
        """What our prefills in flight take there, from beginning to end."""
        return sum([leg.expected for leg in self.prefills])

    def take_reading(self, reading: EngineReading) -> None:
        """Take what a scrape told, and how far our own legs explain it."""
        self.received += _grown(self.reading, reading)
        self.reading = reading
        self.unexplained = max(0, reading.running + reading.waiting - self.peak)
        self.peak = self.inflight
        self.peers_before, self.peers_since = self.peers_since, self.peers.inflight

    def start_next(self, now: Seconds) -> None:
        """A prefill has ended: what is left of the queue starts, whatever was expected of it."""
        own = self.work if self.prefills else 0.0
        self.busy_until = now + own + self.peers.work

    def requeue(self, now: Seconds, before: PeerLoad) -> None:
        """Other gateways' prefills are other ones than `before`: some have ended, or more came."""
        more = self.peers.work - before.work
        ended = before.work > 0 and self.peers.ended != before.ended
        if ended or more < 0:
            self.start_next(now)
        else:
            self.busy_until = max(now, self.busy_until) + more

    @property
    def inflight(self) -> int:
        """Legs of ours that run there now."""
        return len(self.prefills) + self.decodes

    @property
    def promised(self) -> int:
        """Legs of ours that run there now or will when their prefill is done."""
        return self.inflight + self.decodes_due


def _grown(before: EngineReading | None, after: EngineReading) -> Seconds:
    """Return by how much the time of transfers grew; a restarted engine counts from 0."""
    if after.transfer_seconds is None or before is None or before.transfer_seconds is None:
        return 0.0
    grown = after.transfer_seconds - before.transfer_seconds
    return grown if grown >= 0 else after.transfer_seconds
