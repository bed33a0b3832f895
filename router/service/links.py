"""The links as they are now, and the bytes booked on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from router.control.links import (
    BandwidthMode,
    LinkHealth,
    LinkState,
    RegimeBounds,
    Telemetry,
    book,
    observe,
    release,
    report,
    view_link,
)
from router.domain.decision import LinkView
from router.domain.errors import NotFound
from router.domain.topology import Link
from router.domain.units import NO_BYTES, Bytes, BytesPerSecond, Seconds
from router.ports import Clock
from router.service.orders import LinkOrder


class LinkBoard:
    """Every link's state by name. Single-threaded: owned by one event loop.

    `budget` is how many seconds of a link's usable bandwidth may be booked at once.
    """

    def __init__(
        self,
        links: Iterable[Link],
        *,
        clock: Clock,
        bounds: RegimeBounds,
        budget: Seconds,
        mode: BandwidthMode = BandwidthMode.AUTO,
    ) -> None:
        self._states = {link.name: LinkState(link, mode=mode) for link in links}
        self._clock = clock
        self._bounds = bounds
        self._budget = budget
        self._configured_mode = mode
        self._reported: dict[str, Telemetry] = {}
        self._views: dict[str, tuple[LinkState, LinkView]] = {}
        self._watchers: list[Callable[[], None]] = []

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
        for name, state in self._states.items():
            told = booked.get(name, NO_BYTES)
            if told != state.peers_booked:
                self._states[name] = replace(state, peers_booked=told)
        for name, told_of in telemetry:
            if name in self._states:
                self._learn(name, told_of)

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

    def book(self, name: str, size: Bytes) -> LinkBooking:
        """Reserve `size` bytes until the booking is released.

        A link that was removed since it was chosen carries what is under way, and is not counted.
        """
        if name in self._states:
            self._change(name, lambda state: book(state, size))
        return LinkBooking(self, name, size)

    def release(self, name: str, size: Bytes) -> None:
        """Give back bytes; bookings call this, once each."""
        if name in self._states:
            self._change(name, lambda state: release(state, size))
            self._freed()

    def reconfigure(
        self, links: Iterable[Link], *, bounds: RegimeBounds, budget: Seconds, mode: BandwidthMode
    ) -> None:
        """Let the links be as a new configuration says, all at once.

        One that stays between its clusters keeps its telemetry, its bookings and what was ordered.
        """
        states: dict[str, LinkState] = {}
        for link in links:
            old = self._states.get(link.name)
            if old is None or (old.link.source, old.link.target) != (link.source, link.target):
                states[link.name] = LinkState(link, mode=mode)
            else:
                states[link.name] = replace(old, link=link)
        self._states = states
        self._views.clear()
        self._bounds, self._budget, self._configured_mode = bounds, budget, mode

    def _change(self, name: str, change: Callable[[LinkState], LinkState]) -> LinkState:
        state = self._states[name] = change(self.state(name))
        return state


class LinkBooking:
    """Bytes booked on one link, until released."""

    def __init__(self, board: LinkBoard, link: str, size: Bytes) -> None:
        self._board = board
        self._link = link
        self._size = size
        self._held = True

    def release(self) -> None:
        """Give the bytes back. Idempotent."""
        if self._held:
            self._held = False
            self._board.release(self._link, self._size)
