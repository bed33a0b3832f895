"""Measures an engine: prefill times at chosen lengths, and the bytes that a hand-off moves.

One request at a time, each a prompt that nobody has seen. Every figure is checked against the
engine's own counters (`router.throughput.measurements`) before it is believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from router.domain.units import Bytes, Seconds, Tokens
from router.ports import Clock
from router.throughput.measurements import (
    ANSWER_TOKENS,
    EngineCounters,
    Measurement,
    NotMeasured,
    PrefillAnswer,
    check_alone,
    check_answer,
    check_computed,
    check_idle,
    check_measurements,
    read_prefill_seconds,
)

HandOff = Mapping[str, object]


class Step(StrEnum):
    """What one request of a measurement is for."""

    TRANSFER = "transfer"
    PREFILL = "prefill"


class PrefillClock(StrEnum):
    """Whose clock times a prefill."""

    ENGINE = "engine"
    """The engine's: time in the PREFILL phase, without tokenising, queue and network."""
    CLIENT = "client"
    """Ours: from the request to its one token, everything between included."""


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Which engine answers. `max_model_len` bounds prompt and answer together, in tokens."""

    model: str
    version: str
    max_model_len: Tokens | None


class ProfiledEngine(Protocol):
    """One engine, asked directly. Every call raises NotMeasured where it fails."""

    async def identify(self, model: str | None) -> EngineIdentity:
        """Return what the engine serves: `model`, or the first that it lists."""
        ...

    async def read_counters(self) -> EngineCounters:
        """Return the engine's counters as of now."""
        ...

    async def prefill(self, model: str, prompt: Sequence[int]) -> PrefillAnswer:
        """Ask for one token after a prompt of token ids."""
        ...

    async def prefill_for_peer(self, model: str, prompt: Sequence[int]) -> HandOff:
        """Prefill for another engine; return the parameters by which that pulls the KV."""
        ...

    async def decode_from_peer(self, model: str, prompt: Sequence[int], hand_off: HandOff) -> None:
        """Pull a hand-off's KV and decode one token after it."""
        ...


@dataclass(frozen=True, slots=True)
class ProfilingRules:
    """How it is measured. `max_spread` is longest less shortest over the median.

    `settle` bounds the wait for counters to show what an answer has already told; vLLM writes them
    a moment after. `poll` is the pause between two looks. All in seconds.
    """

    repeats: int = 5
    warmup: int = 1
    max_spread: float = 0.1
    clock: PrefillClock = PrefillClock.ENGINE
    settle: Seconds = 10.0
    poll: Seconds = 0.05


class Profiler:
    """Measures one engine. `draw_prompt` returns that many random token ids, new ones each time.

    `note` is told of every step that is done, and its length.
    """

    def __init__(
        self,
        engine: ProfiledEngine,
        model: str,
        *,
        rules: ProfilingRules,
        clock: Clock,
        draw_prompt: Callable[[Tokens], Sequence[int]],
        note: Callable[[Step, Tokens], None],
    ) -> None:
        self._engine = engine
        self._model = model
        self._rules = rules
        self._clock = clock
        self._draw_prompt = draw_prompt
        self._note = note

    async def measure_prefills(self, lengths: Sequence[Tokens]) -> list[Measurement]:
        """Measure T_prefill at each length, in order. Raises NotMeasured for the first doubt."""
        measurements: list[Measurement] = []
        for tokens in lengths:
            for _ in range(self._rules.warmup):
                await self._time_prefill(tokens)
            samples = [await self._time_prefill(tokens) for _ in range(self._rules.repeats)]
            measurements.append(Measurement(tokens, tuple(samples)))
            check_measurements(measurements, self._rules.max_spread)
        return measurements

    async def measure_transfers(
        self, peer: ProfiledEngine, lengths: Sequence[Tokens]
    ) -> list[Bytes]:
        """Measure S_kv at each length by what `peer` counts as pulled. Raises NotMeasured."""
        return [await self._weigh_transfer(peer, tokens) for tokens in lengths]

    async def _time_prefill(self, tokens: Tokens) -> Seconds:
        prompt = self._draw_prompt(tokens)
        before = await self._engine.read_counters()
        check_idle(before)
        began = self._clock.monotonic()
        answer = await self._engine.prefill(self._model, prompt)
        seconds = self._clock.monotonic() - began
        check_answer(answer, tokens)
        by_engine = self._rules.clock is PrefillClock.ENGINE

        def told(now: EngineCounters) -> bool:
            counted = now.prompt_tokens >= before.prompt_tokens + tokens
            timed = now.prefills is None or now.prefills > (before.prefills or 0)
            return counted and (timed or not by_engine)

        after = await self._read_settled(self._engine, told)
        check_alone(before, after, tokens)
        check_computed(before, after, answer, tokens)
        self._note(Step.PREFILL, tokens)
        return read_prefill_seconds(before, after) if by_engine else seconds

    async def _weigh_transfer(self, peer: ProfiledEngine, tokens: Tokens) -> Bytes:
        prompt = self._draw_prompt(tokens)
        before = await peer.read_counters()
        check_idle(before)
        if before.transferred_bytes is None:
            raise NotMeasured(
                "the decode engine has no vllm:nixl_bytes_transferred: does it run a NixlConnector?"
            )
        start = before.transferred_bytes
        hand_off = await self._engine.prefill_for_peer(self._model, prompt)
        await peer.decode_from_peer(self._model, prompt, hand_off)

        def told(now: EngineCounters) -> bool:
            return (now.transferred_bytes or 0) > start

        after = await self._read_settled(peer, told)
        moved = (after.transferred_bytes or 0) - start
        if moved <= 0:
            raise NotMeasured(
                f"the decode engine pulled nothing of a prompt of {tokens} tokens; its "
                "kv_load_failure_policy may have it compute instead"
            )
        if after.generated_tokens - before.generated_tokens != ANSWER_TOKENS:
            raise NotMeasured(
                "the decode engine served others meanwhile; take it out of traffic first"
            )
        self._note(Step.TRANSFER, tokens)
        return Bytes(round(moved))

    async def _read_settled(
        self, engine: ProfiledEngine, told: Callable[[EngineCounters], bool]
    ) -> EngineCounters:
        """Read counters until they have been told, the engine is idle and nothing moves any more.

        After `settle` seconds they are returned as they are, for the caller's checks to judge.
        Raises NotMeasured if others keep the engine busy.
        """
        deadline = self._clock.monotonic() + self._rules.settle
        previous: EngineCounters | None = None
        while True:
            now = await engine.read_counters()
            if told(now) and now.idle and now == previous:
                return now
            if self._clock.monotonic() >= deadline:
                check_idle(now)
                return now
            previous = now
            await asyncio.sleep(self._rules.poll)
