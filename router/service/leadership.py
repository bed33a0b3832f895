"""Which of the processes that share a store controls: solves thresholds, proposes, converts.

    if leadership.leads:
        await state.write(name, document, after=version, fence=leadership.fence)

`leads` is this process's belief, kept by renewals that are sent well before the lease ends; `fence`
is what makes a write safe: the store refuses it where the belief was wrong, as that of a process
that slept through the end of its lease. Where the store is away nobody leads, and nobody acts.
Without a store that processes share the only one leads, always.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol

from router.control.tenures import (
    Leader,
    LeaseRules,
    Standing,
    Tenure,
    begin_alone,
    current_leader,
    hear,
    leads,
    pause_before_look,
    resign,
)
from router.domain.errors import NotLeading, StoreAway
from router.ports import Clock, Fence
from router.service.decisions import Document

_LOG = logging.getLogger(__name__)


class LeaderLease(Protocol):
    """The one lease of a deployment. Held to `tests/contract/leader_suite.py`.

    Each call is one round trip; raises StoreAway, and nothing is known then.
    """

    @property
    def owner(self) -> str:
        """This process, as fences name it."""
        ...

    async def hold(self, term: int, highest: int) -> Standing:
        """Renew what one has in `term` (0: nothing), or take what nobody has, and be told who has.

        What is taken has a higher term than any before it, than `highest` too, which is the highest
        that the caller knows: a store may have lost it.
        """
        ...

    async def give_back(self, term: int) -> None:
        """Let anybody take it at once, if one has it in that term."""
        ...


class Leadership:
    """This process's part in it. Single-threaded: owned by one event loop."""

    def __init__(
        self, lease: LeaderLease | None, *, name: str, clock: Clock, rules: LeaseRules
    ) -> None:
        """`lease` is None where no store is shared; `name` is this process's, for people."""
        self._lease = lease
        self._clock = clock
        self._rules = rules
        self._tenure = Tenure() if lease else begin_alone(name, clock.now().timestamp())
        self._told = False

    def __repr__(self) -> str:
        return f"<Leadership {'leads' if self.leads else 'follows'} in term {self.term}>"

    @property
    def leads(self) -> bool:
        """Whether this process controls now."""
        return leads(self._tenure, self._clock.monotonic())

    @property
    def term(self) -> int:
        """The highest term that was heard of, one's own while one leads; 0 before any."""
        return self._tenure.highest

    @property
    def leader(self) -> Leader | None:
        """Who leads, as far as is known; None where nobody does."""
        return current_leader(self._tenure, self._clock.monotonic())

    @property
    def fence(self) -> Fence | None:
        """What a leader's writes go with; None without a shared store. Raises NotLeading."""
        if self._lease is None:
            return None
        if not self.leads:
            raise NotLeading("this process does not lead")
        return Fence(self._lease.owner, self._tenure.held)

    async def run(self) -> None:
        """Hold the lease or wait for it, until cancelled."""
        while self._lease is not None:
            await self.look()
            pause = pause_before_look(self._tenure, self._clock.monotonic(), self._rules)
            await asyncio.sleep(pause)

    async def look(self) -> None:
        """Ask the store once; where it does not answer, what was known ends with its lease."""
        if self._lease is None:
            return
        asked_at = self._clock.monotonic()
        with suppress(StoreAway):
            standing = await self._lease.hold(self._tenure.held, self._tenure.highest)
            self._tenure = hear(self._tenure, standing, asked_at)
        self._tell()

    async def leave(self) -> None:
        """End one's own term, so that another can begin; what the store misses, its lease ends."""
        term, self._tenure = self._tenure.held, resign(self._tenure, self._clock.monotonic())
        if self._lease is not None and term:
            with suppress(StoreAway):
                await self._lease.give_back(term)
        self._tell()

    def describe(self) -> Document:
        """Return who leads, as a document; `leads` is whether the answering process does."""
        leader = self.leader
        left = self._tenure.until - self._clock.monotonic()
        return {
            "leads": self.leads,
            "name": None if leader is None else leader.name,
            "term": None if leader is None else leader.term,
            "since": None
            if leader is None
            else datetime.fromtimestamp(leader.since, UTC).isoformat(),
            "lease_age_seconds": None if leader is None else max(0.0, self._rules.life - left),
        }

    def _tell(self) -> None:
        if self.leads is self._told:
            return
        self._told = self.leads
        if self._told:
            _LOG.info("this process leads, in term %d", self.term)
        else:
            _LOG.warning("this process does not lead any more; its last term was %d", self.term)
