"""What a link carries, inferred from the hand-offs that had to wait for it. Pure.

Without telemetry a throttled link looks idle: little crosses. What betrays it is that hand-offs
arrive late. `crossings` says what each had of the link; this says what follows.

- **Down at once.** Hand-offs that wait bound what the link carries from above; those that arrived
  while it was always busy measure it. Either counts once it is about `enough` seconds of the link's
  time, and only where waits were felt: what costs nobody a quarter of a second may be anything, and
  one hand-off that waits alone may have met an engine that hesitates. While little is known the
  latest second says more than the last two, which began before the fall.
- **Up by measurement** only while the link is always busy. Otherwise hand-offs that cross quickly
  may have crossed beside their prefills, and prove nothing.
- **Up by disproof.** Hand-offs that had the link for less than half of the time that they would
  have needed double what is inferred. Those that may have crossed beside their prefills are not
  among them.
- **Up by time.** An idle link tells nothing, so what was inferred is held for a while, and then
  grows by some percent a second: both sooner where nobody waits though what crosses would have
  filled half of the time. t follows it down, and real traffic is the probe. Where that meets
  the old limit again, the next try waits twice as long (as TCP backs off), so that a link that
  stays narrow is not flooded in a rhythm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from router.control.crossings import Crossed
from router.domain.units import BytesPerSecond, Seconds


@dataclass(frozen=True, slots=True)
class InferenceRules:
    """When waits say something of a link.

    `window`: how old evidence may be. `enough`: seconds of the link's time that it must be; two
    hand-offs of a 32K prompt of the paper's model at 5 Gbit/s. `first`: the same until a `window`
    after something was first inferred; one of them. `late`: how many hand-offs must have waited,
    unless all waits together are `long`. `felt`: the mean wait below which nothing is inferred.
    `below`: only what is under this part of the nominal bandwidth is worth it. `busy`: the part of
    the time that counts as always. `worth`: changes under this part are left alone. `told`: the
    part of the waits that engines' transfers must explain, where they tell of them; scrapes are
    late. `hold`, `longest_hold`: how long what was inferred holds without evidence. `growth`: by
    how much it grows a second then. `easy`: seconds of the link's time, half a window, that
    hand-offs of which none waited must have needed; then both go `sooner`, by that factor. `least`:
    the part of the nominal bandwidth that is always assumed, so that the link is tried again.
    """

    window: Seconds = 10.0
    enough: Seconds = 2.0
    first: Seconds = 1.0
    late: int = 2
    long: Seconds = 1.0
    felt: Seconds = 0.25
    below: float = 0.8
    busy: float = 0.8
    worth: float = 0.02
    told: float = 0.5
    hold: Seconds = 30.0
    longest_hold: Seconds = 600.0
    growth: float = 0.05
    easy: Seconds = 5.0
    sooner: float = 3.0
    least: float = 0.005


_RULES = InferenceRules()


@dataclass(frozen=True, slots=True)
class Mark:
    """What had crossed at one time, and the seconds of transfers that engines told until then."""

    at: Seconds
    arrived: Crossed
    transfers: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Inference:
    """What is inferred of a link. `rate` None: nothing speaks against the nominal bandwidth.

    It is inferred since `began_at`; `measured_at` is when evidence last bore it out, and whether it
    has `grown` since. `marks` are what had crossed at some times.
    """

    at: Seconds
    rate: BytesPerSecond | None = None
    measured_at: Seconds = 0.0
    hold: Seconds = _RULES.hold
    marks: tuple[Mark, ...] = ()
    began_at: Seconds = 0.0
    grown: bool = False


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What hand-offs say: `rate` is a measurement where the link was always busy, else a bound."""

    rate: BytesPerSecond
    measured: bool = False


def step_inference(
    state: Inference,
    arrived: Crossed,
    waiting: Crossed,
    now: Seconds,
    nominal: BytesPerSecond,
    transfers: Seconds | None = None,
    rules: InferenceRules = _RULES,
) -> Inference:
    """Return what is inferred `now`.

    `arrived` sums up every hand-off of all gateways that ever arrived, `waiting` those that should
    have by now. `transfers` are the seconds that engines ever spent on them as they tell, None
    where they do not.
    """
    marks = tuple(mark for mark in state.marks if now - mark.at <= rules.window)
    mark = Mark(now, arrived, transfers)
    kept = replace(state, at=now, marks=(*marks, mark))
    evidence = None
    if not _is_others(marks, mark, rules):
        young = state.rate is None or now - state.began_at <= rules.window
        evidence = _weigh(marks, mark, waiting, rules.first if young else rules.enough, rules)
    assumed = nominal if state.rate is None else state.rate
    if evidence is None or not (evidence.measured or evidence.rate <= assumed * (1 + rules.worth)):
        if state.rate is not None and _is_disproved(state.rate, marks, mark, waiting, rules):
            return _raise(kept, BytesPerSecond(2 * state.rate), nominal, rules)
        haste = 1.0
        if state.rate is not None and _is_easy(state.rate, marks, mark, waiting, rules):
            haste = rules.sooner
        return _grow(kept, now - state.at, haste, nominal, rules)
    if evidence.rate >= rules.below * nominal:
        return replace(kept, rate=None, hold=rules.hold)
    return _believe(kept, evidence.rate, nominal, rules)


def _is_others(marks: tuple[Mark, ...], now: Mark, rules: InferenceRules) -> bool:
    """Whether hand-offs waited for something else: engines tell of much less time in transfers."""
    if not marks or now.transfers is None or marks[0].transfers is None:
        return False
    waited = now.arrived.waited - marks[0].arrived.waited
    transferred = now.transfers - marks[0].transfers
    # Below 0 an engine has left, with what it told.
    return waited > 0 and 0 <= transferred < rules.told * waited


def _is_enough(told: Crossed, enough: Seconds, rules: InferenceRules) -> bool:
    """Whether hand-offs say anything: of the link for long enough, and not one slow engine's."""
    if told.link_seconds < enough:
        return False
    return told.late >= rules.late or told.waited >= rules.long


def _weigh(
    marks: tuple[Mark, ...], now: Mark, waiting: Crossed, enough: Seconds, rules: InferenceRules
) -> _Evidence | None:
    """Return what the latest hand-offs say that are `enough`; None where they say nothing."""
    bound: BytesPerSecond | None = None
    for mark in (now, *reversed(marks)):
        since_then = now.arrived - mark.arrived
        both = since_then + waiting
        if bound is None and _is_enough(both, enough, rules) and both.mean_wait >= rules.felt:
            bound = both.rate
        if _is_enough(since_then, enough, rules):
            if since_then.mean_wait < rules.felt:
                break
            rate = since_then.rate if bound is None else min(bound, since_then.rate)
            return _Evidence(rate, since_then.link_seconds >= rules.busy * (now.at - mark.at))
    return None if bound is None else _Evidence(bound)


def _is_disproved(
    rate: BytesPerSecond,
    marks: tuple[Mark, ...],
    now: Mark,
    waiting: Crossed,
    rules: InferenceRules,
) -> bool:
    """Whether the latest hand-offs crossed in less than half of the time that `rate` takes."""
    for mark in reversed(marks):
        told = now.arrived - mark.arrived + waiting
        needed = told.size / rate
        if needed >= rules.enough:
            return told.link_seconds < needed / 2 and told.mean_wait < rules.felt
    return False


def _is_easy(
    rate: BytesPerSecond,
    marks: tuple[Mark, ...],
    now: Mark,
    waiting: Crossed,
    rules: InferenceRules,
) -> bool:
    """Whether nobody waited while what crossed would have filled half of the link's time."""
    for mark in reversed(marks):
        told = now.arrived - mark.arrived + waiting
        if told.late:
            return False
        if told.size + told.beside >= rules.easy * rate:
            return True
    return False


def _believe(
    state: Inference, told: BytesPerSecond, nominal: BytesPerSecond, rules: InferenceRules
) -> Inference:
    """Return the state with what evidence tells now; small changes only bear it out."""
    rate = BytesPerSecond(max(told, rules.least * nominal))
    if state.rate is None:
        return replace(state, rate=rate, measured_at=state.at, began_at=state.at)
    failed = state.grown and rate < state.rate
    hold = min(2 * state.hold, rules.longest_hold) if failed else state.hold
    if abs(rate - state.rate) <= rules.worth * state.rate:
        rate = state.rate
    return replace(state, rate=rate, measured_at=state.at, hold=hold, grown=False)


def _grow(
    state: Inference,
    passed: Seconds,
    haste: float,
    nominal: BytesPerSecond,
    rules: InferenceRules,
) -> Inference:
    """Return the state after time without evidence, which counts by its `haste`."""
    if state.rate is None or (state.at - state.measured_at) * haste <= state.hold:
        return state
    grown = BytesPerSecond(state.rate * (1 + rules.growth) ** (passed * haste))
    return _raise(replace(state, grown=True), grown, nominal, rules)


def _raise(
    state: Inference, rate: BytesPerSecond, nominal: BytesPerSecond, rules: InferenceRules
) -> Inference:
    if rate >= nominal:
        return replace(state, rate=None, hold=rules.hold, grown=False)
    return replace(state, rate=rate)
