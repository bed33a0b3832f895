"""Follow many publishers and keep the index at their latest event.

One task a source: it feeds what its sockets observe to the sequence machine and does what the
machine says. Its parts (the listener, the probe's clock, a running replay) live and die with it.
A source whose task fails is attached anew after a pause; the others never notice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat

import zmq.asyncio

from kvmeta.errors import FrameError, PayloadError
from kvmeta.index import MetadataIndex
from kvmeta.ingest.hooks import IngestHook, SilentHook
from kvmeta.ingest.sequences import (
    Action,
    Apply,
    AskReplay,
    Attached,
    BeginEpoch,
    Count,
    Observation,
    ProbeDue,
    SequenceState,
    Touch,
    resume,
    step,
)
from kvmeta.ingest.subscriber import ReplayObservation, SourceSpec, Subscription, replay
from kvmeta.ingest.vllm import decode_batch
from kvmeta.types import SourceId, SourceState

PROBE_INTERVAL_SECONDS = 5.0
"""Between two proofs that an idle source is alive and complete: one batch travels for each."""

REPLAY_SILENCE_SECONDS = 5.0
"""Fifty times what an idle vLLM takes to serve a replay request."""

INBOX_OBSERVATIONS = 128
"""Beyond it the listener stops reading and ZeroMQ's own bounded queue takes over."""

OBSERVATIONS_PER_TURN = 8
"""About a millisecond of work, after which other tasks have their turn.

Neither a queue that holds something nor an index in memory suspends a task: without turns a source
that catches up on the 10,000 steps that vLLM keeps would hold the event loop for seconds.
"""

_LONG_SECONDS = 60.0
"""A task that lasted this long did not fail for the reason for which the one before it did."""

_LOG = logging.getLogger(__name__)


def _pauses() -> Iterator[float]:
    """Seconds before a failed source is attached again."""
    return chain((0.5, 1.0, 2.0, 5.0, 10.0), repeat(30.0))


class _Turns:
    """A task's share of the event loop: `OBSERVATIONS_PER_TURN`, then the others."""

    def __init__(self) -> None:
        self._left = OBSERVATIONS_PER_TURN

    async def take(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._left = OBSERVATIONS_PER_TURN
            await asyncio.sleep(0)


class KvIngest:
    """Event ingest of every source added; `run` until cancelled.

    `wall_clock` is compared with the engines' timestamps for the lag only. `max_age_seconds` is the
    age at which a source that can be probed, and was not proved alive, becomes unknown to readers:
    three missed probes by default.
    """

    def __init__(
        self,
        index: MetadataIndex,
        *,
        wall_clock: Callable[[], float] = time.time,
        probe_interval_seconds: float = PROBE_INTERVAL_SECONDS,
        replay_silence_seconds: float = REPLAY_SILENCE_SECONDS,
        max_age_seconds: float | None = None,
        hook: IngestHook | None = None,
    ) -> None:
        self._index = index
        self._wall_clock = wall_clock
        self._probe_interval_seconds = probe_interval_seconds
        self._replay_silence_seconds = replay_silence_seconds
        self._max_age_seconds = (
            3 * probe_interval_seconds + replay_silence_seconds
            if max_age_seconds is None
            else max_age_seconds
        )
        self._hook: IngestHook = hook if hook is not None else SilentHook()
        self._specs: dict[SourceId, SourceSpec] = {}
        self._tasks: dict[SourceId, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._context: zmq.asyncio.Context | None = None

    async def run(self) -> None:
        """Follow every source added, before or during the run, until cancelled."""
        self._context = zmq.asyncio.Context()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for spec in self._specs.values():
                    self._start(spec)
                await asyncio.get_running_loop().create_future()  # until cancelled
        finally:
            self._group = None
            self._tasks.clear()
            self._context.destroy(linger=0)
            self._context = None

    async def add(self, spec: SourceSpec) -> None:
        """Follow one more publisher; replaces an earlier one of the same source."""
        await self._stop([spec.source])
        max_age = self._max_age_seconds if spec.replay_endpoint is not None else None
        await self._index.register(spec.source, spec.layout, max_age_seconds=max_age)
        self._specs[spec.source] = spec
        self._start(spec)

    async def pause(self, source: SourceId) -> None:
        """Stop following `source`; what the index holds of it stays, for who follows it next."""
        await self._stop([source])

    async def remove(self, instance: str) -> None:
        """Stop following every source of `instance` and forget all that they held."""
        await self._stop([source for source in self._specs if source.instance == instance])
        await self._index.remove_instance(instance)

    def _start(self, spec: SourceSpec) -> None:
        if self._group is not None and self._context is not None:
            name = f"kv-events {spec.source}"
            follow = self._keep_following(spec, self._context)
            self._tasks[spec.source] = self._group.create_task(follow, name=name)

    async def _stop(self, sources: list[SourceId]) -> None:
        """End the sources' tasks and wait for it, so that none of them writes any more."""
        for source in sources:
            self._specs.pop(source, None)
        tasks = [task for source in sources if (task := self._tasks.pop(source, None))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_following(self, spec: SourceSpec, context: zmq.asyncio.Context) -> None:
        now = asyncio.get_running_loop().time
        pauses = _pauses()
        while True:
            began = now()
            try:
                await self._follow(spec, context)
            except Exception:  # noqa: BLE001  # the root of a source's task: the others go on
                _LOG.warning("KV events of %s: task failed, attaching anew", spec.source)
                _LOG.debug("KV events of %s", spec.source, exc_info=True)
                self._hook.error(spec.source, "task_failed")
            if now() - began > _LONG_SECONDS:
                pauses = _pauses()
            await asyncio.sleep(next(pauses))

    async def _follow(self, spec: SourceSpec, context: zmq.asyncio.Context) -> None:
        state = await self._resume(spec)
        if state is None:
            state = SequenceState(can_replay=spec.replay_endpoint is not None)
            await self._index.begin_epoch(spec.source, SourceState.UNKNOWN)
        follower = Follower(
            spec,
            state,
            self._index,
            context,
            hook=self._hook,
            wall_clock=self._wall_clock,
            probe_interval_seconds=self._probe_interval_seconds,
            replay_silence_seconds=self._replay_silence_seconds,
        )
        await follower.run()

    async def _resume(self, spec: SourceSpec) -> SequenceState | None:
        """Return where the index says to go on; None where it says nothing, or nobody could check.

        What it holds stands meanwhile, as old as it is.
        """
        if spec.replay_endpoint is None:
            return None
        for report in await self._index.describe():
            if report.source == spec.source and report.next_sequence is not None:
                return resume(report.next_sequence, report.last_digest)
        return None


class Follower:
    """The shell round one source's sequence machine: read, step, act."""

    def __init__(
        self,
        spec: SourceSpec,
        state: SequenceState,
        index: MetadataIndex,
        context: zmq.asyncio.Context,
        *,
        hook: IngestHook,
        wall_clock: Callable[[], float],
        probe_interval_seconds: float,
        replay_silence_seconds: float,
    ) -> None:
        self._spec = spec
        self._source = spec.source
        self._index = index
        self._context = context
        self._hook = hook
        self._wall_clock = wall_clock
        self._probe_interval_seconds = probe_interval_seconds
        self._replay_silence_seconds = replay_silence_seconds
        self._state = state
        # (number of the replay that it belongs to, or None; what was observed)
        self._inbox: asyncio.Queue[tuple[int | None, Observation | FrameError]] = asyncio.Queue(
            INBOX_OBSERVATIONS
        )
        self._replays_asked = 0
        self._replay: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Follow the publisher until cancelled; raises what went wrong in any of its parts."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            if self._state.can_replay:
                group.create_task(self._tick())
            attached = False
            turns = _Turns()
            while True:
                await turns.take()
                asked, observation = await self._inbox.get()
                if asked is not None and asked != self._replays_asked:
                    continue  # an answer to a question that was given up
                if isinstance(observation, FrameError):
                    await self._count("bad_frames")
                    continue
                attached = attached or isinstance(observation, Attached)
                if not attached:
                    continue  # nobody to probe yet
                self._state, actions = step(self._state, observation)
                for action in actions:
                    await self._act(action, group)

    async def _listen(self) -> None:
        async with Subscription(self._context, self._spec) as subscription:
            while True:
                for observation in await subscription.receive():
                    await self._inbox.put((None, observation))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._probe_interval_seconds)
            await self._inbox.put((None, ProbeDue()))

    async def _act(self, action: Action, group: asyncio.TaskGroup) -> None:
        match action:
            case Apply():
                await self._apply(action)
            case AskReplay():
                self._ask_replay(action.start, group)
            case BeginEpoch():
                await self._index.begin_epoch(self._source, action.state)
                self._hook.state_changed(self._source, action.state)
            case Touch():
                await self._index.touch(self._source)
            case Count():
                await self._count(action.cause)

    def _ask_replay(self, start: int, group: asyncio.TaskGroup) -> None:
        if self._replay is not None:
            self._replay.cancel()
        self._replays_asked += 1
        self._replay = group.create_task(self._run_replay(start, self._replays_asked))

    async def _run_replay(self, start: int, asked: int) -> None:
        turns = _Turns()

        async def deliver(observation: ReplayObservation) -> None:
            await turns.take()
            await self._inbox.put((asked, observation))

        assert self._spec.replay_endpoint is not None  # noqa: S101  # only then the machine asks
        await replay(
            self._context,
            self._spec.replay_endpoint,
            start,
            silence_seconds=self._replay_silence_seconds,
            deliver=deliver,
        )

    async def _apply(self, action: Apply) -> None:
        try:
            batch = replace(decode_batch(action.payload), digest=action.digest)
        except PayloadError:
            # As good as lost, removals included: what was held before cannot be trusted.
            await self._count("undecodable_payload")
            await self._index.begin_epoch(self._source, SourceState.PARTIAL)
            self._hook.state_changed(self._source, SourceState.PARTIAL)
            return
        if not await self._index.apply(self._source, action.sequence, batch):
            return
        for cause, count in batch.faults.items():
            for _ in range(count):
                self._hook.error(self._source, cause)
        for kind, count in Counter(type(event).__name__ for event in batch.events).items():
            self._hook.events_applied(self._source, kind, count)
        if batch.timestamp:
            self._hook.lag(self._source, max(0.0, self._wall_clock() - batch.timestamp))

    async def _count(self, cause: str) -> None:
        await self._index.count_error(self._source, cause)
        self._hook.error(self._source, cause)
