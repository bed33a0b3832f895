"""Legs in flight, each counted at its member for the time of a block.

Classes, not generators: every request enters two of them.
"""

from __future__ import annotations

from typing import Protocol

from router.control.health import CLOSED, step_abandoned
from router.domain.units import Seconds
from router.service.members import Member, PrefillLeg


class LegFleet(Protocol):
    """What a counted leg tells its fleet: the beginning and, of a prefill, the end. No I/O."""

    def now(self) -> Seconds:
        """Read the clock that the fleet lives by."""
        ...

    def dispatch(self, member: Member, now: Seconds) -> None:
        """Note that one more leg has begun there."""
        ...

    def prefill_ended(self, name: str) -> None:
        """Tell who watches that an instance has a prefill less."""
        ...


class PrefillCounted:
    """A prefill in flight, for the time of a block."""

    __slots__ = ("_expected", "_fleet", "_leg", "_member")

    def __init__(self, fleet: LegFleet, member: Member, expected: Seconds) -> None:
        self._fleet = fleet
        self._member = member
        self._expected = expected

    def __enter__(self) -> None:
        now, member = self._fleet.now(), self._member
        self._leg = PrefillLeg(now, self._expected)
        member.prefills.append(self._leg)
        member.busy_until = max(now, member.busy_until) + self._expected
        self._fleet.dispatch(member, now)

    def __exit__(self, *_: object) -> None:
        member = self._member
        member.prefills.remove(self._leg)
        member.ended += 1
        member.start_next(self._fleet.now())
        if member.breaker is not CLOSED:
            member.breaker = step_abandoned(member.breaker)
        self._fleet.prefill_ended(member.instance.name)


class DecodeDue:
    """A decode that a running prefill will need, for the time of a block."""

    __slots__ = ("_member",)

    def __init__(self, member: Member) -> None:
        self._member = member

    def __enter__(self) -> None:
        self._member.decodes_due += 1

    def __exit__(self, *_: object) -> None:
        self._member.decodes_due -= 1


class DecodeCounted:
    """A decode in flight, for the time of a block."""

    __slots__ = ("_fleet", "_member")

    def __init__(self, fleet: LegFleet, member: Member) -> None:
        self._fleet = fleet
        self._member = member

    def __enter__(self) -> None:
        self._member.decodes += 1
        self._fleet.dispatch(self._member, self._fleet.now())

    def __exit__(self, *_: object) -> None:
        member = self._member
        member.decodes -= 1
        if member.breaker is not CLOSED:
            member.breaker = step_abandoned(member.breaker)
