"""The index rebuilt, offline, at the very event at which an engine looked its own cache up.

Every stand-in logs its look-ups with the number of event batches it had published before. Replaying
exactly these batches into a fresh index and asking it the same question must give the same answer:
a disagreement is a fault of hashing, decoding, bookkeeping or the reuse rule, never of timing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx
import zmq.asyncio

from kvmeta.backends.memory import MemoryIndex
from kvmeta.hashing import prompt_blocks
from kvmeta.ingest.sequences import ReplayAnswer, ReplayFailed
from kvmeta.ingest.subscriber import ReplayObservation, replay
from kvmeta.ingest.vllm import decode_batch
from kvmeta.types import CacheLayout, SourceId, SourceState
from router.domain.topology import Instance


@dataclass(frozen=True, slots=True)
class LookUp:
    """One look-up that an engine logged."""

    stem: str
    sequence: int
    cached: int
    limit: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many look-ups were compared, and those that disagree."""

    compared: int
    wrong: list[tuple[str, LookUp, int | None]]


def fetch_look_ups(instance: Instance) -> list[LookUp]:
    """Return an engine's logged look-ups of prefill legs, in order.

    `stem` is the gateway's request id inside the engine's own: `cmpl-STEM-suffix-p-0-…`.
    """
    answer = httpx.get(f"{instance.url}/standin/lookups", timeout=60, trust_env=False)
    entries = sorted(answer.json()["lookups"], key=lambda entry: entry["number"])
    return [
        LookUp(
            entry["request_id"].split("-")[1],
            entry["kv_event_seq"],
            entry["cached_tokens"],
            entry["limit"],
        )
        for entry in entries
    ]


async def fetch_batches(endpoint: str) -> list[bytes]:
    """Return every batch that an engine has published, by its sequence number from 0."""
    context = zmq.asyncio.Context()
    batches: list[bytes] = []

    async def take(observation: ReplayObservation) -> None:
        assert not isinstance(observation, ReplayFailed), "the engine's replay failed"
        if isinstance(observation, ReplayAnswer):
            assert observation.sequence == len(batches), "the replay has a gap"
            batches.append(observation.payload)

    try:
        await replay(context, endpoint, 0, silence_seconds=30, deliver=take)
    finally:
        context.destroy(linger=0)
    return batches


async def check_engine(
    instance: Instance, layout: CacheLayout, prompts: Mapping[str, Sequence[int]]
) -> Verdict:
    """Compare every look-up of an engine with the index at the same event.

    `prompts` are the token ids by the gateway's request id.
    """
    assert instance.kv_replay is not None
    look_ups = fetch_look_ups(instance)
    batches = await fetch_batches(instance.kv_replay)
    source = SourceId(instance.name)
    index = MemoryIndex(clock=lambda: 0.0)
    await index.register(source, layout)
    await index.begin_epoch(source, SourceState.SYNCED)
    applied = 0
    wrong: list[tuple[str, LookUp, int | None]] = []
    for look_up in look_ups:
        while applied < look_up.sequence:
            await index.apply(source, applied, decode_batch(batches[applied]))
            applied += 1
        blocks = prompt_blocks(layout, prompts[look_up.stem], limit=look_up.limit)
        found = (await index.look_up(blocks, [source]))[source].tokens
        if found != look_up.cached:
            wrong.append((instance.name, look_up, found))
    return Verdict(len(look_ups), wrong)
