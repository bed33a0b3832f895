"""Hand-offs over a simulated link as gateways see them, in simulated time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from router.control.links import RegimeBounds, usable_bandwidth
from router.domain.topology import Link
from router.domain.units import Bytes, from_gbps, to_gbps
from router.service.links import LinkBoard, LinkBooking
from router.sim.fair_links import FairLink
from tests.fakes.clocks import FakeClock

LINK = Link("west-east", "west", "east", from_gbps(100))
PROMPT_BYTES, PROMPT_SECONDS = 735e6, 1.84
"""A prompt of 32K tokens of the example's model on eight H200."""


@dataclass(eq=False)
class _Handoff:
    board: LinkBoard
    booking: LinkBooking
    size: int
    crossed: bool = False
    prefilled: bool = False


@dataclass
class CrossingTraffic:
    """Prompts of many lengths at two prefill instances, their KV over one link that is shared.

    `load` is the offered bytes over what 5 Gbit/s carry. Every gateway takes its turn. A gateway
    that has inferred something offers less, as t makes it. `answer` is the longest time that a
    decode instance needs for its first token, here and over the link; in so many cases of a hundred
    it hiccups for half a second.
    """

    load: float
    overlap: bool = False
    gateways: int = 1
    answer: float = 0.05
    hiccups: float = 0.0
    seed: int = 0
    infers: bool = True
    clock: FakeClock = field(default_factory=FakeClock)
    inferred: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._link: FairLink[_Handoff] = FairLink(LINK.capacity)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._wakes = 0
        self._busy = [0.0, 0.0]
        self.boards = [
            LinkBoard(
                [LINK],
                clock=self.clock,
                bounds=RegimeBounds(),
                budget=5.0,
                infers=self.infers,
                overlap=self.overlap,
            )
            for _ in range(self.gateways)
        ]
        self._at(0.0, self._come)
        self._at(1.0, self._look)
        self._at(0.25, self._tell)

    def throttle(self, gbps: float) -> None:
        """Let the link carry another rate from now on."""
        self._link.change(self.clock.seconds, from_gbps(gbps))
        self._arm()

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until:
            at, _, event = heapq.heappop(self._events)
            self.clock.seconds = at
            event()
        self.clock.seconds = until

    def usable_gbps(self, gateway: int = 0) -> float:
        """What a gateway believes."""
        state = self.boards[gateway].state(LINK.name)
        return to_gbps(usable_bandwidth(state, self.clock.seconds))

    def _at(self, when: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, event))

    def _come(self) -> None:
        now, chance = self.clock.seconds, self._random
        offered = self.load * from_gbps(5)
        self._at(now + chance.expovariate(offered / PROMPT_BYTES), self._come)
        board = self.boards[self._number % self.gateways]
        usable = from_gbps(self.usable_gbps(self.boards.index(board)))
        length = chance.lognormvariate(0, 0.5)
        size = Bytes(round(PROMPT_BYTES * length))
        free = board.view(LINK.name).free
        if chance.random() > 0.9 * usable / offered or free is None or size > free:
            return
        who = self._busy.index(min(self._busy))
        begins = max(now, self._busy[who])
        self._busy[who] = ends = begins + PROMPT_SECONDS * length
        booking = board.book(LINK.name, size, begins_in=begins - now, timed=True)
        handoff = _Handoff(board, booking, size)
        if self.overlap:
            self._at(begins, lambda: self._open(handoff))
        self._at(ends, lambda: self._prefilled(handoff))

    def _open(self, handoff: _Handoff) -> None:
        self._link.open(self.clock.seconds, handoff.size, handoff)
        self._arm()

    def _prefilled(self, handoff: _Handoff) -> None:
        handoff.prefilled = True
        handoff.booking.depart()
        if not self.overlap:
            self._open(handoff)
        elif handoff.crossed:
            self._decode(handoff)
        home = handoff.board.hand_over_at_home("east", timed=True)
        home.depart()
        self._at(self.clock.seconds + self._first_token(), home.arrive)

    def _first_token(self) -> float:
        hiccup = 0.5 if self.hiccups and self._random.random() < self.hiccups / 100 else 0.0
        return hiccup + self.answer * self._random.random()

    def _arm(self) -> None:
        self._wakes += 1
        wake, when = self._wakes, self._link.next_completion()
        if when is not None:
            self._at(max(when, self.clock.seconds), lambda: self._cross(wake))

    def _cross(self, wake: int) -> None:
        if wake == self._wakes:
            for handoff in self._link.take_done(self.clock.seconds):
                handoff.crossed = True
                if handoff.prefilled:
                    self._decode(handoff)
            self._arm()

    def _decode(self, handoff: _Handoff) -> None:
        def answer() -> None:
            handoff.booking.arrive()
            handoff.booking.release()

        self._at(self.clock.seconds + self._first_token(), answer)

    def _look(self) -> None:
        for number, board in enumerate(self.boards):
            board.look()
            self.inferred.setdefault(number, []).append(self.usable_gbps(number))
        self._at(self.clock.seconds + 1.0, self._look)

    def _tell(self) -> None:
        told = {str(number): board.crossings.tell() for number, board in enumerate(self.boards)}
        for number, board in enumerate(self.boards):
            board.crossings.hear({name: each for name, each in told.items() if name != str(number)})
        self._at(self.clock.seconds + 0.25, self._tell)
