"""vLLM's wire formats, old and new, broken and unheard of."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmeta.errors import PayloadError
from kvmeta.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, UnknownEvent
from kvmeta.hashing import encode_extra, pack_tokens
from kvmeta.ingest.vllm import decode_batch
from kvmeta.types import EngineLabel, GroupKind

encode = msgspec.msgpack.encode

FIELDS: dict[str, object] = {
    "block_hashes": [11, 12],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None, None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
    "kv_cache_spec_sliding_window": None,
}


def label(number: int) -> EngineLabel:
    return EngineLabel((number % 2**64).to_bytes(8, "big"))


def as_map(**changes: object) -> dict[str, object]:
    return {"type": "BlockStored", **FIELDS, **changes}


def as_array(length: int, **changes: object) -> list[object]:
    return ["BlockStored", *({**FIELDS, **changes}.values())][:length]


def decode_one(event: object) -> BlockStored:
    batch = decode_batch(encode([1.5, [event], 0]))
    assert not batch.faults
    (stored,) = batch.events
    assert isinstance(stored, BlockStored)
    return stored


def decode_removal(event: object) -> BlockRemoved:
    (removal,) = decode_batch(encode([1.5, [event], 0])).events
    assert isinstance(removal, BlockRemoved)
    return removal


def essence(batch: EventBatch) -> list[tuple[object, ...]]:
    """What every format tells alike: older ones leave group, kind and extras out."""
    return [
        (event.labels, event.parent, event.tokens, event.block_size, event.medium, event.lora)
        for event in batch.events
        if isinstance(event, BlockStored)
    ]


def test_r39_every_shape_since_0_10_says_the_same() -> None:
    """Outer array or map, inner arrays of every length or maps, and all of them in one batch."""
    shapes: list[object] = [as_map(), *(as_array(length) for length in range(5, 13))]
    expected = essence(decode_batch(encode([1.0, [as_map()], 0])))
    for shape in shapes:
        for outer in (
            [1.0, [shape], 0],
            [1.0, [shape]],
            {"ts": 1.0, "events": [shape], "data_parallel_rank": 0},
        ):
            batch = decode_batch(encode(outer))
            assert essence(batch) == expected
            assert not batch.faults
    mixed = decode_batch(encode([1.0, shapes, None]))
    assert essence(mixed) == expected * len(shapes)


def test_the_batch_tells_its_time_and_rank() -> None:
    """Both may be missing or odd in some producers."""
    assert decode_batch(encode([7, [], 3])) == EventBatch(7.0, (), 3)
    assert decode_batch(encode({"events": []})) == EventBatch(0.0, (), None)
    assert decode_batch(encode(["soon", [], "first"])) == EventBatch(0.0, (), None)


def test_every_field_of_a_modern_event_is_read() -> None:
    """Kind, window, group, medium, adapter, salt and the rest of the extra keys."""
    event = decode_one(
        as_map(
            medium="cpu_pinned",
            lora_name="ada",
            extra_keys=[["ada", ["image", 3], "salt"], ["ada"]],
            group_idx=4,
            kv_cache_spec_kind="sliding_window",
            kv_cache_spec_sliding_window=64,
            session_id="unused",
        )
    )
    assert event == BlockStored(
        labels=(label(11), label(12)),
        parent=None,
        tokens=pack_tokens([1, 2, 3, 4]),
        block_size=2,
        medium="CPU",
        group=4,
        kind=GroupKind.SLIDING_WINDOW,
        window=64,
        lora="ada",
        salt="salt",
        extras=(encode_extra([["image", 3]]), b""),
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("mamba", GroupKind.RECURRENT),
        ("mla_attention", GroupKind.FULL_ATTENTION),
        ("sliding_window_mla", GroupKind.SLIDING_WINDOW),
        ("attention_of_tomorrow", GroupKind.FULL_ATTENTION),
    ],
)
def test_kinds_are_sorted_into_the_three_rules(kind: str, expected: GroupKind) -> None:
    """What nobody knows needs every block."""
    assert decode_one(as_map(kv_cache_spec_kind=kind)).kind is expected


def test_a_label_is_its_64_bits_whatever_the_spelling() -> None:
    """0.10 sent signed integers, later engines unsigned ones: removals must find stores."""
    signed = decode_removal({"type": "BlockRemoved", "block_hashes": [-1, -(2**63)]})
    unsigned = decode_removal({"type": "BlockRemoved", "block_hashes": [2**64 - 1, 2**63]})
    assert signed.labels == unsigned.labels == (b"\xff" * 8, b"\x80" + b"\x00" * 7)
    digest = decode_removal({"type": "BlockRemoved", "block_hashes": [b"x" * 32]})
    assert digest.labels == (b"x" * 32,)


def test_a_bare_string_of_the_first_block_is_a_salt_unless_it_is_the_adapter() -> None:
    """The keys are untagged; `lora_name` tells them apart, also when both are equal."""
    assert decode_one(as_map(extra_keys=[["s"], None])).salt == "s"
    both = decode_one(as_map(lora_name="x", extra_keys=[["x", "x"], ["x"]]))
    assert (both.lora, both.salt, both.extras) == ("x", "x", (b"", b""))
    only = decode_one(as_map(lora_name="x", extra_keys=[["x"], ["x"]]))
    assert only.salt is None


def test_a_string_in_a_later_block_is_no_salt() -> None:
    """Only the block at token 0 carries the salt; elsewhere a string is an extra like others."""
    event = decode_one(as_map(extra_keys=[None, ["digest"]]))
    assert event.salt is None
    assert event.extras == (b"", encode_extra(["digest"]))
    child = decode_one(as_map(parent_block_hash=9, extra_keys=[["s"], None]))
    assert child.salt is None


def test_an_adapter_known_by_number_only_matches_no_named_one() -> None:
    """0.10 had no names; blocks of an unknown adapter must not pass for the base model's."""
    assert decode_one(as_array(6, lora_id=1)).lora not in (None, "1")


def test_extras_that_were_not_told_differ_from_none() -> None:
    """An array that reaches past them says none; a map that omits them, or a tier, says nothing."""
    silent = {key: value for key, value in as_map().items() if key != "extra_keys"}
    assert decode_one(silent).extras is None
    assert decode_one(as_array(8)).extras is None
    assert decode_one(as_array(9, extra_keys=None)).extras == (b"", b"")
    assert decode_one(as_array(9, extra_keys=None, medium="CPU")).extras is None


def test_sparse_events_and_placeholders_are_no_dense_ones() -> None:
    """Fewer labels than blocks, no labels, or no tokens: positions mean nothing."""
    assert decode_one(as_map()).is_dense
    sparse = decode_one(as_map(block_hashes=[11], extra_keys=[None]))
    empty = decode_one(as_map(block_hashes=[]))
    placeholder = decode_one(as_map(token_ids=[], block_size=0))
    assert not any(event.is_dense for event in (sparse, empty, placeholder))


def test_what_another_machine_holds_is_a_tier_of_its_own() -> None:
    """A remote copy is not this engine's memory."""
    assert decode_one(as_map(medium="CPU", locality="REMOTE")).medium == "REMOTE:CPU"
    removal = {"type": "BlockRemoved", "block_hashes": [], "medium": "CPU", "locality": "REMOTE"}
    assert decode_removal(removal).medium == "REMOTE:CPU"


def test_r47_an_absent_medium_is_the_gpu() -> None:
    """Old engines had one tier."""
    assert decode_one(as_array(5)).medium == "GPU"
    assert decode_removal({"type": "BlockRemoved", "block_hashes": [1]}).medium == "GPU"
    assert decode_removal(["BlockRemoved", [1], None, 2]) == BlockRemoved((label(1),), "GPU", 2)


def test_r39_unknown_event_types_are_told_not_refused() -> None:
    """A newer engine's events pass by, in both encodings."""
    batch = decode_batch(encode([1.0, [["Tomorrow", 1], {"type": "Later"}, ["AllBlocksCleared"]]]))
    assert batch.events == (UnknownEvent("Tomorrow"), UnknownEvent("Later"), AllBlocksCleared())
    assert not batch.faults


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (17, "malformed_event"),
        ([], "malformed_event"),
        ({"block_hashes": [1]}, "malformed_event"),
        (as_map(block_hashes="x"), "block_hash"),
        (as_map(block_hashes=[1.5, 2]), "block_hash"),
        (as_map(block_hashes=[True, 2]), "block_hash"),
        (as_map(block_hashes=[b"", 2]), "block_hash"),
        (as_map(parent_block_hash="x"), "block_hash"),
        (as_map(token_ids=[-1, 2, 3, 4]), "token_ids"),
        (as_map(token_ids=None), "token_ids"),
        (as_map(block_size=-2), "block_size"),
        (as_map(block_size=None), "block_size"),
        (as_map(group_idx="0"), "group_idx"),
        (as_map(group_idx=10**6), "group_idx"),
        (as_map(medium=3), "medium"),
        (as_map(lora_name=3), "lora_name"),
        (as_map(kv_cache_spec_kind=3), "kv_cache_spec_kind"),
        (as_map(kv_cache_spec_sliding_window=0), "kv_cache_spec_sliding_window"),
        (as_map(extra_keys=[None]), "extra_keys"),
        (as_map(extra_keys=[None, 5]), "extra_keys"),
        (["BlockRemoved"], "block_hash"),
        (["BlockStored", [1]], "token_ids"),
    ],
)
def test_r39_one_bad_event_costs_itself_alone(event: object, cause: str) -> None:
    """Its neighbours are applied and its cause is counted."""
    batch = decode_batch(encode([1.0, [as_map(), event, ["AllBlocksCleared"]], 0]))
    assert [type(good) for good in batch.events] == [BlockStored, AllBlocksCleared]
    assert batch.faults == {cause: 1}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        encode(3),
        encode("x"),
        encode([1.0]),
        encode([1.0, {}]),
        encode({}),
        b"\x91" * 5000,
    ],
)
def test_r39_what_is_no_batch_is_refused(payload: bytes) -> None:
    """One typed error, for the caller to count."""
    with pytest.raises(PayloadError):
        decode_batch(payload)


def test_r51_no_repr_shows_prompts_or_salts() -> None:
    """Events may be logged; what is in them may not."""
    shown = repr(
        decode_one(as_map(token_ids=[424242, 2, 3, 4], extra_keys=[["tenant-salt"], None]))
    )
    assert "tenant-salt" not in shown
    assert pack_tokens([424242])[:2].hex() not in shown
    assert "424242" not in shown


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_r39_any_bytes_are_a_batch_or_a_payload_error(payload: bytes) -> None:
    """Nothing that a network can bring raises anything else."""
    with contextlib.suppress(PayloadError):
        assert isinstance(decode_batch(payload), EventBatch)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        st.text(max_size=5),
        st.binary(max_size=9),
        st.sampled_from(
            [*FIELDS, "type", "BlockStored", "BlockRemoved", "AllBlocksCleared", "REMOTE"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6), st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@st.composite
def almost_events(draw: st.DrawFn) -> object:
    """Events with any number of fields replaced by anything."""
    changes: Mapping[str, object] = draw(
        st.dictionaries(st.sampled_from([*FIELDS, "locality", "type"]), VALUES, max_size=4)
    )
    event = {**as_map(), **changes}
    if draw(st.booleans()):
        return event
    return [event.pop("type"), *event.values()][: draw(st.integers(0, 13))]


@settings(max_examples=800, deadline=None)
@given(st.lists(st.one_of(almost_events(), VALUES), max_size=4), VALUES, VALUES)
def test_r39_almost_events_are_read_or_counted(
    events: list[object], timestamp: object, rank: object
) -> None:
    """Every event of a batch is either in it or among its faults."""
    batch = decode_batch(encode([timestamp, events, rank]))
    assert len(batch.events) + sum(batch.faults.values()) == len(events)
