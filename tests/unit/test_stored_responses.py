"""Who keeps which response: bounded, expiring, each tenant's own; and ids read off answers."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.service.stored_responses import IdSpotter, Origin, StoredResponses
from tests.fakes.clocks import FakeClock

HERE = Origin("d0", "tiny")


def test_what_is_noted_is_found_by_its_tenant_alone() -> None:
    """An id is found by the tenant whose request made it, and by nobody else."""
    stored = StoredResponses(FakeClock())
    stored.note("acme", "resp_1", HERE)
    assert stored.find("acme", "resp_1") == HERE
    assert stored.find("zeta", "resp_1") is None
    assert stored.find("acme", "resp_2") is None


def test_the_longest_unused_go_first() -> None:
    """Over the bound the response that nobody asked for the longest is forgotten."""
    stored = StoredResponses(FakeClock(), max_stored=2)
    for name in ("a", "b"):
        stored.note("acme", name, HERE)
    stored.find("acme", "a")
    stored.note("acme", "c", HERE)
    assert [name for name in "abc" if stored.find("acme", name)] == ["a", "c"]


def test_entries_expire() -> None:
    """An entry is good until its age, however often it is read, and then it is gone."""
    clock = FakeClock()
    stored = StoredResponses(clock, max_age=10)
    stored.note("acme", "a", HERE)
    clock.advance(10)
    assert stored.find("acme", "a") == HERE
    clock.advance(1)
    assert stored.find("acme", "a") is None
    assert len(stored) == 0


@pytest.mark.parametrize("name", ["", "a/b", "a?b", "ä", "a b", "a\r\n", "x" * 257, "../admin"])
def test_ids_that_no_path_can_carry_are_left_out(name: str) -> None:
    """An engine's odd id is not remembered: it would have to be written into a path."""
    stored = StoredResponses(FakeClock())
    stored.note("acme", name, HERE)
    assert len(stored) == 0


STREAM = (
    b": hello\n\nevent: response.created\r\n"
    b'data: {"type":"response.created","response":{"id":"resp_1","output":[]}}\r\n\r\n'
    b'event: x\ndata: {"response":{"id":"resp_2"}}\n\n'
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_the_first_event_tells_the_id_however_it_is_cut(cuts: list[int]) -> None:
    """The id of a stream is told once, whatever pieces it comes in."""
    found: list[str] = []
    spotter = IdSpotter(found.append)
    places = [0, *sorted(cuts), len(STREAM)]
    for start, end in itertools.pairwise(places):
        spotter.feed(STREAM[start:end])
    assert found == ["resp_1"]


@pytest.mark.parametrize(
    "stream",
    [
        b'data: {"response":{}}\n',
        b"data: [DONE]\n",
        b"data: {\n",
        b"data: \xff\n",
        b"x" * 300_000 + b'\ndata: {"response":{"id":"resp_1"}}\n',
    ],
)
def test_streams_without_an_id(stream: bytes) -> None:
    """A stream whose first event has no id, or comes too late, tells none and harms nobody."""
    found: list[str] = []
    spotter = IdSpotter(found.append)
    for start in range(0, len(stream), 10_000):
        spotter.feed(stream[start : start + 10_000])
    spotter.feed(b'data: {"response":{"id":"resp_9"}}\n')
    assert found == []


def test_whole_answers() -> None:
    """A whole response tells its id; an error has none."""
    found: list[str] = []
    spotter = IdSpotter(found.append)
    for body in ({"error": {"message": "no"}}, {"id": 7}, [], {"id": "resp_1", "output": [{}]}):
        spotter.read_whole(json.dumps(body).encode())
    spotter.read_whole(b"\xff")
    spotter.read_whole(b'{"a":' * 10_000 + b"1" + b"}" * 10_000)
    assert found == ["resp_1"]
