"""Who leads, as one process knows it: a lease in a store, renewed well before it ends.

The store says who leads; a process only remembers what it was told, and from when on it may not
believe it any more. A lease counts from before it was asked for, so whoever holds it stops to lead
before the store gives it to somebody else, as long as clocks run at about the same speed. What is
done in between a look at the clock and a write is the fence's to refuse (`router.ports.Fence`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from router.domain.units import Seconds


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """Another process acts at most `within` seconds after the leader's last sign of life.

    Two thirds of it are the lease's life; it is renewed, and looked at, every sixth of it. So three
    renewals fail before a leader that lives loses it, and who takes it over has half a life left
    over of the time that was promised.
    """

    within: Seconds = 3.0

    @property
    def life(self) -> Seconds:
        """How long the lease lasts after a renewal."""
        return self.within * 2 / 3

    @property
    def pause(self) -> Seconds:
        """Time between two looks."""
        return self.within / 6


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads: a name for people, the term's number, and when the term began.

    `since` is in seconds since 1970, by the store's clock.
    """

    name: str
    term: int
    since: Seconds


@dataclass(frozen=True, slots=True)
class Standing:
    """What a store answers: who leads, whether that is who asks, and for how long still."""

    leader: Leader
    mine: bool
    left: Seconds


@dataclass(frozen=True, slots=True)
class Tenure:
    """What one process knows.

    `leader` was told last, and leads until `until` if nobody says otherwise; `mine` is whether that
    is this process. `highest` is the highest term that it ever heard of: what is lost with a store
    is not begun anew.
    """

    leader: Leader | None = None
    mine: bool = False
    until: Seconds = 0.0
    highest: int = 0

    @property
    def held(self) -> int:
        """The term that this process has, or had last; 0 where somebody else leads."""
        return self.leader.term if self.leader is not None and self.mine else 0


def begin_alone(name: str, now: Seconds) -> Tenure:
    """Return the endless term of a process that shares no store; it rises with each start.

    `now` is in seconds since 1970.
    """
    term = round(now * 1000)
    return Tenure(Leader(name, term, now), mine=True, until=inf, highest=term)


def leads(tenure: Tenure, now: Seconds) -> bool:
    """Whether this process may act as the leader."""
    return tenure.mine and now < tenure.until


def current_leader(tenure: Tenure, now: Seconds) -> Leader | None:
    """Return who leads as far as is known; None where nobody does or nobody was heard of."""
    return tenure.leader if now < tenure.until else None


def hear(tenure: Tenure, standing: Standing, asked_at: Seconds) -> Tenure:
    """Return what is known after an answer to what was asked at `asked_at`."""
    return Tenure(
        leader=standing.leader,
        mine=standing.mine,
        until=asked_at + standing.left,
        highest=max(tenure.highest, standing.leader.term),
    )


def resign(tenure: Tenure, now: Seconds) -> Tenure:
    """Return what is known once this process has ended its own term."""
    return replace(tenure, mine=False, until=min(tenure.until, now)) if tenure.mine else tenure


def pause_before_look(tenure: Tenure, now: Seconds, rules: LeaseRules) -> Seconds:
    """Return how long to wait before the store is asked again.

    Who leads renews by the pause; the others look then, or as soon as the lease may have ended.
    """
    if tenure.mine or now >= tenure.until:
        return rules.pause
    return min(rules.pause, tenure.until - now)
