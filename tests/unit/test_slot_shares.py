"""Shares of slots where the store says little or nothing; the rest is shown over a real Redis."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from router.domain.errors import StoreAway
from router.domain.topology import Cluster, ClusterKind, Instance, Role
from router.service.fleet import Fleet
from router.service.slot_shares import Asked, Granted, Need, SharedSlots
from tests.fakes.clocks import FakeClock


class Shares:
    """A `ShareStore` in which somebody else has everything, as long as it answers."""

    def __init__(self) -> None:
        self.away = False
        self.calls = 0

    async def claim(self, asked: Mapping[str, Asked]) -> tuple[int, Mapping[str, Granted]]:
        self.calls += 1
        if self.away:
            raise StoreAway("away")
        return 0, {name: Granted(0) for name in asked}

    async def leave(self) -> None:
        raise StoreAway("away")


class Wanting:
    """A `Claimant` that wants one place, or nothing."""

    def __init__(self) -> None:
        self.wants = True
        self.told = 0

    def needs(self) -> Mapping[str, Need]:
        return {"p0": Need(limit=1, held=0, waiting=1, foreign=0)} if self.wants else {}

    def let_in(self) -> None:
        self.told += 1


@pytest.mark.parametrize(("alone_after", "left"), [(3.0, 1), (None, 0)])
async def test_who_has_nothing_goes_on_alone_without_the_store(
    alone_after: float | None, left: int
) -> None:
    """Not before all that others hold has ended; and never where a bound must hold."""
    clock, store, claimant = FakeClock(), Shares(), Wanting()
    instance = Instance("p0", "east", "http://p0", Role.PREFILL)
    fleet = Fleet([Cluster("east", ClusterKind.PD)], [instance], clock=clock)
    slots = SharedSlots(fleet, store, me="one", alone_after=alone_after)
    member = fleet.member("p0")
    await slots.exchange(claimant)
    assert slots.room(member, 1, 0) == 0
    store.away = True
    clock.advance(2.9)
    await slots.exchange(claimant)
    assert slots.room(member, 1, 0) == 0
    clock.advance(0.2)
    await slots.exchange(claimant)
    assert slots.room(member, 1, 0) == left
    store.away = False
    await slots.exchange(claimant)
    assert slots.room(member, 1, 0) == 0


async def test_who_wants_nothing_asks_nobody() -> None:
    """What was asked for once is given up once, and then the store is left alone."""
    store, claimant = Shares(), Wanting()
    slots = SharedSlots(Fleet([], [], clock=FakeClock()), store, me="one")
    await slots.exchange(claimant)
    claimant.wants = False
    for _ in range(3):
        await slots.exchange(claimant)
    assert store.calls == 2
