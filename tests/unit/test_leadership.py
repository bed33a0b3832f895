"""Leadership as each process believes it, over a store that can be away or lose everything."""

from __future__ import annotations

import pytest

from router.control.tenures import LeaseRules
from router.domain.errors import NotLeading
from router.service.leadership import Leadership
from tests.fakes.clocks import FakeClock
from tests.fakes.leader_stores import LeaderStore

RULES = LeaseRules(within=3.0)


class Town:
    """Some processes on one store, all by one clock."""

    def __init__(self, *names: str) -> None:
        self.clock = FakeClock()
        self.store = LeaderStore(self.clock)
        self.processes = {
            name: Leadership(
                self.store.seat(name, life=RULES.life), name=name, clock=self.clock, rules=RULES
            )
            for name in names
        }

    async def look(self, *names: str) -> None:
        """Let some of them ask the store, in turn."""
        for name in names:
            await self.processes[name].look()

    def leading(self) -> list[str]:
        """Who believes to lead."""
        return [name for name, process in self.processes.items() if process.leads]


async def test_without_a_shared_store_a_process_leads_always() -> None:
    """From the start on, without a fence, in a term that the next start's is higher than."""
    clock = FakeClock()
    alone = Leadership(None, name="a", clock=clock, rules=RULES)
    clock.advance(10**6)
    await alone.look()
    assert alone.leads
    assert alone.fence is None
    assert Leadership(None, name="a", clock=clock, rules=RULES).term > alone.term
    assert alone.describe()["leads"]


async def test_before_the_store_was_heard_of_nobody_leads() -> None:
    """A process that begins follows; it writes nothing behind a fence."""
    town = Town("a")
    town.store.away = True
    await town.look("a")
    assert town.leading() == []
    assert town.processes["a"].describe()["name"] is None
    with pytest.raises(NotLeading):
        _ = town.processes["a"].fence


async def test_another_acts_within_the_time_that_was_promised() -> None:
    """However soon after a renewal the leader dies: the others look at the lease's very end."""
    town = Town("a", "b")
    await town.look("a", "b")
    for _ in range(10):
        town.clock.advance(RULES.pause)
        await town.look("a", "b")
    died, first = town.clock.monotonic(), town.processes["a"].term
    while not town.processes["b"].leads:
        town.clock.advance(RULES.pause)
        await town.look("b")
    assert town.clock.monotonic() - died <= RULES.within
    assert town.processes["b"].term > first
    assert town.leading() == ["b"]


async def test_a_clean_end_hands_over_at_once() -> None:
    """No time has to pass before the next one leads."""
    town = Town("a", "b")
    await town.look("a", "b")
    await town.processes["a"].leave()
    assert town.leading() == []
    await town.look("b")
    assert town.leading() == ["b"]


async def test_while_the_store_is_away_nobody_leads_and_after_it_somebody_does() -> None:
    """The belief ends with the lease, the last leader's name too; nobody has to do anything."""
    town = Town("a", "b")
    await town.look("a", "b")
    term = town.processes["a"].term
    town.store.away = True
    town.clock.advance(RULES.life + 0.01)
    await town.look("a", "b")
    assert town.leading() == []
    assert town.processes["b"].leader is None
    assert town.processes["b"].term == term
    town.store.away = False
    await town.look("b", "a")
    assert town.leading() == ["b"]
    assert town.processes["a"].leader == town.processes["b"].leader
    assert town.processes["b"].term > term


async def test_a_leader_that_slept_believes_nothing_and_writes_nothing() -> None:
    """Neither by its clock, nor by a fence that it took before it slept."""
    town = Town("a", "b")
    await town.look("a", "b")
    fence = town.processes["a"].fence
    town.clock.advance(RULES.life + 0.01)
    assert town.leading() == []
    with pytest.raises(NotLeading):
        await town.store.write("solved", b"x", after=0, fence=fence)
    await town.look("b", "a")
    assert town.leading() == ["b"]
    with pytest.raises(NotLeading):
        await town.store.write("solved", b"x", after=0, fence=fence)


async def test_what_is_told_of_the_leader_is_the_same_everywhere() -> None:
    """Name, term and begin; the age is that of the last renewal."""
    town = Town("a", "b")
    await town.look("a")
    town.clock.advance(0.5)
    await town.look("b")
    leader, follower = (town.processes[name].describe() for name in "ab")
    assert leader["leads"]
    assert not follower["leads"]
    for part in ("name", "term", "since"):
        assert leader[part] == follower[part]
    assert follower["lease_age_seconds"] == pytest.approx(0.5)
