"""The profiler's loop over engines that count as they are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from router.service.profiling import (
    EngineIdentity,
    HandOff,
    Profiler,
    ProfilingRules,
    Step,
)
from router.throughput.measurements import EngineCounters, NotMeasured, PrefillAnswer
from tests.fakes.clocks import FakeClock

QUIET = EngineCounters(
    running=0,
    waiting=0,
    prompt_tokens=0,
    generated_tokens=0,
    computed_tokens=0,
    prefills=0,
    prefill_seconds=0,
    transferred_bytes=0,
)
Change = Callable[[EngineCounters, int], EngineCounters]


def count_prefill(now: EngineCounters, tokens: int) -> EngineCounters:
    """One prefill of a millisecond a token, all of it computed."""
    return replace(
        now,
        prompt_tokens=now.prompt_tokens + tokens,
        generated_tokens=now.generated_tokens + 1,
        computed_tokens=(now.computed_tokens or 0) + tokens,
        prefills=(now.prefills or 0) + 1,
        prefill_seconds=(now.prefill_seconds or 0) + tokens / 1000,
    )


def count_pull(now: EngineCounters, tokens: int) -> EngineCounters:
    """One pull of ten bytes a token."""
    pulled = (now.transferred_bytes or 0) + 10 * tokens
    return replace(now, transferred_bytes=pulled, generated_tokens=now.generated_tokens + 1)


@dataclass(slots=True)
class CountingEngine:
    """Implements `ProfiledEngine`: `change` is what one request does to the counters.

    They show it only after `lag` looks; each look takes a second of the clock.
    """

    change: Change = count_prefill
    lag: int = 0
    clock: FakeClock = field(default_factory=FakeClock)
    shown: EngineCounters = QUIET
    actual: EngineCounters = QUIET
    looks: int = 0
    prompts: list[Sequence[int]] = field(default_factory=list)

    async def identify(self, model: str | None) -> EngineIdentity:
        return EngineIdentity(model or "m", "0.33.0", 8192)

    async def read_counters(self) -> EngineCounters:
        self.clock.advance(1)
        self.looks += 1
        if self.looks > self.lag:
            self.shown = self.actual
        return self.shown

    async def prefill(self, model: str, prompt: Sequence[int]) -> PrefillAnswer:  # noqa: ARG002
        self._count(prompt)
        return PrefillAnswer(len(prompt), 1, None)

    async def prefill_for_peer(self, model: str, prompt: Sequence[int]) -> HandOff:  # noqa: ARG002
        self._count(prompt)
        return {"remote_request_id": str(len(self.prompts))}

    async def decode_from_peer(
        self,
        model: str,  # noqa: ARG002
        prompt: Sequence[int],
        hand_off: HandOff,
    ) -> None:
        assert hand_off
        self._count(prompt)

    def _count(self, prompt: Sequence[int]) -> None:
        self.prompts.append(prompt)
        self.looks = 0
        self.actual = self.change(self.actual, len(prompt))


def profiler(engine: CountingEngine, notes: list[tuple[Step, int]] | None = None) -> Profiler:
    """A profiler that repeats twice after one warm-up and does not really wait."""
    told = notes if notes is not None else []
    return Profiler(
        engine,
        "m",
        rules=ProfilingRules(repeats=2, warmup=1, settle=10, poll=0),
        clock=engine.clock,
        draw_prompt=lambda tokens: [len(engine.prompts)] * tokens,
        note=lambda step, tokens: told.append((step, tokens)),
    )


async def test_repeats_are_kept_and_warm_ups_are_not() -> None:
    """Three requests a length, two samples of them, and each prompt is another one."""
    engine, notes = CountingEngine(), list[tuple[Step, int]]()
    measured = await profiler(engine, notes).measure_prefills([100, 200])
    assert [each.samples for each in measured] == [
        pytest.approx((0.1, 0.1)),
        pytest.approx((0.2, 0.2)),
    ]
    assert notes == [(Step.PREFILL, 100)] * 3 + [(Step.PREFILL, 200)] * 3
    assert len({prompt[0] for prompt in engine.prompts}) == 6


async def test_counters_that_lag_behind_the_answer_are_waited_for() -> None:
    """An engine that writes its metrics some looks later gives the same times."""
    [measured] = await profiler(CountingEngine(lag=4)).measure_prefills([100])
    assert measured.samples == pytest.approx((0.1, 0.1))


async def test_counters_that_never_tell_are_given_up() -> None:
    """After the time to settle, a request that nobody counted is no measurement."""
    engine = CountingEngine(change=lambda now, _: now)
    with pytest.raises(NotMeasured, match="0 prompt and 0 output tokens instead of 100 and 1"):
        await profiler(engine).measure_prefills([100])
    assert engine.clock.monotonic() < 30


async def test_an_engine_that_does_not_come_to_rest_is_refused() -> None:
    """Somebody else's request that came meanwhile and stays is found."""
    engine = CountingEngine(change=lambda now, n: replace(count_prefill(now, n), running=1))
    with pytest.raises(NotMeasured, match="busy: 1 requests run"):
        await profiler(engine).measure_prefills([100])


async def test_the_peers_counters_weigh_a_transfer() -> None:
    """S_kv is what the decode engine pulled, once a length."""
    engine, notes = CountingEngine(), list[tuple[Step, int]]()
    peer = CountingEngine(change=count_pull, lag=3)
    assert await profiler(engine, notes).measure_transfers(peer, [100, 200]) == [1000, 2000]
    assert notes == [(Step.TRANSFER, 100), (Step.TRANSFER, 200)]
    assert peer.prompts == engine.prompts


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (count_prefill, "pulled nothing of a prompt of 100 tokens"),
        (lambda now, n: count_pull(count_pull(now, n), n), "served others"),
    ],
)
async def test_a_transfer_that_is_not_ours_alone_is_refused(change: Change, said: str) -> None:
    """A peer that computed instead, or pulled for others as well, has no S_kv to tell."""
    engine = CountingEngine()
    with pytest.raises(NotMeasured, match=said):
        await profiler(engine).measure_transfers(
            CountingEngine(change=change, clock=engine.clock), [100]
        )
