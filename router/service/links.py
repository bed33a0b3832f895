"""The links as they are now, and the bytes booked on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from router.control.links import (
    BandwidthMode,
    BandwidthSource,
    LinkHealth,
    LinkState,
    RegimeBounds,
    Telemetry,
    bandwidth_source,
    book,
    observe,
    release,
    report,
    usable_bandwidth,
    view_link,
    whole_budget,
)
from router.domain.decision import LinkView
from router.domain.errors import NotFound
from router.domain.topology import Link
from router.domain.units import NO_BYTES, Bytes, BytesPerSecond, Seconds, to_gbps
from router.ports import Clock
from router.service.crossings import Crossing, CrossingBook, HomeHandoff
from router.service.orders import LinkOrder
from router.service.reservations import Reserved

_LOG = logging.getLogger(__name__)

_LOOK_SECONDS: Final[Seconds] = 1.0
"""Congestion shows within about a second."""


class LinkBoard:
    """Every link's state by name. Single-threaded: owned by one event loop.

    `budget` is how many seconds of a link's usable bandwidth may be booked at once. With `infers`
    links without telemetry are judged by the hand-offs that cross them, which with `overlap` travel
    while they are computed; `transfers` says how many seconds a cluster's engines ever spent on
    receiving KV, None where they do not tell.
    """

    def __init__(
        self,
        links: Iterable[Link],
        *,
        clock: Clock,
        bounds: RegimeBounds,
        budget: Seconds,
        mode: BandwidthMode = BandwidthMode.AUTO,
        infers: bool = True,
        overlap: bool = False,
        transfers: Callable[[str], Seconds | None] = lambda _: None,
    ) -> None:
        self._infers = infers
        self._transfers = transfers
        self.crossings = CrossingBook(clock, overlap=overlap)
        self._sources: dict[str, BandwidthSource] = {}
        self._states = {link.name: LinkState(link, mode=mode) for link in links}
        self._clock = clock
        self._bounds = bounds
        self._budget = budget
        self._configured_mode = mode
        self._reported: dict[str, Telemetry] = {}
        self._views: dict[str, tuple[LinkState, LinkView]] = {}
        self._watchers: list[Callable[[], None]] = []
        self._follow_crossings()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` when a link may carry more: bytes came back, or telemetry came."""
        self._watchers.append(watcher)

    def _freed(self) -> None:
        for watcher in self._watchers:
            watcher()

    @property
    def states(self) -> Iterable[LinkState]:
        """The links' states, in configured order."""
        return self._states.values()

    def state(self, name: str) -> LinkState:
        """Return one link's state; raises NotFound."""
        try:
            return self._states[name]
        except KeyError:
            raise NotFound(f"no link {name!r}") from None

    def between(self, source: str, target: str) -> LinkView | None:
        """Return the link that carries KV from one cluster to another, as the rule may see it."""
        for state in self._states.values():
            if state.link.source == source and state.link.target == target:
                return self.view(state.link.name)
        return None

    def view(self, name: str) -> LinkView:
        """Return what the rule may see of a link, its regime brought up to now."""
        view = self._views.get(name)
        if view is not None and view[0] is self._states.get(name):
            return view[1]
        now = self._clock.monotonic()
        state = self._change(name, lambda state: observe(state, now, self._bounds))
        seen = view_link(state, now, self._budget)
        if state.telemetry is None:  # then nothing of it changes with time
            self._views[name] = (state, seen)
        return seen

    def limit(self, name: str) -> Bytes:
        """Return how many bytes all gateways may book of a link now; none of one that is gone."""
        state = self._states.get(name)
        if state is None:
            return NO_BYTES
        return whole_budget(state, self._clock.monotonic(), self._budget)

    @property
    def reported(self) -> Mapping[str, Telemetry]:
        """The latest telemetry that was reported here, and not to another gateway, by link."""
        return self._reported

    def report(self, name: str, telemetry: Telemetry) -> LinkState:
        """Take one telemetry report; an older one than the last is ignored. Raises NotFound."""
        state = self._learn(name, telemetry)
        if state.telemetry is telemetry:
            self._reported[name] = telemetry
        return state

    def hear_of_peers(
        self, booked: Mapping[str, Bytes], telemetry: Iterable[tuple[str, Telemetry]]
    ) -> None:
        """Count what other gateways have booked, and believe what was reported to them."""
        self.hear_of_bookings({name: booked.get(name, NO_BYTES) for name in self._states})
        for name, told_of in telemetry:
            if name in self._states:
                self._learn(name, told_of)

    def hear_of_bookings(self, booked: Mapping[str, Bytes]) -> None:
        """Count what other gateways have booked of some links."""
        for name, told in booked.items():
            state = self._states.get(name)
            if state is not None and told != state.peers_booked:
                self._states[name] = replace(state, peers_booked=told)

    def _learn(self, name: str, telemetry: Telemetry) -> LinkState:
        last = self.state(name).telemetry
        if last is not None and telemetry.observed_at < last.observed_at:
            return self.state(name)
        now = self._clock.monotonic()
        after = self._change(name, lambda state: report(state, telemetry, now, self._bounds))
        self._freed()
        return after

    def set_health(self, name: str, health: LinkHealth) -> LinkState:
        """Take a link up or down, or believe the telemetry again."""
        return self._change(name, lambda state: replace(state, health=health))

    def set_capacity(self, name: str, capacity: BytesPerSecond | None) -> LinkState:
        """Set the nominal capacity; None returns to the configured one."""
        return self._change(name, lambda state: replace(state, capacity=capacity))

    def set_mode(self, mode: BandwidthMode | None, name: str | None = None) -> None:
        """Fix the regime or let it follow the utilisation, on one link or all.

        None returns to the configured mode.
        """
        chosen = self._configured_mode if mode is None else mode
        for each in [name] if name is not None else list(self._states):
            self._change(each, lambda state: replace(state, mode=chosen))

    def follow(self, orders: Mapping[str, LinkOrder]) -> None:
        """Let links be as ordered, and as configured where nothing is."""
        for name in self._states:
            order = orders.get(name, LinkOrder())
            self.set_health(name, order.health or LinkHealth.AUTO)
            self.set_capacity(name, order.capacity)
            self.set_mode(order.mode, name)

    def book(
        self,
        name: str,
        size: Bytes,
        *,
        begins_in: Seconds = 0.0,
        timed: bool | None = None,
        reserved: Reserved | None = None,
    ) -> LinkBooking:
        """Reserve `size` bytes until the booking is released, and what was `reserved` with it.

        A link that was removed since it was chosen carries what is under way, and is not counted.
        With `timed` it is a hand-off's, whose prefill should begin in `begins_in` seconds: true
        where the first byte of its answer tells that it has arrived.
        """
        if name in self._states:
            self._change(name, lambda state: book(state, size))
        crossing = None
        if timed is not None:
            crossing = self.crossings.book(name, size, begins_in, timed=timed)
        return LinkBooking(self, name, size, crossing, reserved)

    def hand_over_at_home(self, cluster: str, *, timed: bool) -> HomeHandoff:
        """Watch a hand-off that crosses no link: it tells how long decode instances need."""
        return HomeHandoff(self.crossings, self._clock, cluster, timed=timed)

    async def run(self) -> None:
        """Look every second until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    def look(self) -> None:
        """Infer what links carry, and log whose word on it is in force where that has changed."""
        now = self._clock.monotonic()
        for name, state in self._states.items():
            inferred = None
            if self._infers:
                told = self._transfers(state.link.target)
                inferred = self.crossings.infer(name, state.nominal, told)
            if inferred != state.inferred:
                self._states[name] = replace(state, inferred=inferred)
                self._freed()
            self._tell_source(self._states[name], now)

    def _tell_source(self, state: LinkState, now: Seconds) -> None:
        source, before = bandwidth_source(state, now), self._sources.get(state.link.name)
        self._sources[state.link.name] = source
        if source is not before and (before, source) != (None, BandwidthSource.CONFIG):
            _LOG.info(
                "link %s: usable bandwidth is %.4g of %.4g Gbit/s by %s (was by %s)",
                state.link.name,
                to_gbps(usable_bandwidth(state, now)),
                to_gbps(state.nominal),
                source,
                before or BandwidthSource.CONFIG,
            )

    def _follow_crossings(self) -> None:
        self.crossings.follow({name: state.link for name, state in self._states.items()})

    def release(self, name: str, size: Bytes) -> None:
        """Give back bytes; bookings call this, once each."""
        if name in self._states:
            self._change(name, lambda state: release(state, size))
            self._freed()

    def reconfigure(
        self,
        links: Iterable[Link],
        *,
        bounds: RegimeBounds,
        budget: Seconds,
        mode: BandwidthMode,
        infers: bool = True,
        overlap: bool = False,
    ) -> None:
        """Let the links be as a new configuration says, all at once.

        One that stays between its clusters keeps its telemetry, its bookings and what was ordered.
        """
        states: dict[str, LinkState] = {}
        for link in links:
            old = self._states.get(link.name)
            if old is None or (old.link.source, old.link.target) != (link.source, link.target):
                states[link.name] = LinkState(link, mode=mode)
                self.crossings.forget(link.name)
            else:
                states[link.name] = replace(old, link=link)
        self._states = states
        self._views.clear()
        self._bounds, self._budget, self._configured_mode = bounds, budget, mode
        self._infers, self.crossings.overlap = infers, overlap
        self._follow_crossings()

    def _change(self, name: str, change: Callable[[LinkState], LinkState]) -> LinkState:
        state = self._states[name] = change(self.state(name))
        return state


class LinkBooking:
    """Bytes booked on one link, until released; and their crossing, where it is followed."""

    def __init__(
        self,
        board: LinkBoard,
        link: str,
        size: Bytes,
        crossing: Crossing | None = None,
        reserved: Reserved | None = None,
    ) -> None:
        self._board = board
        self._link = link
        self._size = size
        self._crossing = crossing
        self._reserved = reserved
        self._held = True

    def depart(self) -> None:
        """The prefill has answered with a hand-off."""
        if self._crossing is not None:
            self._crossing.depart()

    def arrive(self) -> None:
        """The first byte of the answer is here."""
        if self._crossing is not None:
            self._crossing.arrive()

    def release(self) -> None:
        """Give the bytes back. Idempotent."""
        if self._held:
            self._held = False
            if self._crossing is not None:
                self._crossing.drop()
            if self._reserved is not None:
                self._reserved.release()
            self._board.release(self._link, self._size)
