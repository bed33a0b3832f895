"""Which process ingests which source: shared out by instance, a lease a source; a pure machine.

Every process (a shard) announces itself and sees who else is alive. All ranks of an instance go to
the shard that scores highest for it among the living (rendezvous hashing: when a shard comes or
goes, only its own share moves). The score says who *should* have a source; the lease alone says who
has. So two shards that disagree for a moment about who is alive never both ingest:

    Tick       expired leases are lost: stop · no longer mine, or no longer there: stop and release
               · mine and held: renew · mine and not held: acquire
    Granted    start; nothing may be written under it after its end
    Refused    the other one still has it: ask again at the next tick
    Renewed    held on
    Lost       another has it, or nobody: stop

A lease is counted from before the call that granted it, and given up `MARGIN` of its life before
its end: the store frees it only after its owner has stopped. While the store is away nothing is
acquired, and what is held runs on to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from xxhash import xxh3_64_intdigest

from kvmeta.types import SourceId

MARGIN = 0.2
"""The part of a lease's life that is not used: of 10 s two, more than an event loop ever stalls."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease as its owner sees it: the fencing token, and until when it may act."""

    token: int
    until: float


@dataclass(frozen=True, slots=True)
class ShardState:
    """What one shard holds. `ttl_seconds` is the life of a lease."""

    shard: str
    ttl_seconds: float
    held: Mapping[SourceId, Grant] = field(default_factory=dict)

    def holds(self, source: SourceId, now: float) -> bool:
        """Whether this shard may write for `source` at `now`."""
        grant = self.held.get(source)
        return grant is not None and now < grant.until


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; `members` are the shards alive, None while the store is away."""

    now: float
    sources: frozenset[SourceId]
    members: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Granted:
    """The store granted a lease that was asked for at `asked_at`."""

    source: SourceId
    token: int
    asked_at: float


@dataclass(frozen=True, slots=True)
class Refused:
    """Another shard still has the lease."""

    source: SourceId


@dataclass(frozen=True, slots=True)
class Renewed:
    """The store extended a lease; it was asked to at `asked_at`."""

    source: SourceId
    asked_at: float


@dataclass(frozen=True, slots=True)
class Lost:
    """The store knows the grant no more."""

    source: SourceId


Observation = Tick | Granted | Refused | Renewed | Lost


@dataclass(frozen=True, slots=True)
class Acquire:
    """Ask the store for a lease."""

    source: SourceId


@dataclass(frozen=True, slots=True)
class Renew:
    """Ask the store to extend a lease."""

    source: SourceId
    token: int


@dataclass(frozen=True, slots=True)
class Release:
    """Give a lease back, once the source is stopped."""

    source: SourceId
    token: int


@dataclass(frozen=True, slots=True)
class Start:
    """Ingest a source."""

    source: SourceId


@dataclass(frozen=True, slots=True)
class Stop:
    """Ingest a source no more, and leave what the index holds of it to the next owner."""

    source: SourceId


Action = Acquire | Renew | Release | Start | Stop
Step = tuple[ShardState, list[Action]]


def choose_shard(instance: str, members: Iterable[str]) -> str | None:
    """Return the shard that should ingest `instance`; the same one wherever it is asked."""

    def score(member: str) -> tuple[int, str]:
        return xxh3_64_intdigest(f"{member}\x00{instance}".encode()), member

    return max(members, key=score, default=None)


def step(state: ShardState, observation: Observation) -> Step:
    """Return the state after `observation` and what to do, in order. Never raises."""
    match observation:
        case Tick():
            return _tick(state, observation)
        case Granted(source, token, asked_at):
            known = source in state.held
            grant = Grant(token, _end(state, asked_at))
            return _hold(state, source, grant), [] if known else [Start(source)]
        case Renewed(source, asked_at):
            held = state.held.get(source)
            if held is None:
                return state, []
            return _hold(state, source, Grant(held.token, _end(state, asked_at))), []
        case Lost(source):
            return _drop(state, [source]), [Stop(source)] if source in state.held else []
        case Refused():
            return state, []


def _tick(state: ShardState, tick: Tick) -> Step:
    expired = [source for source, grant in state.held.items() if tick.now >= grant.until]
    actions: list[Action] = [Stop(source) for source in expired]
    state = _drop(state, expired)
    gone = [source for source in state.held if source not in tick.sources]
    if tick.members is None:
        moved: list[SourceId] = []
        wanted: list[SourceId] = []
    else:
        mine = _choose_mine(state.shard, tick.sources, tick.members)
        moved = [source for source in state.held if source not in mine and source not in gone]
        wanted = sorted(mine - state.held.keys())
    for source in (*gone, *moved):
        actions += [Stop(source), Release(source, state.held[source].token)]
    state = _drop(state, [*gone, *moved])
    actions += [Renew(source, grant.token) for source, grant in state.held.items()]
    actions += [Acquire(source) for source in wanted]
    return state, actions


def _choose_mine(
    shard: str, sources: frozenset[SourceId], members: frozenset[str]
) -> frozenset[SourceId]:
    instances = {source.instance for source in sources}
    mine = {name for name in instances if choose_shard(name, members) == shard}
    return frozenset(source for source in sources if source.instance in mine)


def _end(state: ShardState, asked_at: float) -> float:
    return asked_at + state.ttl_seconds * (1 - MARGIN)


def _hold(state: ShardState, source: SourceId, grant: Grant) -> ShardState:
    return replace(state, held={**state.held, source: grant})


def _drop(state: ShardState, sources: Iterable[SourceId]) -> ShardState:
    dropped = frozenset(sources)
    if not dropped:
        return state
    kept = {source: grant for source, grant in state.held.items() if source not in dropped}
    return replace(state, held=kept)
