"""What any store of leases must do: one suite, held against each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kvmeta.leases import LeaseStore

TTL = 0.3
PassTime = Callable[[float], Awaitable[None]]


class LeaseSuite:
    """Every claim that a store of leases is held to; give fixtures `leases` and `pass_time`."""

    async def test_a_lease_has_one_owner(self, leases: LeaseStore) -> None:
        """While it lasts nobody else gets it."""
        assert await leases.acquire("p0/0", "a", TTL) is not None
        assert await leases.acquire("p0/0", "b", TTL) is None
        assert await leases.acquire("p1/0", "b", TTL) is not None

    async def test_a_lease_ends_by_itself(self, leases: LeaseStore, pass_time: PassTime) -> None:
        """What a dead owner held comes free, under a higher token."""
        first = await leases.acquire("p0/0", "a", TTL)
        await pass_time(TTL + 0.1)
        second = await leases.acquire("p0/0", "b", TTL)
        assert first is not None
        assert second is not None
        assert second > first

    async def test_renewing_keeps_it(self, leases: LeaseStore, pass_time: PassTime) -> None:
        """A lease renewed in time outlives its first life."""
        token = await leases.acquire("p0/0", "a", TTL)
        assert token is not None
        for _ in range(3):
            await pass_time(TTL / 2)
            assert await leases.renew("p0/0", "a", token, TTL)
        assert await leases.acquire("p0/0", "b", TTL) is None

    async def test_what_has_ended_cannot_be_renewed(
        self, leases: LeaseStore, pass_time: PassTime
    ) -> None:
        """Neither after the end, nor when another has it, nor under an old token."""
        token = await leases.acquire("p0/0", "a", TTL)
        assert token is not None
        await pass_time(TTL + 0.1)
        assert not await leases.renew("p0/0", "a", token, TTL)
        await leases.acquire("p0/0", "b", TTL)
        assert not await leases.renew("p0/0", "a", token, TTL)
        assert not await leases.renew("p0/0", "b", token, TTL)

    async def test_releasing_frees_it_at_once(self, leases: LeaseStore) -> None:
        """A released lease is anybody's; a release by one who lost it changes nothing."""
        token = await leases.acquire("p0/0", "a", TTL)
        assert token is not None
        await leases.release("p0/0", "b", token)
        assert await leases.acquire("p0/0", "b", TTL) is None
        await leases.release("p0/0", "a", token)
        other = await leases.acquire("p0/0", "b", TTL)
        assert other is not None
        await leases.release("p0/0", "a", token)
        assert await leases.renew("p0/0", "b", other, TTL)

    async def test_an_owner_may_take_its_own_again(self, leases: LeaseStore) -> None:
        """Whose answer was lost asks again: the newer grant counts, the older does not."""
        first = await leases.acquire("p0/0", "a", TTL)
        second = await leases.acquire("p0/0", "a", TTL)
        assert first is not None
        assert second is not None
        assert second > first
        assert not await leases.renew("p0/0", "a", first, TTL)
        assert await leases.renew("p0/0", "a", second, TTL)

    async def test_members_are_those_that_announced_themselves_lately(
        self, leases: LeaseStore, pass_time: PassTime
    ) -> None:
        """A member is seen by all, until it leaves or falls silent."""
        assert await leases.announce("a", TTL) == {"a"}
        assert await leases.announce("b", TTL) == {"a", "b"}
        await leases.leave("a")
        assert await leases.announce("b", TTL) == {"b"}
        await leases.announce("a", TTL)
        await pass_time(TTL + 0.1)
        assert await leases.announce("b", TTL) == {"b"}
