"""Frames of publishers and replays, read from the right."""

from __future__ import annotations

import pytest

from kvmeta.errors import FrameError
from kvmeta.ingest.sequences import LiveMessage, ReplayAnswer, ReplayEnd
from kvmeta.ingest.subscriber import END_OF_REPLAY, parse_answer, parse_message

SEVEN = (7).to_bytes(8, "big")


@pytest.mark.parametrize("before", [[], [b"topic"], [b"", b"topic"]])
def test_r42_two_three_and_four_frames_are_the_same(before: list[bytes]) -> None:
    """Payload last, sequence before it, whatever stands in front."""
    assert parse_message([*before, SEVEN, b"payload"]) == LiveMessage(7, b"payload")
    assert parse_answer([*before, SEVEN, b"payload"]) == ReplayAnswer(7, b"payload")
    assert parse_answer([*before, END_OF_REPLAY, b""]) == ReplayEnd()


@pytest.mark.parametrize("frames", [[], [b"payload"], [b"short", b"payload"], [b"", b"payload"]])
def test_frames_without_a_sequence_are_refused(frames: list[bytes]) -> None:
    """The caller counts them."""
    with pytest.raises(FrameError):
        parse_message(frames)
    with pytest.raises(FrameError):
        parse_answer(frames)
