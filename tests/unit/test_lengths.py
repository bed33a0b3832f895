"""What the gateway remembers of the lengths that it saw."""

from __future__ import annotations

import pytest

from router.service.lengths import ModelLengths, OperatingLengths, ToldLengths


def seen(*lengths: int, times: int = 1) -> ModelLengths:
    """Lengths that took these uncached tokens, in turn."""
    memory = ModelLengths()
    for _ in range(times):
        for length in lengths:
            memory.note(uncached=length, computed=length, offloaded=length > 1000)
    return memory


def test_few_requests_say_nothing() -> None:
    """Below a hundred requests a share is unknown, not zero."""
    assert seen(10, times=99).against(5) is None
    assert seen(10, times=100).against(5) is not None


def test_shares_and_means_are_those_of_what_was_seen() -> None:
    """Half of the prompts at 100 tokens, half at 8,000: known to the width of a bin."""
    view = seen(100, 8000, times=500).against(1000)
    assert view is not None
    assert view.long_share == pytest.approx(0.5, abs=0.01)
    assert view.long_tokens == pytest.approx(8000, rel=0.05)


def test_the_share_of_offloads_is_that_of_late() -> None:
    """A quarter was offloaded; before the first prompt nobody knows."""
    assert ModelLengths().offload_share is None
    assert seen(100, 8000, 100, 100, times=500).offload_share == pytest.approx(0.25, abs=0.001)


def test_what_was_long_ago_is_forgotten() -> None:
    """After five thousand short prompts the long ones before them are under one percent."""
    memory = seen(8000, times=1000)
    for _ in range(5000):
        memory.note(uncached=10, computed=10, offloaded=False)
    view = memory.against(1000)
    assert view is not None
    assert 0 < view.long_share < 0.01


def test_growing_weights_never_overflow() -> None:
    """After more requests than a double's exponent could count, shares are still shares."""
    memory = seen(100, 8000, times=200_000)
    workload = memory.workload()
    assert workload is not None
    assert 1 - workload.share_up_to(1000) == pytest.approx(0.5, abs=0.01)


def test_lengths_of_any_size_are_taken() -> None:
    """Nothing cached or a prompt beyond all bins falls into the outermost ones."""
    memory = seen(0, 10**9, times=50)
    view = memory.against(1000)
    assert view is not None
    assert view.long_share == pytest.approx(0.5, abs=0.02)


def test_models_do_not_mix() -> None:
    """Each model has its own operating length."""
    lengths = OperatingLengths()
    lengths.of("a").note(uncached=5000, computed=5000, offloaded=True)
    assert lengths.of("a").offloaded == 5000
    assert lengths.of("b").offloaded is None


def share_over(memory: ModelLengths, tokens: float) -> float:
    """The share of prompts over a length, as they are remembered."""
    workload = memory.workload()
    assert workload is not None
    return 1 - workload.share_up_to(tokens)


def test_processes_that_tell_each_other_remember_the_same() -> None:
    """However the load is spread: one prompt is one prompt, whoever saw it, and once."""
    one, two = OperatingLengths(), OperatingLengths()
    one.hear({})
    two.hear({})
    for turn in range(100):
        for _ in range(9):
            one.of("m").note(uncached=100, computed=100, offloaded=False)
        two.of("m").note(uncached=8000, computed=8000, offloaded=True)
        if turn % 3 == 0:  # some rounds are lost: what is told is told again
            told = {"one": one.tell()}, {"two": two.tell()}
            one.hear(told[1])
            two.hear(told[0])
    one.hear({"two": two.tell()})
    two.hear({"one": one.tell()})
    for each in (one, two):
        assert each.of("m").seen == 1000
        assert share_over(each.of("m"), 1000) == pytest.approx(0.1, abs=0.02)
        assert each.of("m").offload_share == pytest.approx(0.1, abs=0.02)


def test_a_process_that_begins_takes_the_past_of_others_only_where_it_knows_nothing() -> None:
    """Who remembers what was kept goes on from there; who is born later counts in full."""
    old = OperatingLengths()
    old.of("m")
    for _ in range(5000):
        old.of("m").note(uncached=8000, computed=8000, offloaded=True)
    blank, restored = OperatingLengths(), OperatingLengths()
    kept = seen(100, times=500).keep()
    assert kept is not None
    restored.of("m").restore(kept)
    for each in (blank, restored):
        each.hear({"old": old.tell()})
    assert share_over(blank.of("m"), 1000) == pytest.approx(1.0)
    assert share_over(restored.of("m"), 1000) == pytest.approx(0.0)
    young = OperatingLengths()
    for _ in range(100):
        young.of("m").note(uncached=8000, computed=8000, offloaded=True)
    restored.hear({"old": old.tell(), "young": young.tell()})
    assert share_over(restored.of("m"), 1000) == pytest.approx(100 / 600, abs=0.02)


def test_what_was_kept_is_what_is_known_again() -> None:
    """Shares to the last digit, the weight of what was seen, and the share of offloads."""
    memory = seen(100, 100, 8000, times=100)
    kept = memory.keep()
    assert kept is not None
    again = ModelLengths()
    again.restore(kept)
    assert again.workload() == kept.workload()
    assert again.workload() == memory.workload()
    assert again.seen == 300
    assert again.offload_share == pytest.approx(memory.offload_share)
    again.note(uncached=1, computed=1, offloaded=False)
    again.restore(kept)
    assert again.seen == 301
    assert ModelLengths().keep() is None


def test_a_huge_past_is_taken_in_as_the_thousand_that_count() -> None:
    """Told of a billion prompts, shares stay numbers."""
    memory = seen(100, times=100)
    memory.hear(ToldLengths(10**9, 0, {8: 10**9}))
    assert memory.seen == 1100
    assert memory.workload() is not None
