"""Request bodies: what is refused, what is read, what is taken away, and that the rest stays."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.domain.errors import BadRequest
from router.service.bodies import (
    BodyKind,
    Conversation,
    IdsPrompt,
    OpaquePrompt,
    TextPrompt,
    read_body,
)


def completion(**members: object) -> bytes:
    return json.dumps({"model": "m", "prompt": "p"} | members).encode()


def chat(**members: object) -> bytes:
    return json.dumps({"model": "m", "messages": []} | members).encode()


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"", None),
        (b"  \n", None),
        (b"{not json", None),
        (b"[1]", None),
        (b'"text"', None),
        (b'{"model":"m","prompt":"p"} x', None),
        (b'{"model":"m","prompt":"p","a":NaN}', None),
        (b'{"a":' + b"[" * 200_000, None),
        (b'{"prompt":"p"}', "model"),
        (b'{"model":null,"prompt":"p"}', "model"),
        (b'{"model":"","prompt":"p"}', "model"),
        (b'{"model":7,"prompt":"p"}', "model"),
        (b'{"model":"m"}', "prompt"),
        (b'{"model":"m","prompt":null}', "prompt"),
        (b'{"model":"m","prompt":7}', "prompt"),
        (b'{"model":"m","prompt":{}}', "prompt"),
        (b'{"model":"m","prompt":[]}', "prompt"),
        (b'{"model":"m","prompt":[1,"a"]}', "prompt"),
        (b'{"model":"m","prompt":["a",1]}', "prompt"),
        (b'{"model":"m","prompt":[1.5]}', "prompt"),
        (b'{"model":"m","prompt":[[1],"a"]}', "prompt"),
        (b'{"model":"m","prompt":"\xff"}', "prompt"),
        (b'{"model":"m","prompt":"p","stream":"yes"}', "stream"),
        (b'{"model":"m","prompt":"p","stream":1}', "stream"),
        (b'{"model":"m","prompt":"p","cache_salt":7}', "cache_salt"),
        (b'{"model":"m","prompt":"p","vllm_xargs":{"\xff":1}}', "vllm_xargs"),
    ],
)
def test_bad_completions_are_refused_by_name(raw: bytes, param: str | None) -> None:
    """Each fault is the client's, and the answer names the field."""
    with pytest.raises(BadRequest) as caught:
        read_body(raw, BodyKind.COMPLETION)
    assert caught.value.param == param
    assert param or caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    "messages", [b"", b',"messages":"x"', b',"messages":{}', b',"messages":null']
)
def test_bad_conversations_are_refused_by_name(messages: bytes) -> None:
    """A chat needs an array of messages."""
    with pytest.raises(BadRequest) as caught:
        read_body(b'{"model":"m"' + messages + b"}", BodyKind.CHAT)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("prompt", "expected", "disaggregable"),
    [
        ("text", TextPrompt("text"), True),
        ([1, 2, 3], IdsPrompt([1, 2, 3]), True),
        (["text"], TextPrompt("text"), True),
        ([[1, 2]], IdsPrompt([1, 2]), True),
        (["a", "b"], OpaquePrompt(2), False),
        ([[1], [2], [3]], OpaquePrompt(3), False),
    ],
)
def test_every_shape_of_a_prompt_is_told_apart(
    prompt: object, expected: object, disaggregable: bool
) -> None:
    """A list of one prompt is one prompt; several are for one instance."""
    body = read_body(completion(prompt=prompt), BodyKind.COMPLETION)
    assert body.prompt == expected
    assert body.disaggregable is disaggregable


@pytest.mark.parametrize(
    "member",
    [
        {"echo": True},
        {"prompt_logprobs": 0},
        {"prompt_logprobs": 1},
        {"use_beam_search": True},
        {"prompt": None, "prompt_embeds": "AAAA"},
    ],
)
def test_r24_requests_about_the_prompt_stay_whole(member: dict[str, object]) -> None:
    """What only the computing engine can answer is never split."""
    assert not read_body(completion(**member), BodyKind.COMPLETION).disaggregable
    off = dict.fromkeys(("echo", "prompt_logprobs", "use_beam_search"))
    assert read_body(completion(**off), BodyKind.COMPLETION).disaggregable


@pytest.mark.parametrize(
    ("number", "several"), [(b"1", False), (b"0", False), (b"2", True), (b"9" * 5000, True)]
)
def test_answers_are_counted_whatever_their_number(number: bytes, several: bool) -> None:
    """More than one answer is indivisible, also where no machine counts so far."""
    raw = b'{"model":"m","prompt":"p","n":' + number + b"}"
    assert read_body(raw, BodyKind.COMPLETION).disaggregable is not several


def test_stored_conversations_stay_with_their_engine() -> None:
    """A Responses call that builds on a stored one, or is answered later, is never split."""
    plain = b'{"model":"m","input":"hi"}'
    assert read_body(plain, BodyKind.RESPONSES).disaggregable
    for more in (b',"previous_response_id":"r"', b',"background":true', b',"conversation":"c"'):
        assert not read_body(plain[:-1] + more + b"}", BodyKind.RESPONSES).disaggregable


@pytest.mark.parametrize(
    ("content", "media"),
    [
        ("text", False),
        ([{"type": "text", "text": "image_url"}], False),
        ([{"type": "image_url", "image_url": {"url": "x"}}], True),
        ([{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {}}], True),
        ([{"image_url": {"url": "x"}}], True),
        ([{"type": "text", "text": '{"type": "image_url", "image_url": 1}'}], False),
        ([{"type": "tool_use", "id": "x"}], False),
        (None, False),
        ([7], False),
    ],
)
def test_media_are_found_wherever_they_stand(content: object, media: bool) -> None:
    """Parts that are no text are seen; text about them is not taken for them."""
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": content}]
    body = read_body(chat(messages=messages), BodyKind.CHAT)
    assert body.media is media
    assert isinstance(body.prompt, Conversation)


def test_usage_is_wanted_only_when_asked_for() -> None:
    """`include_usage` is what the client said, nothing else."""
    assert read_body(chat(stream_options={"include_usage": True}), BodyKind.CHAT).include_usage
    for options in ({"include_usage": False}, {}, None, 7):
        assert not read_body(chat(stream_options=options), BodyKind.CHAT).include_usage


def test_r34_a_body_that_needs_no_change_is_its_own_bytes() -> None:
    """Spacing, order, big integers and odd floats of the client are kept to the byte."""
    raw = b'{ "x":9007199254740993 ,"model" : "m","y": 1e-7,"prompt":"p", "guided_json":[1, 2]}'
    body = read_body(raw, BodyKind.COMPLETION)
    assert body.raw is raw
    assert body.form({}) is raw
    assert body.form({"absent": None}) is raw
    assert body.form({"model": b'"m"'}) is raw


def test_r34_a_change_leaves_every_other_value_its_bytes() -> None:
    """Replacing, adding and removing touch one member each."""
    raw = b'{"x":9007199254740993 ,"model" : "m","y": [1e-7,  2.0],"prompt":"p"}'
    body = read_body(raw, BodyKind.COMPLETION)
    formed = body.form({"model": b'"n"', "prompt": None, "new": b'{ "a":1}'})
    assert formed == b'{"x":9007199254740993,"model":"n","y":[1e-7,  2.0],"new":{ "a":1}}'
    assert body.raw is raw


def test_r25_what_is_the_gateways_is_taken_away() -> None:
    """Transfer parameters go, from wherever an engine reads them; priority and salt stay."""
    owned = {"kv_transfer_params": {"remote_host": "h"}, "ec_transfer_params": {"a": 1}}
    body = read_body(
        completion(
            **owned,
            vllm_xargs={**owned, "kv_cache_report_mode": "full", "k": 1},
            priority=3,
            cache_salt="s",
        ),
        BodyKind.COMPLETION,
    )
    assert json.loads(body.raw) == {
        "model": "m",
        "prompt": "p",
        "vllm_xargs": {"k": 1},
        "priority": 3,
        "cache_salt": "s",
    }
    assert body.cache_salt == "s"
    assert "kv_transfer_params" not in body.fields


def test_r25_keys_are_recognised_however_they_are_spelled() -> None:
    """JSON escapes and repeated keys hide nothing."""
    raw = (
        b'{"model":"m","prompt":"p","kv_transfer_\\u0070arams":{"remote_host":"h"},'
        b'"vllm_xargs":{"k":1},"vllm_xargs":{"kv_transfer_params":"h"},'
        b'"kv_transfer_params":{"remote_host":"h"}}'
    )
    body = read_body(raw, BodyKind.COMPLETION)
    assert json.loads(body.raw) == {"model": "m", "prompt": "p", "vllm_xargs": {}}


@pytest.mark.parametrize("members", [{}, {"cache_salt": "theirs"}])
def test_another_salt_is_all_that_changes(members: dict[str, object]) -> None:
    """A tenant's salt takes the client's place, as if the client had sent it."""
    salted = read_body(completion(**members), BodyKind.COMPLETION).with_salt("ours")
    again = read_body(salted.raw, BodyKind.COMPLETION)
    assert salted.raw == again.raw
    assert salted.cache_salt == again.cache_salt == "ours"
    assert list(salted.fields) == list(again.fields)
    assert json.loads(salted.form({"x": b"1"})) == json.loads(salted.raw) | {"x": 1}


def test_a_part_of_a_body_can_be_taken() -> None:
    """Calls that need some members get those, with the client's bytes."""
    body = read_body(chat(messages=[{"role": "user"}], tools=[1], other=2), BodyKind.CHAT)
    taken = body.select(["messages", "tools", "absent"], {"model": b'"n"'})
    assert json.loads(taken) == {"messages": [{"role": "user"}], "tools": [1], "model": "n"}
    assert body.decode("tools") == [1]
    assert body.decode("absent") is None
    assert body.decode_messages() == [{"role": "user"}]
    with pytest.raises(BadRequest):
        read_body(chat(messages=[1]), BodyKind.CHAT).decode_messages()


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=6).map("x-{}".format), VALUES, max_size=6),
    st.sampled_from([None, 0, 3]),
    st.booleans(),
)
def test_forming_changes_what_it_is_told_and_nothing_else(
    members: dict[str, object], indent: int | None, escape: bool
) -> None:
    """For any body in any layout the other values are equal, and so are their texts."""
    sent = {**members, "model": "m", "prompt": "p"}
    raw = json.dumps(sent, indent=indent, ensure_ascii=escape).encode("utf-8", "surrogatepass")
    body = read_body(raw, BodyKind.COMPLETION)
    formed = body.form({"model": b'"other"', "added": b"[1]"})
    assert json.loads(formed) == {**sent, "model": "other", "added": [1]}
    for name in members:
        assert bytes(body.fields[name]) in formed
