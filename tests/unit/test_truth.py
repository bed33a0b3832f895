"""Sources held to their word: who over-states too often is demoted, and only then."""

from __future__ import annotations

import asyncio
import random

import pytest

from kvmeta.backends.memory import MemoryIndex
from kvmeta.hashing import prompt_blocks
from kvmeta.history import PromptHistory
from kvmeta.truth import TOO_OFTEN, WINDOW, TruthRecord, weigh_answer
from kvmeta.types import CacheLayout, SourceId, SourceReport, SourceState
from router.adapters.metrics import PrometheusMetrics
from router.domain.decision import Placement
from router.service.relay_ports import Usage
from router.service.truth import OVER_STATED, TruthWatch
from tests.fakes.clocks import FakeClock

SOURCE = SourceId("p0")


def demotions(answers: list[tuple[int, int]]) -> list[int]:
    """Return at which answers a source is demoted, counted from 1."""
    record, found = TruthRecord(), []
    for number, (believed, reported) in enumerate(answers, start=1):
        record, demote = weigh_answer(record, believed, reported)
        if demote:
            found.append(number)
    return found


def test_a_source_that_always_over_states_is_demoted_with_its_sixth_answer() -> None:
    """Six in a row are enough, and it takes six more to demote it again."""
    assert demotions([(64, 0)] * 12) == [TOO_OFTEN, 2 * TOO_OFTEN]


def test_under_statements_and_truths_never_demote() -> None:
    """Believing less than was there costs little and is no fault of trust."""
    assert demotions([(0, 64), (64, 64)] * 100) == []


def test_faults_apart_are_forgotten() -> None:
    """What is older than the window does not count."""
    apart = ([(64, 0)] * (TOO_OFTEN - 1) + [(64, 64)] * WINDOW) * 20
    assert demotions(apart) == []


def test_evictions_in_flight_do_not_demote_a_healthy_source() -> None:
    """One fault in fifty, for ten thousand answers, demotes nobody."""
    rng = random.Random(3)
    assert demotions([(64, 0 if rng.random() < 0.02 else 64) for _ in range(10_000)]) == []


def a_history() -> PromptHistory:
    return PromptHistory(clock=FakeClock().monotonic, ttl_seconds=60, max_blocks=100)


async def report_of(index: MemoryIndex) -> SourceReport:
    return next(iter(await index.describe()))


@pytest.mark.parametrize("state", [SourceState.SYNCED, SourceState.APPROXIMATE])
async def test_a_demoted_source_is_partial_counted_and_healed_by_a_new_epoch(
    state: SourceState,
) -> None:
    """Reports against a synced belief demote; against a guess they prove nothing."""
    index = MemoryIndex(clock=FakeClock().monotonic)
    await index.register(SOURCE, CacheLayout("m@1", 4))
    await index.begin_epoch(SOURCE, SourceState.SYNCED)
    metrics = PrometheusMetrics()
    watch = TruthWatch(metrics, index, a_history())
    running = asyncio.create_task(watch.run())
    for _ in range(TOO_OFTEN):
        watch.prefill_answered(Placement("east", "p0", 64, None, state), Usage(100, 1, 0))
    await asyncio.wait({running}, timeout=0.05)
    report = await report_of(index)
    if state is SourceState.SYNCED:
        assert report.state is SourceState.PARTIAL
        assert report.errors == {OVER_STATED: 1}
        await index.begin_epoch(SOURCE, SourceState.SYNCED)
    assert (await report_of(index)).state is SourceState.SYNCED
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    outcome = "over" if state is SourceState.SYNCED else "missed"
    told = f'outcome="{outcome}",rank="0"}} {float(TOO_OFTEN)}'
    assert told in metrics.render([]).decode()


async def test_guesses_that_fail_too_often_are_dropped() -> None:
    """An engine without events that keeps finding less evicts sooner than was thought."""
    history, layout = a_history(), CacheLayout("m@1", 4)
    history.note(SOURCE, layout, prompt_blocks(layout, list(range(20))))
    watch = TruthWatch(PrometheusMetrics(), MemoryIndex(clock=FakeClock().monotonic), history)
    guessed = Placement("east", "p0", 16, None, SourceState.APPROXIMATE)
    for answer in range(TOO_OFTEN):
        assert history.knows(SOURCE), answer
        watch.prefill_answered(guessed, Usage(20, 1, 0))
    assert not history.knows(SOURCE)
