"""Laws of the event stream: cuts change nothing, copies are exact, errors are events."""

from __future__ import annotations

import itertools
import json
import re

from hypothesis import given
from hypothesis import strategies as st

from router.service.answers import Edits, Rewriter
from router.service.sse import EventStream

DONE = b"data: [DONE]\n\n"
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
MEMBERS = st.dictionaries(
    st.sampled_from(["id", "model", "usage", "kv_transfer_params", "choices", "x\u2028\x0b"]),
    JSON_VALUES,
    max_size=5,
)
FIELDS = st.one_of(
    st.sampled_from(
        [b"", b": ping", b"event: x", b"id: 7", b"retry: 5", b"data", b"data:", b"junk"]
    ),
    st.binary(max_size=20).map(lambda raw: b"data: " + re.sub(rb"[\r\n]", b"", raw)),
    MEMBERS.map(lambda members: b"data: " + json.dumps(members, ensure_ascii=False).encode()),
    MEMBERS.map(lambda members: b"data:" + json.dumps(members).encode()),
    MEMBERS.map(
        lambda members: b"\n".join(
            b"data: " + line for line in json.dumps(members, indent=1).encode().split(b"\n")
        )
    ),
)
STREAMS = st.lists(st.tuples(FIELDS, ENDS), max_size=12).map(
    lambda lines: b"".join(field + end for field, end in lines)
)
CUTS = st.lists(st.integers(0, 400), max_size=12)
EDITS = st.builds(
    Edits,
    cached_tokens=st.none() | st.integers(0, 99),
    model=st.none() | st.sampled_from(["m", "name\n\u2028"]),
)


def cut(whole: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(whole), *(place for place in cuts if place < len(whole))})
    return [whole[start:end] for start, end in itertools.pairwise(places)]


def relay(pieces: list[bytes], edits: Edits) -> bytes:
    stream = EventStream(Rewriter(edits))
    return b"".join([*map(stream.feed, pieces), stream.finish()])


def read_events(raw: bytes) -> list[bytes]:
    """The reference reader: the data of each dispatched event, as WHATWG has it."""
    events: list[bytes] = []
    data: list[bytes] = []
    for line in re.split(rb"\r\n|\r|\n", raw)[:-1]:  # a last line without end is none
        name, _, value = line.partition(b":")
        if not line:
            if data:
                events.append(b"\n".join(data))
            data = []
        elif name == b"data":
            data.append(value.removeprefix(b" "))
    return events


@given(STREAMS, CUTS, EDITS)
def test_cuts_change_nothing(body: bytes, cuts: list[int], edits: Edits) -> None:
    """However the network cuts a stream, the client gets the same bytes."""
    whole = body + b"\n" + DONE
    assert relay(cut(whole, cuts), edits) == relay([whole], edits)
    assert relay([whole[n : n + 1] for n in range(len(whole))], edits) == relay([whole], edits)


@given(st.lists(st.tuples(st.binary(max_size=30), ENDS), max_size=12), CUTS)
def test_what_needs_no_change_is_copied(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    """Arbitrary bytes that carry nothing of ours come out as they went in."""
    body = b"".join(line + end for line, end in lines) + b"\n" + DONE
    assert relay(cut(body, cuts), Edits()) == body


@given(STREAMS, EDITS)
def test_only_the_three_members_ever_change(body: bytes, edits: Edits) -> None:
    """Event by event the data is equal but for what is ours to change, and nothing is lost."""
    whole = body + b"\n" + DONE
    before, after = read_events(whole), read_events(relay([whole], edits))
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        try:
            was, now = json.loads(old), json.loads(new)
        except ValueError:
            continue  # a line of it was an object: no reader takes the whole for one
        if was == now:
            continue
        assert was.keys() == now.keys()
        changed = {name for name in was if was[name] != now[name]}
        assert changed <= {"kv_transfer_params", "model", "usage"}
        if "kv_transfer_params" in was:
            assert now["kv_transfer_params"] is None


@given(STREAMS, CUTS, EDITS)
def test_transfer_parameters_never_pass(body: bytes, cuts: list[int], edits: Edits) -> None:
    """No event that a client can read carries transfer parameters."""
    for data in read_events(relay(cut(body + b"\n" + DONE, cuts), edits)):
        try:
            members = json.loads(data)
        except ValueError:
            continue
        if isinstance(members, dict):
            assert members.get("kv_transfer_params") is None


@given(STREAMS, CUTS)
def test_complete_lines_are_never_held(body: bytes, cuts: list[int]) -> None:
    """After each piece everything up to the last line's end has left, if no object is open."""
    stream = EventStream(Rewriter(Edits()))
    plain = b"".join(
        line for line in re.findall(rb"[^\r\n]*[\r\n]", body) if not line.startswith(b"data")
    )
    taken = given_out = b""
    for piece in cut(plain, cuts):
        taken += piece
        given_out += stream.feed(piece)
        complete = re.match(rb"(?s).*[\r\n]", taken)
        assert given_out == (complete[0] if complete else b"")


@given(STREAMS, st.integers(0, 400), CUTS)
def test_a_broken_stream_ends_in_one_error_event(body: bytes, end: int, cuts: list[int]) -> None:
    """Wherever a stream breaks off, a reader sees its whole events and then the error."""
    broken = body[:end]
    stream = EventStream(Rewriter(Edits()))
    out = b"".join(map(stream.feed, cut(broken, cuts)))
    out += stream.break_off("gone", kind="upstream_error", code=502)
    events = read_events(out)
    assert json.loads(events[-1])["error"]["message"] == "gone"
    whole = read_events(broken)
    assert len(whole) <= len(events) - 1 <= len(whole) + 1
