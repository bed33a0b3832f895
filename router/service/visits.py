"""One client request's stay: what it holds of its tenant's limits, of slots and of instances.

    with visits.open(tenant) as visit:
        await visit.charge(tokens)          # 429
        await visit.admit(lane, priority)   # waits; 503
        ...

Whatever happens in the block, everything is given back at its end, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from router.control.admission import Lane
from router.control.limits import Standing, TenantLimits
from router.domain.units import Bytes, Seconds, Tokens
from router.ports import Clock
from router.service.admission import Admission, Slot
from router.service.late_binding import LateBinding, Look
from router.service.limits import LimitLedger, Verdict, refuse
from router.service.places import Place
from router.service.reservations import LinkRoom, Reserved
from router.service.tenants import Tenant


class Visits:
    """Opens visits."""

    def __init__(
        self, limits: LimitLedger, admission: Admission, clock: Clock, room: LinkRoom
    ) -> None:
        self.limits = limits
        self.admission = admission
        self.clock = clock
        self.room = room

    def open(self, tenant: Tenant, *, limited: bool = True) -> Visit:
        """Return the visit of one request, which holds nothing yet.

        One that is not `limited` passes all limits of its tenant and uses none up.
        """
        return Visit(self, tenant, tenant.limits if limited else TenantLimits())


class Visit:
    """One request's stay."""

    def __init__(self, visits: Visits, tenant: Tenant, limits: TenantLimits) -> None:
        self._limits = limits
        self._is_limited = not limits.unlimited
        self._ledger = visits.limits
        self._admission = visits.admission
        self._room = visits.room
        self._clock = visits.clock
        self._slot: Slot | None = None
        self._place: Place | None = None
        self._reserved: dict[str, Reserved] = {}
        self._since = visits.clock.monotonic()
        self._entered = False
        self._hold: str | None = None
        self._waited: Seconds = 0.0
        self.tenant = tenant
        self.standings: tuple[Standing, ...] = ()

    def __enter__(self) -> Self:
        """Count the request as running. Raises RateLimited."""
        if self._is_limited:
            self._judge(self._ledger.enter(self.tenant.name, self._limits))
            self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give everything back."""
        if self._place is not None:
            self.unbind()
        if self._slot is not None:
            self._slot.release()
        if self._entered:
            self._entered = False
            self._ledger.leave(self.tenant.name, self._hold)

    async def charge(self, tokens: Tokens) -> None:
        """Charge the request, of so many prompt tokens. Raises RateLimited, and charges nothing."""
        if self._is_limited:
            verdict = await self._ledger.charge(self.tenant.name, self._limits, tokens)
            self._hold = verdict.hold
            self._judge(verdict)

    async def admit(self, lane: Lane, priority: int) -> None:
        """Wait for a decode slot, instead of one that is held already.

        All waits of one visit together are bounded by the queue's time-out. Raises Overloaded,
        NobodyAlive.
        """
        again = self._slot is not None
        if self._slot is not None:
            self._slot.release()
            self._slot = None
        since = self._clock.monotonic() - self._waited
        try:
            self._slot = await self._admission.admit(
                self.tenant, priority, lane, since=since, ahead=again
            )
        finally:
            self._waited = self._clock.monotonic() - since

    @property
    def waited(self) -> Seconds:
        """How long it waited, for its slot and for an instance."""
        return self._waited

    async def bind(self, binding: LateBinding, look: Look) -> Place | None:
        """Wait for an instance that is free to prefill it; None leaves it to the rule.

        The place is held until the prefill has begun, or `unbind`. Raises Overloaded.
        """
        self.unbind()
        began = self._clock.monotonic()
        try:
            self._place = await binding.bind(look, since=self._since, waited=self._waited)
        finally:
            self._waited += self._clock.monotonic() - began
        return self._place

    async def reserve(self, wanted: Mapping[str, Bytes]) -> bool:
        """Reserve links' bytes, all of them or (False) none, until `claim` or `unbind`."""
        reserved = await self._room.reserve(wanted) if wanted else ()
        if reserved is None:
            return False
        for each in reserved:
            self._reserved[each.link] = each
        return True

    def claim(self, link: str, size: Bytes) -> Reserved:
        """Return what was reserved on a link, or take it now: its booking holds it from here on."""
        return self._reserved.pop(link, None) or self._room.take(link, size)

    def unbind(self) -> None:
        """Give back the instance's time, and bytes that nobody claimed. Idempotent.

        A prefill that has begun counts by itself.
        """
        if self._place is not None:
            place, self._place = self._place, None
            place.release()
        while self._reserved:
            self._reserved.popitem()[1].release()

    def full(self, model: str) -> frozenset[str]:
        """Return the instances that have no slot for this request: its own is none of them.

        None is full for a request that holds no slot, and needs none.
        """
        if self._slot is None:
            return frozenset()
        full = self._admission.full(model)
        return full - {self._slot.instance} if full else full

    def settle(self, instance: str) -> None:
        """Hold the slot at the instance that was decided: one that `full` did not name."""
        if self._slot is not None:
            self._slot.move(instance)

    def _judge(self, verdict: Verdict) -> None:
        self.standings = verdict.standings
        if verdict.refused is not None:
            raise refuse(verdict.refused)
