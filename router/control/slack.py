"""The queue before the prefill instances: prompts wait in order of slack and are bound late. Pure.

A prompt that is sent to an engine at once waits there in the order of arrival, behind whatever came
before it, and stays there when another instance falls idle. Here it waits at the gateway instead,
and whenever an instance is free, `pick` says which prompt it takes. *When* a prompt is let in
matters more than where: ordering alone is worth most of what this queue gains (docs/evidence.md).

**Order.** The promise of a prompt is a deadline for its first token. In turn come

1. who has waited for `aging`, the oldest first: this bounds the tail;
2. who can still be in time, the earliest deadline first: it serves all if any order does;
3. who cannot, the quickest first: nothing in time is delayed for what is late anyhow, and the least
   work rids the queue of the most of it.

Strict deadline order would put 3 before 2: under load everything is then late by a little (the
domino effect of earliest deadline first). Without `aging` long prompts that are late would starve.

**Lanes.** A prompt prefers one lane: the cluster on its side of t, or, where a good part of it is
cached, the instance that holds it. An instance serves its own lane and its cluster's.

**Stealing.** An instance whose lanes have nothing for it takes from others', in the same order,
what it would not waste itself on: a prompt that it serves in time for less than `stretch` times the
work; one that it serves as quickly as its own lane; one that has aged; one whose lane nobody
serves.

**Protection.** Since others' prompts come after the own lanes', prompts that a starving link cannot
take do not delay the short ones at home, save by what is under way. So at most all but one of a
cluster's instances may be at work on others' prompts, unless it has but one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from router.domain.units import Seconds


@dataclass(frozen=True, slots=True)
class Promise:
    """When a first token is in time: within `factor` times its unloaded time, or within `least`."""

    factor: float = 2.0
    least: Seconds = 2.0

    def within(self, unloaded: Seconds) -> Seconds:
        """Return the latest TTFT that is in time."""
        return max(self.factor * unloaded, self.least)


@dataclass(frozen=True, slots=True)
class SlackRules:
    """How long is too long, what stealing may cost, and what is promised.

    `aging` trades goodput for the tail: at 15 s the P99 of the case study under load is at most 1.3
    times the paper's rule's, for all but a few percent of the goodput of a free tail. `stretch`: an
    instance of the offloading pool is worth about three of the home's (2.7 to 2.9 from 32K to 128K
    in the case study), so stealing between pools passes and recomputing a long prefix does not.
    """

    aging: Seconds = 15.0
    stretch: float = 3.0
    queue_size: int = 1024
    promise: Promise = Promise()


@dataclass(eq=False, frozen=True, slots=True)
class Pending:
    """One prompt in the queue. `work` is its prefill time in its own lane; times are a clock's."""

    number: int
    since: Seconds
    deadline: Seconds
    work: Seconds
    lane: str


@dataclass(frozen=True, slots=True)
class Server:
    """An instance that is free: its own lane and its cluster's. `may_steal`: see Protection."""

    instance: str
    cluster: str
    may_steal: bool = True


Finish = Callable[[Pending], Seconds | None]
"""How long from now an instance would take to have a prompt's KV at its decode instance; None where
it cannot take it now."""


class Guests:
    """Which instances were last given a prompt of another lane (see Protection)."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def __repr__(self) -> str:
        return f"<Guests at {sorted(self._names)}>"

    def may_steal(self, cluster: Sequence[str], is_busy: Callable[[str], bool]) -> bool:
        """Tell whether one more of a cluster's prefill instances may work for other lanes."""
        at_work = sum(name in self._names and is_busy(name) for name in cluster)
        return at_work < max(1, len(cluster) - 1)

    def note(self, server: Server, lane: str) -> bool:
        """Note whose prompt an instance was given; return whether it is another lane's."""
        if lane in (server.instance, server.cluster):
            self._names.discard(server.instance)
            return False
        self._names.add(server.instance)
        return True


class SlackQueue:
    """All that wait for a prefill instance. Single-threaded; time is an argument."""

    def __init__(self, rules: SlackRules) -> None:
        self.rules = rules
        self._lanes: dict[str, dict[Pending, None]] = {}
        self._size = 0

    def __repr__(self) -> str:
        return f"<SlackQueue {self._size}/{self.rules.queue_size} waiting>"

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Pending]:
        """All that wait, by lane, each in the order of joining."""
        for lane in self._lanes.values():
            yield from lane

    @property
    def lanes(self) -> Collection[str]:
        """The lanes in which somebody waits."""
        return self._lanes.keys()

    @property
    def is_full(self) -> bool:
        """Whether nobody else may join."""
        return self._size >= self.rules.queue_size

    def join(self, pending: Pending) -> None:
        """Let a prompt wait, even where the queue is full."""
        self._lanes.setdefault(pending.lane, {})[pending] = None
        self._size += 1

    def leave(self, pending: Pending) -> bool:
        """Free a prompt's place; False where it does not wait any more."""
        lane = self._lanes.get(pending.lane)
        if lane is None or pending not in lane:
            return False
        del lane[pending]
        if not lane:
            del self._lanes[pending.lane]
        self._size -= 1
        return True

    def drain(self, now: Seconds) -> list[Pending]:
        """Take out all, in the order in which instances of their own lanes would take them."""
        waiting = sorted(self, key=lambda each: self._turn(now, each, each.work))
        self._lanes.clear()
        self._size = 0
        return waiting

    def pick(
        self, now: Seconds, server: Server, finish: Finish, closed: Collection[str] = ()
    ) -> Pending | None:
        """Take out, and return, the prompt that a free instance should serve; None for none.

        As `find`.
        """
        best = self.find(now, server, finish, closed)
        if best is not None:
            self.leave(best)
        return best

    def find(
        self, now: Seconds, server: Server, finish: Finish, closed: Collection[str] = ()
    ) -> Pending | None:
        """Return the prompt that an instance should serve if it were free now; None for none.

        `closed` are lanes that nobody serves now. Costs one `finish` for each prompt that waits in
        the lanes looked at.
        """
        best = self._best(now, finish, self._own(server))
        if best is None and server.may_steal:
            best = self._best(now, finish, self._others(server), closed)
        return best

    def _own(self, server: Server) -> Iterator[Pending]:
        for lane in (server.instance, server.cluster):
            yield from self._lanes.get(lane, ())

    def _others(self, server: Server) -> Iterator[Pending]:
        for name, lane in self._lanes.items():
            if name not in (server.instance, server.cluster):
                yield from lane

    def _best(
        self,
        now: Seconds,
        finish: Finish,
        waiting: Iterator[Pending],
        closed: Collection[str] | None = None,
    ) -> Pending | None:
        """Return the first of those `waiting`; given `closed`, of those that may be stolen."""
        best: Pending | None = None
        first: tuple[int, Seconds, int] | None = None
        for each in waiting:
            seconds = finish(each)
            if seconds is None:
                continue
            if closed is not None and not self._is_worth_it(now, each, seconds, closed):
                continue
            turn = self._turn(now, each, seconds)
            if first is None or turn < first:
                best, first = each, turn
        return best

    def _turn(self, now: Seconds, each: Pending, seconds: Seconds) -> tuple[int, Seconds, int]:
        if now - each.since >= self.rules.aging:
            return (1, each.since, each.number)
        if now + seconds <= each.deadline:
            return (2, each.deadline, each.number)
        return (3, seconds, each.number)

    def _is_worth_it(
        self, now: Seconds, each: Pending, seconds: Seconds, closed: Collection[str]
    ) -> bool:
        return (
            seconds <= each.work
            or (now + seconds <= each.deadline and seconds <= self.rules.stretch * each.work)
            or now - each.since >= self.rules.aging
            or each.lane in closed
        )
