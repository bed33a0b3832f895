"""What a measured prefill must prove before a profile believes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.throughput.measurements import (
    EngineCounters,
    Measurement,
    NotMeasured,
    PrefillAnswer,
    check_alone,
    check_answer,
    check_computed,
    check_idle,
    check_measurements,
    check_sizes,
    read_prefill_seconds,
    suggest_lengths,
)

BEFORE = EngineCounters(
    running=0,
    waiting=0,
    prompt_tokens=500,
    generated_tokens=7,
    computed_tokens=400,
    prefills=3,
    prefill_seconds=1.5,
)
AFTER = replace(
    BEFORE,
    prompt_tokens=1500,
    generated_tokens=8,
    computed_tokens=1400,
    prefills=4,
    prefill_seconds=1.75,
)
ANSWER = PrefillAnswer(prompt_tokens=1000, output_tokens=1, cached_tokens=0)


def test_one_whole_prefill_alone_is_believed() -> None:
    """Counters that moved by exactly this request pass every check and give its time."""
    check_idle(BEFORE)
    check_answer(ANSWER, 1000)
    check_alone(BEFORE, AFTER, 1000)
    check_computed(BEFORE, AFTER, ANSWER, 1000)
    assert read_prefill_seconds(BEFORE, AFTER) == pytest.approx(0.25)


@pytest.mark.parametrize("changes", [{"running": 1.0}, {"waiting": 2.0}])
def test_a_busy_engine_is_refused(changes: dict[str, float]) -> None:
    """Requests that run or wait are somebody else's, and would be measured with ours."""
    with pytest.raises(NotMeasured, match="busy"):
        check_idle(replace(BEFORE, **changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cached_tokens": 16}, "16 of 1000 tokens came from a cache"),
        ({"prompt_tokens": 1001}, "read 1001 prompt tokens where 1000 were sent"),
        ({"prompt_tokens": None}, "read None prompt tokens"),
        ({"output_tokens": 0}, "not the end of a prefill"),
        ({"output_tokens": 2}, "not the end of a prefill"),
    ],
)
def test_an_answer_that_is_no_full_prefill_is_refused(changes: dict[str, int], said: str) -> None:
    """Cached tokens, another length or another number of output tokens are not T_prefill."""
    with pytest.raises(NotMeasured, match=said):
        check_answer(replace(ANSWER, **changes), 1000)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompt_tokens": 1600.0}, "served others"),
        ({"generated_tokens": 9.0}, "served others"),
        ({"prompt_tokens": 1000.0, "generated_tokens": 1.0}, "restarted"),
    ],
)
def test_work_for_others_is_refused(changes: dict[str, float], said: str) -> None:
    """Tokens that are not ours, or counters that fell, are found by the difference."""
    after = replace(AFTER, **changes)
    if said == "restarted":
        after = replace(after, prompt_tokens=100.0)
    with pytest.raises(NotMeasured, match=said):
        check_alone(BEFORE, after, 1000)


def test_a_cache_that_no_answer_tells_of_is_found_in_the_counters() -> None:
    """Tokens that were not computed are refused whatever the answer says; no proof is no proof."""
    with pytest.raises(NotMeasured, match="computed 900 of 1000"):
        check_computed(BEFORE, replace(AFTER, computed_tokens=1300.0), ANSWER, 1000)
    mute = replace(BEFORE, computed_tokens=None)
    check_computed(mute, mute, ANSWER, 1000)
    with pytest.raises(NotMeasured, match="enable-prompt-tokens-details"):
        check_computed(mute, mute, replace(ANSWER, cached_tokens=None), 1000)


def test_a_time_that_is_not_of_one_prefill_is_refused() -> None:
    """Two prefills counted, none, or no such metric at all: there is no time to read."""
    for count in (3.0, 5.0):
        with pytest.raises(NotMeasured, match="prefills of"):
            read_prefill_seconds(BEFORE, replace(AFTER, prefills=count))
    with pytest.raises(NotMeasured, match="--clock client"):
        read_prefill_seconds(replace(BEFORE, prefills=None), AFTER)


def test_the_median_stands_and_the_spread_is_told() -> None:
    """One slow sample does not move the median; the spread is the whole range over it."""
    measurement = Measurement(1000, (1.0, 1.02, 1.5))
    assert measurement.seconds == 1.02
    assert measurement.spread == pytest.approx(0.5 / 1.02)
    check_measurements([measurement], 0.5)
    with pytest.raises(NotMeasured, match="spread of 49%"):
        check_measurements([measurement], 0.1)


def test_times_and_bytes_that_fall_with_length_are_refused() -> None:
    """A longer prompt that took less time, or fewer bytes, was not measured but disturbed."""
    with pytest.raises(NotMeasured, match="2000 tokens took less time"):
        check_measurements([Measurement(1000, (1.0,)), Measurement(2000, (0.9,))], 0.1)
    check_sizes([1000, 2000], [5, 5])
    with pytest.raises(NotMeasured, match="2000 tokens moved fewer bytes"):
        check_sizes([1000, 2000], [5, 4])
    with pytest.raises(NotMeasured, match="0 bytes"):
        check_sizes([1000], [0])


def test_suggested_lengths_double_up_to_what_the_model_takes() -> None:
    """The prompt leaves room for its one answer token, and 128K tokens are enough."""
    assert suggest_lengths(8192) == (1024, 2048, 4096)
    assert suggest_lengths(8193) == (1024, 2048, 4096, 8192)
    assert suggest_lengths(10**7)[-1] == 131_072
    assert suggest_lengths(100) == ()
