"""What any store of the leader's lease must do, and the fence before its documents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from router.domain.errors import NotLeading
from router.ports import Fence, Kept, StateStore
from router.service.leadership import LeaderLease

LIFE = 0.6
PassTime = Callable[[float], Awaitable[None]]


@dataclass
class Parts:
    """Two processes' ways to one lease, the documents behind it, and time."""

    one: LeaderLease
    two: LeaderLease
    state: StateStore
    pass_time: PassTime


class LeaderSuite:
    """Every claim that such a store is held to; give the fixture `parts`."""

    async def test_one_leads_and_everybody_is_told(self, parts: Parts) -> None:
        """While the lease lasts the other is told the same leader, term and begin."""
        first = await parts.one.hold(0, 0)
        second = await parts.two.hold(0, 0)
        assert (first.mine, second.mine) == (True, False)
        assert second.leader == first.leader
        assert 0 < second.left <= first.left == LIFE

    async def test_renewals_keep_the_term(self, parts: Parts) -> None:
        """Renewed in time a lease outlives its first life, under the same number."""
        term = (await parts.one.hold(0, 0)).leader.term
        for _ in range(3):
            await parts.pass_time(LIFE / 2)
            assert (await parts.one.hold(term, term)).leader.term == term
        assert not (await parts.two.hold(0, 0)).mine

    async def test_an_ended_lease_is_another_term(self, parts: Parts) -> None:
        """Whoever takes what has ended does so with a higher number, its last owner too."""
        first = (await parts.one.hold(0, 0)).leader.term
        await parts.pass_time(LIFE + 0.1)
        again = await parts.one.hold(first, first)
        await parts.pass_time(LIFE + 0.1)
        other = await parts.two.hold(0, 0)
        assert again.mine
        assert other.mine
        assert first < again.leader.term < other.leader.term
        assert not (await parts.one.hold(again.leader.term, again.leader.term)).mine

    async def test_given_back_it_is_free_at_once(self, parts: Parts) -> None:
        """Given back by who has it, in its term, and by nobody else."""
        term = (await parts.one.hold(0, 0)).leader.term
        await parts.two.give_back(term)
        await parts.one.give_back(term - 1)
        assert not (await parts.two.hold(0, 0)).mine
        await parts.one.give_back(term)
        after = await parts.two.hold(0, 0)
        assert after.mine
        assert after.leader.term > term

    async def test_a_lost_answer_costs_a_term_and_nothing_else(self, parts: Parts) -> None:
        """Who does not know that he leads asks again, and leads under a new number."""
        lost = (await parts.one.hold(0, 0)).leader.term
        again = await parts.one.hold(0, 0)
        assert again.mine
        assert again.leader.term > lost

    async def test_a_new_term_is_over_the_highest_known(self, parts: Parts) -> None:
        """What a store has lost goes on where those who remember know it was."""
        highest = 2**52
        assert (await parts.one.hold(0, highest)).leader.term == highest + 1

    async def test_only_the_leader_writes_behind_a_fence(self, parts: Parts) -> None:
        """Neither another process, nor the leader of another term; and nothing is written then."""
        term = (await parts.one.hold(0, 0)).leader.term
        mine = Fence(parts.one.owner, term)
        assert await parts.state.write("solved", b"1", after=0, fence=mine) == Kept(1, b"1")
        for wrong in (
            Fence(parts.two.owner, term),
            Fence(parts.one.owner, term - 1),
            Fence(parts.one.owner, term + 1),
        ):
            with pytest.raises(NotLeading):
                await parts.state.write("solved", b"x", after=1, record=b"x", fence=wrong)
        assert await parts.state.read("solved") == Kept(1, b"1")
        assert await parts.state.records(10) == []
        assert await parts.state.write("solved", b"x", after=0, fence=mine) is None

    async def test_who_slept_through_the_end_writes_nothing(self, parts: Parts) -> None:
        """Not after the lease, though nobody has taken it over; and not after somebody has."""
        term = (await parts.one.hold(0, 0)).leader.term
        await parts.pass_time(LIFE + 0.1)
        with pytest.raises(NotLeading):
            await parts.state.write("solved", b"1", after=0, fence=Fence(parts.one.owner, term))
        await parts.two.hold(0, 0)
        with pytest.raises(NotLeading):
            await parts.state.write("solved", b"1", after=0, fence=Fence(parts.one.owner, term))
        assert await parts.state.read("solved") == Kept(0, b"")

    async def test_without_a_lease_no_fence_holds(self, parts: Parts) -> None:
        """In a store that lost it, or never had one."""
        with pytest.raises(NotLeading):
            await parts.state.write("solved", b"1", after=0, fence=Fence(parts.one.owner, 1))
