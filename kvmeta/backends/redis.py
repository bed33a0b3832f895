"""The index on Redis: standalone, behind Sentinel, or a Cluster (`docs/kvmeta-schema.md`).

Gateways read, ingest processes write; both open the same index. A look-up that the store does not
answer within its budget is answered `unknown`, and after several such in a row the store is left
alone for a while.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from kvmeta.backends.breakers import BreakerRules, BreakerState, LookUpBreaker
from kvmeta.backends.keys import DEFAULT_NAMESPACE, Keys, parse_field
from kvmeta.backends.records import Seen, SourceRecord
from kvmeta.backends.redis_reader import RedisReader, is_stale, read_seen
from kvmeta.backends.redis_store import RedisStore, open_store
from kvmeta.backends.redis_sweeper import RedisSweeper
from kvmeta.backends.redis_urls import parse_store_url
from kvmeta.backends.redis_writer import Caps, RedisWriter
from kvmeta.errors import StoreError
from kvmeta.events import EventBatch
from kvmeta.types import (
    CacheBelief,
    CacheLayout,
    PromptBlocks,
    SourceId,
    SourceReport,
    SourceState,
)

BUDGET_SECONDS = 0.02
"""Of a look-up: ten times what a healthy Redis takes for the longest prompts."""

MAX_BLOCKS_PER_SOURCE = 2_000_000
"""Twice what the GPUs of an instance hold at 64 tokens a block and 17 KB a token."""

MAX_BLOCKS_TOTAL = 16_000_000
"""About 1.6 GB of Redis (`docs/kvmeta-schema.md`)."""

MAX_WAITING = 16_384
"""Labels a source may have waiting, as in memory."""

WRITER_MAX_AGE_SECONDS = 30.0
"""After this long without a sign from a source's writer readers take it for unknown: six signs."""

UPKEEP_SECONDS = 5.0
"""Between two signs of life; also how soon a lost image is repaired."""

ABANDONED_SECONDS = 3_600.0
"""A source whose writer is gone for this long is removed by any other writer."""

_UPKEEP_TIMEOUT_SECONDS = 5.0
_BEAT_SECONDS = 1.0
_SCRUB_SECONDS = 600.0

_LOG = logging.getLogger(__name__)


class RedisIndex:
    """`kvmeta.index.MetadataIndex` on Redis.

    `clock` is the wall clock in seconds, which readers and writers compare: hosts must agree within
    a few seconds. `run` must run where sources are registered, and should where only look-ups are
    made: it keeps a connection open, so that none spends its budget on connecting.
    """

    def __init__(
        self,
        store: RedisStore,
        *,
        keys: Keys | None = None,
        clock: Callable[[], float] = time.time,
        budget_seconds: float = BUDGET_SECONDS,
        breaker: BreakerRules | None = None,
        max_blocks_per_source: int = MAX_BLOCKS_PER_SOURCE,
        max_blocks_total: int = MAX_BLOCKS_TOTAL,
        max_waiting: int = MAX_WAITING,
        writer_max_age_seconds: float = WRITER_MAX_AGE_SECONDS,
        upkeep_seconds: float = UPKEEP_SECONDS,
        new_token: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._store = store
        self._keys = keys if keys is not None else Keys()
        self._clock = clock
        self._budget_seconds = budget_seconds
        self._breaker = LookUpBreaker(breaker if breaker is not None else BreakerRules())
        self._writer_max_age_seconds = writer_max_age_seconds
        self._upkeep_seconds = upkeep_seconds
        self._reader = RedisReader(
            store, self._keys, clock=clock, writer_max_age_seconds=writer_max_age_seconds
        )
        self._sweeper = RedisSweeper(store, self._keys)
        self._writer = RedisWriter(
            store,
            self._keys,
            self._sweeper,
            clock=clock,
            token=new_token(),
            new_mark=lambda: new_token().encode(),
            caps=Caps(max_blocks_per_source, max_blocks_total, max_waiting),
        )
        self._mark: str | None = None
        self._scrubbed_at: float | None = None

    def __repr__(self) -> str:
        return f"<RedisIndex {self._keys.namespace} breaker {self._breaker.state}>"

    async def close(self) -> None:
        """Close every connection; what was written stays for whoever comes next."""
        await self._store.close()

    # -- readers -----------------------------------------------------------------------------

    async def look_up(
        self, prompt: PromptBlocks, sources: Sequence[SourceId]
    ) -> Mapping[SourceId, CacheBelief]:
        """Return the longest reusable prefix of `prompt` at each of `sources`, within the budget.

        One round trip for up to 2,048 blocks, two for 10,240; one more after the sources changed.
        """
        now = asyncio.get_running_loop().time
        unknown = dict.fromkeys(sources, CacheBelief.unknown())
        if not self._breaker.admits(now()):
            return unknown
        try:
            async with asyncio.timeout(self._budget_seconds):
                beliefs = await self._reader.look_up(prompt, sources)
        except (StoreError, TimeoutError) as error:
            if self._breaker.failed(now()):
                _LOG.warning("look-ups leave the store alone for a while: %s", type(error).__name__)
            return unknown
        self._note_answer()
        return beliefs

    @property
    def is_away(self) -> bool:
        """Whether look-ups leave the store alone, since the last ones failed."""
        return self._breaker.state is not BreakerState.CLOSED

    def _note_answer(self) -> None:
        if self._breaker.succeeded(asyncio.get_running_loop().time()):
            _LOG.info("look-ups reach the store again")

    async def describe(self) -> Iterable[SourceReport]:
        """Return a report of every source: this process's own, and the others' from the store."""
        now = self._clock()
        reports = [
            SourceReport(
                source=owned.source,
                state=self._trusted(
                    Seen(owned.proved_at, now), owned.max_age_seconds, now, owned.state
                ),
                epoch=owned.epoch,
                blocks=owned.ledger.blocks,
                next_sequence=owned.next_sequence,
                age_seconds=_age(owned.proved_at, now),
                errors=dict(owned.errors),
                waiting=owned.ledger.waiting,
                last_digest=owned.last_digest,
            )
            for owned in self._writer.owned
        ]
        try:
            async with asyncio.timeout(_UPKEEP_TIMEOUT_SECONDS):
                others = await self._writer.others()
                (seen,) = await self._store.read([("HGETALL", self._keys.seen)])
        except (StoreError, TimeoutError):
            return reports
        told = read_seen(seen)
        now = self._clock()
        return [*reports, *(self._report(*other, told, now) for other in others)]

    def _report(
        self, source: SourceId, record: SourceRecord, told: Mapping[SourceId, Seen], now: float
    ) -> SourceReport:
        seen = told.get(source, Seen(None, 0.0))
        return SourceReport(
            source=source,
            state=self._trusted(seen, record.max_age_seconds, now, record.state),
            epoch=record.epoch,
            blocks=record.blocks,
            next_sequence=record.next_sequence,
            age_seconds=_age(seen.proved_at, now),
            errors=record.errors,
            waiting=record.waiting,
            last_digest=record.last_digest,
        )

    def _trusted(
        self, seen: Seen, max_age_seconds: float | None, now: float, state: SourceState
    ) -> SourceState:
        if is_stale(seen, max_age_seconds, now, self._writer_max_age_seconds):
            return SourceState.UNKNOWN
        return state

    # -- writers -----------------------------------------------------------------------------

    async def register(
        self, source: SourceId, layout: CacheLayout, *, max_age_seconds: float | None = None
    ) -> None:
        """Own `source`; with all that an earlier process recorded, if it is whole.

        `describe` then tells the sequence number to go on from. An earlier owner lets go with its
        next write. Cost: about 10 microseconds for each block recorded.
        """
        await self._writer.register(source, layout, max_age_seconds)

    async def begin_epoch(self, source: SourceId, state: SourceState) -> None:
        """Forget all that `source` holds: one round trip, whatever it was."""
        await self._writer.begin_epoch(source, state)

    async def apply(self, source: SourceId, sequence: int, batch: EventBatch) -> bool:
        """Apply one batch exactly once, in one round trip; False if it was applied before.

        Costs some 10 microseconds a stored block. While the store is away the batch is applied
        here, and the store is repaired when it is back.
        """
        return await self._writer.apply(source, sequence, batch)

    async def set_state(self, source: SourceId, state: SourceState) -> None:
        """Change the trust in `source` and leave its blocks alone."""
        await self._writer.set_state(source, state)

    async def touch(self, source: SourceId) -> None:
        """Note that `source` just proved that nothing was missed."""
        await self._writer.touch(source)

    async def count_error(self, source: SourceId, cause: str) -> None:
        """Count a fault met on the way to `apply`."""
        self._writer.count_error(source, cause)

    async def remove_instance(self, instance: str) -> None:
        """Forget every source of `instance`, whoever owned it; upkeep sweeps what it left."""
        await self._writer.remove_instance(instance)

    # -- upkeep ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep connections, this process's sources and the store in order, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            while True:
                await self.keep_up()
                await asyncio.sleep(self._upkeep_seconds)

    async def _beat(self) -> None:
        """Give signs of life, also while a long repair runs; reconnect ahead of the next trial."""
        beats = itertools.count()
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            if self.is_away:
                await self._reconnect()
            if next(beats) % max(1, round(self._upkeep_seconds / _BEAT_SECONDS)) == 0:
                await self._writer.beat()

    async def _reconnect(self) -> None:
        """Leave an open connection in the pool: a look-up's budget may be too short for it.

        Where no look-up comes to try the store, its answer is proof enough that it is back.
        """
        try:
            async with asyncio.timeout(_UPKEEP_TIMEOUT_SECONDS):
                await self._store.mark()
        except (StoreError, TimeoutError):
            _LOG.debug("the store is still away", exc_info=True)
            return
        untried = asyncio.get_running_loop().time() - self._breaker.since
        if untried > 2 * self._breaker.rules.cooldown_seconds:
            self._note_answer()

    async def keep_up(self) -> None:
        """One round: repairs, sweeping, signs of life. What fails is left to the next round."""
        try:
            async with asyncio.timeout(_UPKEEP_TIMEOUT_SECONDS):
                await self._check_images()
            if not self._writer.has_written:
                return
            await self._repair()
            await self._writer.beat()
            swept = 1
            while swept:
                swept = await self._sweep_once()
            async with asyncio.timeout(_UPKEEP_TIMEOUT_SECONDS):
                await self._writer.others()
                await self._remove_abandoned()
            if self._must_scrub():
                await self._sweeper.scrub()
                self._scrubbed_at = self._clock()
        except (StoreError, TimeoutError):
            _LOG.debug("upkeep of the store", exc_info=True)

    async def _repair(self) -> None:
        """Make lost images anew, up to the first that fails; sweeping may make room."""
        for owned in list(self._writer.owned):
            if not owned.is_imaged and not await self._writer.repair(owned):
                return

    async def _sweep_once(self) -> int:
        async with asyncio.timeout(_UPKEEP_TIMEOUT_SECONDS):
            return await self._sweeper.sweep()

    async def _check_images(self) -> None:
        """Have images made anew that the store lost: by a failover, a flush, an eviction."""
        mark = await self._store.mark()
        if self._mark is not None and mark != self._mark:
            _LOG.warning("another server took over the store, or it started empty: repairing")
            await self._writer.lose_images(list(self._writer.owned))
        self._mark = mark
        (fields,) = await self._store.read([("HKEYS", self._keys.table)])
        shown = {parse_field(name) for name in fields}
        await self._writer.lose_images(
            [owned for owned in self._writer.owned if owned.is_imaged and owned.source not in shown]
        )

    async def _remove_abandoned(self) -> None:
        (seen,) = await self._store.read([("HGETALL", self._keys.seen)])
        for source, told in read_seen(seen).items():
            if self._clock() - told.written_at > ABANDONED_SECONDS:
                await self._writer.remove(source)

    def _must_scrub(self) -> bool:
        since = self._scrubbed_at
        return self._sweeper.must_scrub or since is None or self._clock() - since > _SCRUB_SECONDS


def _age(proved_at: float | None, now: float) -> float | None:
    """Return the time since a proof, never below 0: a writer's host may have the later clock."""
    return None if proved_at is None else max(0.0, now - proved_at)


def open_redis_index(
    url: str,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    clock: Callable[[], float] = time.time,
    budget_seconds: float = BUDGET_SECONDS,
    breaker: BreakerRules | None = None,
    max_blocks_per_source: int = MAX_BLOCKS_PER_SOURCE,
    max_blocks_total: int = MAX_BLOCKS_TOTAL,
    max_waiting: int = MAX_WAITING,
) -> RedisIndex:
    """Return the index at `url` (`kvmeta.backends.redis_urls`); it connects on first use.

    Raises:
        StoreUrlError: the URL cannot be used.
    """
    return RedisIndex(
        open_store(parse_store_url(url)),
        keys=Keys(namespace),
        clock=clock,
        budget_seconds=budget_seconds,
        breaker=breaker,
        max_blocks_per_source=max_blocks_per_source,
        max_blocks_total=max_blocks_total,
        max_waiting=max_waiting,
    )


async def deployment_secret(
    url: str, *, fresh: bytes, namespace: str = DEFAULT_NAMESPACE, timeout_seconds: float = 5.0
) -> bytes:
    """Return the deployment's secret; `fresh` becomes it if there is none yet.

    Every process that asks gets the same one, whoever comes first.

    Raises:
        StoreUrlError: the URL cannot be used.
        StoreError: the store cannot be asked.
    """
    store = open_store(parse_store_url(url))
    key = Keys(namespace).secret
    try:
        async with asyncio.timeout(timeout_seconds):
            replies = await store.write([("SET", key, fresh, "NX"), ("GET", key)])
    except TimeoutError as error:
        raise StoreError("the store did not answer in time") from error
    finally:
        await store.close()
    secret: bytes = replies[1]
    return secret
