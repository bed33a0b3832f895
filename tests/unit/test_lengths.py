"""What the gateway remembers of the lengths that it saw."""

from __future__ import annotations

import pytest

from router.service.lengths import ModelLengths, OperatingLengths


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
