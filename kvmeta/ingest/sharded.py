"""One shard of the ingest: the shell round `kvmeta.ingest.shards`, over leases in a store."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Protocol

from kvmeta.backends.forwarding import ForwardingIndex
from kvmeta.errors import LeaseLost
from kvmeta.events import EventBatch
from kvmeta.index import MetadataIndex
from kvmeta.ingest.shards import (
    Acquire,
    Action,
    Granted,
    Lost,
    Observation,
    Refused,
    Release,
    Renew,
    Renewed,
    ShardState,
    Start,
    Stop,
    Tick,
    step,
)
from kvmeta.ingest.subscriber import SourceSpec
from kvmeta.leases import LeaseStore, LeaseStoreAway
from kvmeta.types import CacheLayout, SourceId, SourceState

LEASE_SECONDS = 10.0
"""Life of a lease: what a dead shard's sources are without news, at most, beside a renewal."""

RENEWALS = 4
"""Renewals in the life of a lease: two may fail and it is still held."""

_LOG = logging.getLogger(__name__)


class SourceFeed(Protocol):
    """What takes sources to follow: a whole ingest, or a shard that takes its share of them."""

    async def add(self, spec: SourceSpec) -> None:
        """Follow a publisher; replaces an earlier one of the same source."""
        ...

    async def remove(self, instance: str) -> None:
        """Stop following an instance and forget all that it held."""
        ...


class Following(SourceFeed, Protocol):
    """A feed that can also stop one source (`kvmeta.ingest.service.KvIngest`)."""

    async def pause(self, source: SourceId) -> None:
        """Stop following and leave the index alone."""
        ...


class LeasedIndex(ForwardingIndex):
    """`kvmeta.index.MetadataIndex` that refuses what is written for a source without its lease.

    The last guard: a shard that stalled past the end of its lease must not write after the next
    owner has begun. `may_write` is asked before every write.
    """

    def __init__(self, index: MetadataIndex, may_write: Callable[[SourceId], bool]) -> None:
        super().__init__(index)
        self._may_write = may_write

    def _guard(self, source: SourceId) -> None:
        if not self._may_write(source):
            raise LeaseLost(f"the lease of source {source} is over")

    async def register(
        self, source: SourceId, layout: CacheLayout, *, max_age_seconds: float | None = None
    ) -> None:
        """Pass on under the lease."""
        self._guard(source)
        await self._index.register(source, layout, max_age_seconds=max_age_seconds)

    async def begin_epoch(self, source: SourceId, state: SourceState) -> None:
        """Pass on under the lease."""
        self._guard(source)
        await self._index.begin_epoch(source, state)

    async def apply(self, source: SourceId, sequence: int, batch: EventBatch) -> bool:
        """Pass on under the lease."""
        self._guard(source)
        return await self._index.apply(source, sequence, batch)

    async def set_state(self, source: SourceId, state: SourceState) -> None:
        """Pass on under the lease."""
        self._guard(source)
        await self._index.set_state(source, state)

    async def touch(self, source: SourceId) -> None:
        """Pass on under the lease."""
        self._guard(source)
        await self._index.touch(source)


class Shard:
    """What this process holds; `clock` is monotonic, in seconds."""

    def __init__(self, name: str, *, clock: Callable[[], float], ttl_seconds: float) -> None:
        self._clock = clock
        self.state = ShardState(name, ttl_seconds)

    def may_write(self, source: SourceId) -> bool:
        """Whether the lease of `source` is held now."""
        return self.state.holds(source, self._clock())

    def now(self) -> float:
        """The clock."""
        return self._clock()

    def pause(self) -> float:
        """Seconds until the next tick: in time to renew, and never past the end of a lease."""
        ends = (grant.until - self._clock() for grant in self.state.held.values())
        return max(0.0, min(self.state.ttl_seconds / RENEWALS, *ends, math.inf))

    def step(self, observation: Observation) -> list[Action]:
        """Take one step of the machine; return what is to be done."""
        self.state, actions = step(self.state, observation)
        return actions


class ShardedIngest:
    """Follows this shard's share of the sources added. `run` until cancelled.

    `following` has to write through a `LeasedIndex` over `shard.may_write`. Leaving `run` gives
    everything back, so that another shard takes over at once.
    """

    def __init__(self, following: Following, leases: LeaseStore, shard: Shard) -> None:
        self._following = following
        self._leases = leases
        self._shard = shard
        self._specs: dict[SourceId, SourceSpec] = {}
        self._running: set[SourceId] = set()
        self._away = False
        self._changed = asyncio.Event()

    async def add(self, spec: SourceSpec) -> None:
        """Let some shard follow a publisher; a changed one is followed anew by who has it."""
        self._specs[spec.source] = spec
        self._changed.set()
        if spec.source in self._running:
            await self._following.add(spec)

    async def remove(self, instance: str) -> None:
        """Let nobody follow `instance` any more; who has it makes the index forget it."""
        mine = [source for source in self._running if source.instance == instance]
        for source in [source for source in self._specs if source.instance == instance]:
            del self._specs[source]
        if mine:
            await self._following.remove(instance)
            self._running.difference_update(mine)
        self._changed.set()

    async def run(self) -> None:
        """Hold, renew and hand over leases until cancelled."""
        try:
            while True:
                self._changed.clear()
                await self._tick()
                try:
                    async with asyncio.timeout(self._shard.pause()):
                        await self._changed.wait()
                except TimeoutError:
                    continue
        finally:
            await self._give_up()

    async def _tick(self) -> None:
        state = self._shard.state
        members: frozenset[str] | None = None
        try:
            members = await self._leases.announce(state.shard, state.ttl_seconds)
        except LeaseStoreAway:
            self._note_away(away=True)
        else:
            self._note_away(away=False)
        tick = Tick(self._shard.now(), frozenset(self._specs), members)
        await self._act(self._shard.step(tick))
        for source in self._shard.state.held.keys() - self._running:
            await self._start(source)  # one that did not start when it was granted

    async def _act(self, actions: list[Action]) -> None:
        """Do as told, at once where it goes to the store; what that shows makes more to do."""
        asked = [action for action in actions if isinstance(action, Acquire | Renew)]
        for action in actions:
            if not isinstance(action, Acquire | Renew):
                await self._do(action)
        shown = await asyncio.gather(*(self._ask(action) for action in asked))
        for observation in shown:
            if observation is not None:
                await self._act(self._shard.step(observation))

    async def _do(self, action: Start | Stop | Release) -> None:
        match action:
            case Start(source):
                await self._start(source)
            case Stop(source):
                if source in self._running:
                    self._running.discard(source)
                    _LOG.info("source %s is ingested here no more", source)
                    await self._following.pause(source)
            case Release(source, token):
                try:
                    await self._leases.release(str(source), self._shard.state.shard, token)
                except LeaseStoreAway:
                    return  # it ends by itself

    async def _start(self, source: SourceId) -> None:
        spec = self._specs.get(source)
        if spec is None:
            return
        try:
            await self._following.add(spec)
        except Exception:  # noqa: BLE001  # the root of a source: the others go on, this one comes again
            _LOG.warning("source %s: cannot be followed now", source)
            return
        self._running.add(source)
        _LOG.info("source %s is ingested here", source)

    async def _ask(self, action: Acquire | Renew) -> Observation | None:
        state, asked_at = self._shard.state, self._shard.now()
        name, owner, ttl = str(action.source), state.shard, state.ttl_seconds
        try:
            match action:
                case Acquire(source):
                    token = await self._leases.acquire(name, owner, ttl)
                    return Refused(source) if token is None else Granted(source, token, asked_at)
                case Renew(source, token):
                    held = await self._leases.renew(name, owner, token, ttl)
                    return Renewed(source, asked_at) if held else Lost(source)
        except LeaseStoreAway:
            self._note_away(away=True)
            return None

    async def _give_up(self) -> None:
        for source in list(self._running):
            self._running.discard(source)
            await self._following.pause(source)
        state = self._shard.state
        held = [Release(source, grant.token) for source, grant in state.held.items()]
        await asyncio.gather(*(self._do(release) for release in held))
        try:
            await self._leases.leave(state.shard)
        except LeaseStoreAway:
            return

    def _note_away(self, *, away: bool) -> None:
        """Log a change, once."""
        if away != self._away:
            self._away = away
            _LOG.warning("the store of leases %s", "does not answer" if away else "is back")
