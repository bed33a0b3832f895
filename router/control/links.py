"""A link as a reserved resource: what it can carry, what is booked on it, and its regime.

A hand-off's bytes are booked at dispatch and released at completion or abort (DESIGN 8), so the
free budget is right before any telemetry could tell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from router.domain.decision import LinkView, Regime
from router.domain.topology import Link
from router.domain.units import NO_BYTES, Bytes, BytesPerSecond, Seconds


class LinkHealth(StrEnum):
    """What the operator says of a link; `auto` believes the telemetry."""

    UP = "up"
    DOWN = "down"
    AUTO = "auto"


class BandwidthMode(StrEnum):
    """The operator's word on the regime; `auto` follows the utilisation."""

    AUTO = "auto"
    SCARCE = "scarce"
    ABUNDANT = "abundant"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """One report on a link's egress. `observed_at` is a reading of the monotonic clock."""

    egress: BytesPerSecond
    observed_at: Seconds
    available: BytesPerSecond | None = None
    loss_ratio: float = 0.0
    retransmit_ratio: float = 0.0
    rtt: Seconds | None = None


class BandwidthSource(StrEnum):
    """Whose word on a link's usable bandwidth is in force."""

    OPERATOR = "operator"
    TELEMETRY = "telemetry"
    INFERRED = "inferred"
    CONFIG = "config"


@dataclass(frozen=True, slots=True)
class Inferred:
    """What hand-offs that waited say of a link (`control.bandwidth`), and when they last did."""

    rate: BytesPerSecond
    measured_at: Seconds


@dataclass(frozen=True, slots=True)
class RegimeBounds:
    """Utilisations at which the regime turns: scarce over the first, abundant under the second.

    The gap between them is the hysteresis that keeps the regime from flapping.
    """

    scarce_above: float = 0.8
    abundant_below: float = 0.6


@dataclass(frozen=True, slots=True)
class LinkState:
    """Everything known of one link. `regime` is the last one that the utilisation chose.

    `peers_booked` is what other gateways told that they have booked.
    """

    link: Link
    health: LinkHealth = LinkHealth.AUTO
    mode: BandwidthMode = BandwidthMode.AUTO
    capacity: BytesPerSecond | None = None
    telemetry: Telemetry | None = None
    booked: Bytes = NO_BYTES
    regime: Regime = Regime.SCARCE
    peers_booked: Bytes = NO_BYTES
    inferred: Inferred | None = None

    @property
    def nominal(self) -> BytesPerSecond:
        """The operator's capacity, else the configured one."""
        return self.link.capacity if self.capacity is None else self.capacity


def fresh_telemetry(state: LinkState, now: Seconds) -> Telemetry | None:
    """Return the latest report if it is not too old to act on."""
    report = state.telemetry
    if report is None or now - report.observed_at > state.link.telemetry_max_age:
        return None
    return report


def bandwidth_source(state: LinkState, now: Seconds) -> BandwidthSource:
    """Return whose word is in force: the operator's, fresh telemetry's, the hand-offs', the file's.

    What telemetry says is available may be less than an operator's word, never more.
    """
    report = fresh_telemetry(state, now)
    if report is not None and report.available is not None:
        ordered = state.capacity is not None and state.capacity <= report.available
        return BandwidthSource.OPERATOR if ordered else BandwidthSource.TELEMETRY
    if state.capacity is not None:
        return BandwidthSource.OPERATOR
    if state.inferred is not None and state.inferred.rate < state.nominal:
        return BandwidthSource.INFERRED
    return BandwidthSource.CONFIG


def usable_bandwidth(state: LinkState, now: Seconds) -> BytesPerSecond:
    """Return what the link can carry now, less what is lost on the way (see `bandwidth_source`).

    Lost and retransmitted bytes cross twice, so either ratio lowers what is left for KV. What was
    inferred has lost them already.
    """
    report = fresh_telemetry(state, now)
    rate = state.nominal
    if report is not None and report.available is not None:
        rate = min(rate, report.available)
    elif state.inferred is not None and state.capacity is None:
        rate = min(rate, state.inferred.rate)
        if rate < state.nominal:
            return rate
    if report is None:
        return rate
    return BytesPerSecond(rate * max(0.0, 1.0 - max(report.loss_ratio, report.retransmit_ratio)))


def utilization(state: LinkState, now: Seconds) -> float | None:
    """Return measured egress over usable bandwidth.

    None without a fresh measurement, and where nothing is usable: such a link is down.
    """
    report = fresh_telemetry(state, now)
    if report is None:
        return None
    usable = usable_bandwidth(state, now)
    return report.egress / usable if usable > 0 else None


def is_up(state: LinkState, now: Seconds) -> bool:
    """Whether KV may be sent: as the operator says, else unless telemetry reports no bandwidth."""
    match state.health:
        case LinkHealth.UP:
            return True
        case LinkHealth.DOWN:
            return False
        case LinkHealth.AUTO:
            return usable_bandwidth(state, now) > 0


def step_regime(
    regime: Regime, mode: BandwidthMode, used: float | None, bounds: RegimeBounds
) -> Regime:
    """Return the next regime. Without a measurement a link is scarce: nobody vouches for more."""
    match mode:
        case BandwidthMode.SCARCE:
            return Regime.SCARCE
        case BandwidthMode.ABUNDANT:
            return Regime.ABUNDANT
        case BandwidthMode.AUTO:
            if used is None or used > bounds.scarce_above:
                return Regime.SCARCE
            return Regime.ABUNDANT if used < bounds.abundant_below else regime


def whole_budget(state: LinkState, now: Seconds, budget: Seconds) -> Bytes:
    """Return how many bytes all gateways together may book so that they cross within `budget`."""
    return Bytes(int(usable_bandwidth(state, now) * budget))


def free_budget(state: LinkState, now: Seconds, budget: Seconds) -> Bytes:
    """Return how many more bytes may be booked so that all booked ones cross within `budget`."""
    return _budget_left(state, usable_bandwidth(state, now), budget)


def _budget_left(state: LinkState, usable: BytesPerSecond, budget: Seconds) -> Bytes:
    return Bytes(max(0, int(usable * budget) - all_booked(state)))


def all_booked(state: LinkState) -> Bytes:
    """Return what all gateways together have booked, as far as this one knows."""
    return Bytes(state.booked + state.peers_booked)


def observe(state: LinkState, now: Seconds, bounds: RegimeBounds) -> LinkState:
    """Return the state with the regime that today's utilisation asks for."""
    regime = step_regime(state.regime, state.mode, utilization(state, now), bounds)
    return state if regime is state.regime else replace(state, regime=regime)


def report(state: LinkState, telemetry: Telemetry, now: Seconds, bounds: RegimeBounds) -> LinkState:
    """Return the state that has been told its latest telemetry, in the regime that it asks for."""
    return observe(_with(state, telemetry=telemetry), now, bounds)


def book(state: LinkState, size: Bytes) -> LinkState:
    """Reserve `size` bytes."""
    return _with(state, booked=state.booked + size)


def release(state: LinkState, size: Bytes) -> LinkState:
    """Give back `size` bytes booked before; never below 0."""
    return _with(state, booked=max(0, state.booked - size))


def _with(
    state: LinkState, *, booked: int | None = None, telemetry: Telemetry | None = None
) -> LinkState:
    """Return the state with one thing changed: `replace` would cost four times as much."""
    return LinkState(
        state.link,
        state.health,
        state.mode,
        state.capacity,
        state.telemetry if telemetry is None else telemetry,
        state.booked if booked is None else Bytes(booked),
        state.regime,
        state.peers_booked,
        state.inferred,
    )


def view_link(state: LinkState, now: Seconds, budget: Seconds) -> LinkView:
    """Return what the rule may see of the link."""
    report, usable = state.telemetry, usable_bandwidth(state, now)
    return LinkView(
        name=state.link.name,
        up=is_up(state, now),
        regime=state.regime,
        utilization=utilization(state, now),
        free=_budget_left(state, usable, budget),
        telemetry_required=state.link.telemetry_required,
        telemetry_age=None if report is None else now - report.observed_at,
        telemetry_max_age=state.link.telemetry_max_age,
        capacity=state.nominal,
        booked=all_booked(state),
        rate=usable,
    )
