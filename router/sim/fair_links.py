"""A link that its flows share equally, in virtual time.

The virtual time V is the bytes that a flow would have sent had it been there all along: it moves on
by rate / n a second while n flows are active. A flow of S bytes opened at V is done at V + S, so
opening, closing and the next completion cost O(log n) (the way of GPS, Parekh and Gallager 1993);
the stand-in engines' link, which keeps each flow's bytes, is the oracle of its tests.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from router.domain.units import BytesPerSecond, Seconds

_T = TypeVar("_T")

_RESIDUE_SECONDS = 1e-9
"""What is left for less than this is a rounding error of floating-point time, no bytes to send."""


class FairLink(Generic[_T]):
    """All flows of a link, each named by its owner. `rate` in bytes per second; 0 is an outage."""

    __slots__ = ("_flows", "_number", "_reached", "_since", "rate", "sent")

    def __init__(self, rate: BytesPerSecond) -> None:
        self.rate = rate
        self.sent = 0.0
        self._since: Seconds = 0.0
        self._reached = 0.0
        self._number = 0
        self._flows: list[tuple[float, int, _T]] = []

    def __repr__(self) -> str:
        return f"<FairLink {self.rate:.4g} B/s, {len(self._flows)} flows>"

    def __len__(self) -> int:
        return len(self._flows)

    def __contains__(self, owner: object) -> bool:
        return any(each is owner for _, _, each in self._flows)

    def advance(self, now: Seconds) -> None:
        """Let the flows send until `now`. None may have been done before then."""
        flows = len(self._flows)
        if flows:
            moved = self.rate * (now - self._since)
            self._reached += moved / flows
            self.sent += moved
        self._since = now

    def open(self, now: Seconds, size: float, owner: _T) -> None:
        """Start to send `size` bytes."""
        self.advance(now)
        self._number += 1
        heappush(self._flows, (self._reached + size, self._number, owner))

    def change(self, now: Seconds, rate: BytesPerSecond) -> None:
        """Have another rate from now on."""
        self.advance(now)
        self.rate = rate

    def next_completion(self) -> Seconds | None:
        """Return when the next flow is done if nothing changes, None if none will be."""
        if not self._flows or self.rate <= 0:
            return None
        left = max(0.0, self._flows[0][0] - self._reached)
        return self._since + left * len(self._flows) / self.rate

    def take_done(self, now: Seconds) -> list[_T]:
        """Take out, and return in order, the owners of flows that are done."""
        self.advance(now)
        done: list[_T] = []
        flows = self._flows
        while flows and flows[0][0] - self._reached <= self.rate * _RESIDUE_SECONDS:
            end, _, owner = heappop(flows)
            self.sent += end - self._reached  # what rounding left or took
            done.append(owner)
        if not flows:
            self._reached = 0.0
        return done

    def cut(self, now: Seconds, owner: _T) -> float:
        """End the owner's flow before it is done; return the bytes that it leaves unsent.

        Raises KeyError without such a flow.
        """
        self.advance(now)
        for position, (end, _, each) in enumerate(self._flows):
            if each is owner:
                del self._flows[position]
                heapify(self._flows)
                return max(0.0, end - self._reached)
        raise KeyError(owner)
