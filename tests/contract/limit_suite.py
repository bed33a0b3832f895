"""What any ledger of tenants' limits must do: one suite, held against each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from router.control.limits import LimitKind, Refused, TenantLimits
from router.service.limits import LimitLedger, Verdict
from tests.fakes.shared_stores import until

PassTime = Callable[[float], Awaitable[None]]


async def run_one(ledger: LimitLedger, tenant: str, limits: TenantLimits, tokens: int) -> Verdict:
    """Enter and charge; a refused one leaves again."""
    verdict = ledger.enter(tenant, limits)
    if verdict.refused is None:
        verdict = await ledger.charge(tenant, limits, tokens)
        if verdict.refused is not None:
            ledger.leave(tenant, verdict.hold)
    return verdict


class LimitSuite:
    """Every claim that a ledger is held to; give fixtures `ledger` and `pass_time`."""

    async def test_requests_pass_up_to_the_limit(self, ledger: LimitLedger) -> None:
        """The one over it is told how long to wait, what remains counts down to 0."""
        limits = TenantLimits(requests=3)
        remaining = []
        for _ in range(3):
            verdict = await run_one(ledger, "acme", limits, 10)
            assert verdict.refused is None
            remaining += [standing.remaining for standing in verdict.standings]
        assert remaining == [2, 1, 0]
        refused = (await run_one(ledger, "acme", limits, 10)).refused
        assert isinstance(refused, Refused)
        assert refused.kind is LimitKind.REQUESTS
        assert refused.retry_after == pytest.approx(20, abs=5)

    async def test_tokens_pass_up_to_the_limit(self, ledger: LimitLedger) -> None:
        """A prompt that is refused has used nothing up: a shorter one passes."""
        limits = TenantLimits(requests=50, tokens=100)
        await run_one(ledger, "acme", limits, 60)
        verdict = await run_one(ledger, "acme", limits, 60)
        assert verdict.refused is not None
        assert verdict.refused.kind is LimitKind.TOKENS
        assert [each.remaining for each in verdict.standings] == pytest.approx([49, 40], abs=6)
        assert (await run_one(ledger, "acme", limits, 35)).refused is None

    async def test_a_prompt_over_the_whole_limit_never_passes(self, ledger: LimitLedger) -> None:
        """The refusal names no time."""
        verdict = await run_one(ledger, "acme", TenantLimits(tokens=100), 101)
        assert verdict.refused == Refused(LimitKind.TOKENS, 100, None)

    async def test_a_rate_is_replenished_evenly(
        self, ledger: LimitLedger, pass_time: PassTime
    ) -> None:
        """After the told wait the refused request passes."""
        limits = TenantLimits(requests=120)
        while (refused := (await run_one(ledger, "acme", limits, 1)).refused) is None:
            pass
        assert refused.retry_after is not None
        await pass_time(refused.retry_after + 0.02)
        assert (await run_one(ledger, "acme", limits, 1)).refused is None

    async def test_large_limits_stay_exact(self, ledger: LimitLedger) -> None:
        """At the largest limit the tokens that were charged are gone to the last one."""
        limits = TenantLimits(tokens=100_000_000)
        await run_one(ledger, "acme", limits, 99_999_999)
        verdict = await run_one(ledger, "acme", limits, 100_000_000)
        assert verdict.refused is not None
        (standing,) = verdict.standings
        assert 1 <= standing.remaining < 100_000_000

    async def test_requests_at_once(self, ledger: LimitLedger) -> None:
        """One over the limit is refused; when one left there is room again."""
        limits = TenantLimits(concurrency=2)
        first, second = [await run_one(ledger, "acme", limits, 1) for _ in range(2)]
        assert first.refused is None
        assert second.refused is None
        assert (await run_one(ledger, "acme", limits, 1)).refused is not None
        ledger.leave("acme", first.hold)

        async def passes() -> bool:
            return (await run_one(ledger, "acme", limits, 1)).refused is None

        await until(passes)
        assert (await run_one(ledger, "acme", limits, 1)).refused is not None

    async def test_tenants_have_accounts_of_their_own(self, ledger: LimitLedger) -> None:
        """One tenant's limit is not another's, whatever their names are made of."""
        limits = TenantLimits(requests=1, concurrency=1)
        for tenant in ("acme", "bits", "a}:{b", "ü/ "):
            assert (await run_one(ledger, tenant, limits, 1)).refused is None
            assert (await run_one(ledger, tenant, limits, 1)).refused is not None
