"""What is asked of a system: one demand a request, in the order of arrival.

A demand is the same whatever serves it, so policies are compared on the very same requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple, assert_never

from router.domain.units import Seconds, Tokens
from router.sim.arrivals import Arrivals, draw_times
from router.sim.caches import PrefixCache
from router.sim.lengths import draw_lengths
from router.sim.replay.traces import BLOCK_TOKENS, TraceRequest
from router.throughput.workloads import Workload


class Demand(NamedTuple):
    """One request. `blocks` name its prefixes, `()` where nothing is shared with anybody.

    `fresh` are the tokens that no earlier prompt had: what an unbounded cache leaves to compute.
    """

    at: Seconds
    total: Tokens
    fresh: Tokens
    output: Tokens
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SingleTraffic:
    """Requests that share nothing, each answered by `output` tokens."""

    arrivals: Arrivals
    lengths: Workload
    output: Tokens


@dataclass(frozen=True, slots=True)
class SessionTraffic:
    """Agents: sessions of several turns, each turn a longer prompt that begins with the last one.

    Sessions come by `arrivals` (its rate counts turns), start with `shared` tokens that all have
    and a first prompt from `first`; each further turn adds the answer and `step` tokens. After a
    turn comes another with probability 1 - 1 / `turns`, in `pause` seconds in the mean after the
    answer could have been read; a prompt that would be over `longest` ends the session. Turns come
    whether or not the last one was answered in time: no policy slows its own traffic down.
    """

    arrivals: Arrivals
    first: Workload
    step: Workload
    turns: float
    pause: Seconds
    output: Tokens
    shared: Tokens = 0
    longest: Tokens = 128_000
    block_tokens: Tokens = BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class TraceTraffic:
    """A trace, played `speed` times as fast; played again and again where more is asked for.

    A seed chooses the request with which it begins. Each round's blocks are its own, so that no
    round finds the last one's in a cache.
    """

    requests: tuple[TraceRequest, ...]
    speed: float = 1.0


Traffic = SingleTraffic | SessionTraffic | TraceTraffic


def draw_demands(traffic: Traffic, seed: int) -> Iterator[Demand]:
    """Yield demands in the order of arrival, without end. Equal seeds give equal demands."""
    match traffic:
        case SingleTraffic(arrivals, lengths, output):
            times = draw_times(arrivals, _stream(seed, "arrivals"))
            totals = draw_lengths(lengths, _stream(seed, "lengths"))
            return (
                Demand(at, total, total, output) for at, total in zip(times, totals, strict=False)
            )
        case SessionTraffic():
            return _draw_sessions(traffic, seed)
        case TraceTraffic(requests, speed):
            return _repeat_trace(_rotate(requests, seed), speed)
        case _:
            assert_never(traffic)


def _stream(seed: int, name: str) -> Random:
    """Return one of a run's independent generators."""
    return Random(f"{seed}/{name}")  # noqa: S311 - chance that is simulated, no secret


class _Turn(NamedTuple):
    """The next turn of a session. `known` are the tokens of the turn before."""

    at: Seconds
    session: int
    total: Tokens
    known: Tokens


def _draw_sessions(traffic: SessionTraffic, seed: int) -> Iterator[Demand]:
    random = _stream(seed, "turns")
    # Sessions come at the turns' rate over their mean number: keep one arrival in `turns`.
    starts = (
        at for at in draw_times(traffic.arrivals, _stream(seed, "arrivals"))
        if random.random() < 1 / traffic.turns
    )  # fmt: skip
    firsts = draw_lengths(traffic.first, _stream(seed, "first"))
    steps = draw_lengths(traffic.step, _stream(seed, "steps"))
    turns: list[_Turn] = []
    for session, start in enumerate(starts, start=1):
        while turns and turns[0].at <= start:
            turn = heappop(turns)
            yield _view_turn(traffic, turn)
            _go_on(traffic, turn, turns, random, next(steps))
        first = _Turn(start, session, traffic.shared + next(firsts), traffic.shared)
        yield _view_turn(traffic, first)
        _go_on(traffic, first, turns, random, next(steps))


def _go_on(
    traffic: SessionTraffic, turn: _Turn, turns: list[_Turn], random: Random, step: Tokens
) -> None:
    total = turn.total + traffic.output + step
    pause = random.expovariate(1 / traffic.pause)
    if random.random() < 1 / traffic.turns or total > traffic.longest:
        return
    heappush(turns, _Turn(turn.at + pause, turn.session, total, turn.total))


def _view_turn(traffic: SessionTraffic, turn: _Turn) -> Demand:
    size = traffic.block_tokens
    shared = traffic.shared // size
    own = turn.session << 20
    blocks = (*range(shared), *range(own + shared, own + turn.total // size))
    fresh = turn.total - turn.known // size * size
    return Demand(turn.at, turn.total, fresh, traffic.output, blocks)


def _rotate(requests: tuple[TraceRequest, ...], seed: int) -> tuple[TraceRequest, ...]:
    """Return the trace from another of its requests on, what was before it at the end."""
    first = _stream(seed, "trace").randrange(len(requests))
    start, end = requests[first].at, requests[-1].at
    later = (replace(each, at=each.at - start) for each in requests[first:])
    earlier = (replace(each, at=each.at + end - start) for each in requests[:first])
    return (*later, *earlier)


def _repeat_trace(requests: tuple[TraceRequest, ...], speed: float) -> Iterator[Demand]:
    base, offset = 0.0, 0
    while True:
        last = 0.0
        for demand in view_trace(requests):
            last = demand.at / speed
            blocks = tuple(block + offset for block in demand.blocks)
            yield demand._replace(at=base + last, blocks=blocks)
        offset += 1 << 40
        base += last


def view_trace(requests: Iterable[TraceRequest]) -> Iterator[Demand]:
    """Yield a trace's requests as demands; what is fresh is told by a cache without bounds."""
    seen = PrefixCache(1 << 60, BLOCK_TOKENS, recurrent=False)
    for each in requests:
        fresh = each.input_tokens - seen.match(each.blocks, each.input_tokens)
        seen.store(each.blocks, each.input_tokens)
        yield Demand(each.at, each.input_tokens, fresh, each.output_tokens, each.blocks)
