"""A shared egress link: fair processor sharing of a finite bandwidth.

`LinkState` is pure: flows, the bytes each has left, and what passes when time passes. `Link` is its
shell: it reads the clock, arms one timer for the next completion and wakes who waits. Bytes are
conserved: what all flows sent adds up to `sent_bytes`, whatever opens, closes or changes when.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from router.domain.units import from_gbps
from router.sim.engines.specs import LinkSpec
from router.sim.engines.timing import SimClock

_RESIDUE_BYTES = 1e-3
"""Less than this is a rounding error of floating-point time, not a byte to send."""


@dataclass(slots=True)
class Flow:
    """One transfer: bytes left and bytes sent. `sent` outlives a flow that was done early."""

    left: float
    sent: float = 0.0


@dataclass(slots=True)
class LinkState:
    """All flows of a link at time `now`, in simulated seconds; `rate` in bytes per second."""

    rate: float
    now: float = 0.0
    flows: dict[int, Flow] = field(default_factory=dict)
    sent_bytes: float = 0.0
    busy_seconds: float = 0.0

    def advance(self, now: float) -> None:
        """Let time pass until `now`: active flows share the rate equally."""
        while True:
            active = [flow for flow in self.flows.values() if flow.left > 0]
            span = now - self.now
            if not active or self.rate <= 0 or span <= 0:
                self.now = max(self.now, now)
                return
            share = self.rate / len(active)
            shortest = min(flow.left for flow in active)
            step = min(span, shortest / share)
            for flow in active:
                moved = min(flow.left, share * step)
                if flow.left - moved < _RESIDUE_BYTES:
                    moved = flow.left
                flow.left -= moved
                flow.sent += moved
                self.sent_bytes += moved
            self.busy_seconds += step
            self.now += step

    def next_completion(self) -> float | None:
        """Return when the next flow is done if nothing changes, None if none will be."""
        active = [flow.left for flow in self.flows.values() if flow.left > 0]
        if not active or self.rate <= 0:
            return None
        return self.now + min(active) * len(active) / self.rate

    def trim(self, flow_id: int, total: float) -> None:
        """Let flow `flow_id` end after `total` bytes; what it sent beyond stays sent."""
        flow = self.flows[flow_id]
        flow.left = max(0.0, total - flow.sent)


class Link:
    """The live link. Every method is of the event loop that made it."""

    def __init__(self, spec: LinkSpec, clock: SimClock) -> None:
        self.spec = spec
        self._clock = clock
        self._state = LinkState(_rate(spec), now=clock.now())
        self._next_id = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Link {self.spec.name} to {self.spec.target}, {len(self._state.flows)} flows>"

    def open(self, size: float) -> int:
        """Start to send `size` bytes; return the flow's id, to be closed by the caller."""
        self._state.advance(self._clock.now())
        self._next_id += 1
        self._state.flows[self._next_id] = Flow(size)
        self._settle()
        return self._next_id

    async def cross(self, flow_id: int, size: float) -> None:
        """Return when `size` bytes of the flow have crossed; others' flows slow it down."""
        self._state.advance(self._clock.now())
        self._state.trim(flow_id, size)
        future = asyncio.get_running_loop().create_future()
        self._waiting[flow_id] = future
        self._settle()
        await future

    def close(self, flow_id: int) -> float:
        """End a flow, done or not; return the bytes that it sent."""
        self._state.advance(self._clock.now())
        flow = self._state.flows.pop(flow_id)
        self._waiting.pop(flow_id, None)
        self._settle()
        return flow.sent

    def change(
        self, *, gbps: float | None = None, up: bool | None = None, overlap: bool | None = None
    ) -> None:
        """Change bandwidth, availability or overlap from now on; None leaves as is.

        Raises SpecError, and changes nothing, for a negative bandwidth.
        """
        self._state.advance(self._clock.now())
        self.spec = replace(
            self.spec,
            gbps=self.spec.gbps if gbps is None else gbps,
            up=self.spec.up if up is None else up,
            overlap=self.spec.overlap if overlap is None else overlap,
        )
        self._state.rate = _rate(self.spec)
        self._settle()

    def describe(self) -> dict[str, object]:
        """Return settings and counters, for tests and operators."""
        self._state.advance(self._clock.now())
        self._settle()
        left = sum(flow.left for flow in self._state.flows.values())
        return {
            "name": self.spec.name,
            "target": self.spec.target,
            "gbps": self.spec.gbps,
            "up": self.spec.up,
            "overlap": self.spec.overlap,
            "flows": len(self._state.flows),
            "bytes_left": round(left),
            "bytes_sent": round(self._state.sent_bytes),
            "busy_seconds": self._state.busy_seconds,
        }

    def stop(self) -> None:
        """Disarm the timer; flows that are waited for stay unfinished."""
        if self._timer is not None:
            self._timer.cancel()

    def _settle(self) -> None:
        for flow_id, future in list(self._waiting.items()):
            if self._state.flows[flow_id].left <= 0:
                del self._waiting[flow_id]
                if not future.done():
                    future.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when = self._state.next_completion() if self._waiting else None
        if when is not None:
            delay = max(0.0, self._clock.wall_until(when))
            self._timer = asyncio.get_running_loop().call_later(delay, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._state.advance(self._clock.now())
        self._settle()


def _rate(spec: LinkSpec) -> float:
    return from_gbps(spec.gbps) if spec.up else 0.0
