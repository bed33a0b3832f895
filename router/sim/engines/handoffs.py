"""Finished prefills that wait for their decode engine: pinned blocks under a lease.

vLLM keeps the blocks for a lease that starts with the end of the prefill and is renewed by the
decode engine's heartbeats. Here a decode engine asks as soon as it hears of the request and the
asking itself holds the lease until it ends, so no heartbeats are needed (ENGINE-FACTS 3.2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from router.sim.engines.block_cache import Holding
from router.sim.engines.errors import UnknownHandoffError
from router.sim.engines.link import Link


@dataclass(frozen=True, slots=True, eq=False)
class EarlyFlow:
    """A transfer that began with the prefill, layer by layer."""

    link: Link
    flow_id: int


@dataclass(frozen=True, slots=True, eq=False)
class Handoff:
    """One prefill's KV: the blocks that hold it and what a pull of it sends."""

    request_id: str
    holding: Holding
    tokens: int
    early: EarlyFlow | None


class Handoffs:
    """The hand-offs of one engine. `drop` frees what an expired or discarded one pinned."""

    def __init__(self, lease_wall_seconds: float, drop: Callable[[Handoff], None]) -> None:
        self._lease = lease_wall_seconds
        self._drop = drop
        self._offered: dict[str, tuple[Handoff, asyncio.TimerHandle]] = {}
        self.expired = 0

    def __len__(self) -> int:
        return len(self._offered)

    def offer(self, handoff: Handoff) -> None:
        """Pin `handoff` until it is taken or its lease ends."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._lease, self._expire, handoff.request_id)
        self._offered[handoff.request_id] = (handoff, timer)

    def take(self, request_id: str) -> Handoff:
        """Take a hand-off over; it is single-use. Raises UnknownHandoffError."""
        offered = self._offered.pop(request_id, None)
        if offered is None:
            raise UnknownHandoffError(f"no hand-off of request {request_id}")
        handoff, timer = offered
        timer.cancel()
        return handoff

    def discard(self, request_id: str) -> bool:
        """Free a hand-off that nobody will pull; False if there is none."""
        try:
            self._drop(self.take(request_id))
        except UnknownHandoffError:
            return False
        return True

    def discard_all(self) -> None:
        """Free everything, as a stopping engine does."""
        for request_id in list(self._offered):
            self.discard(request_id)

    def _expire(self, request_id: str) -> None:
        self.expired += self.discard(request_id)
