"""Texts cut at special tokens and remembered in parts give the ids of the whole, always."""

from __future__ import annotations

import functools
import json
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from router.adapters.byte_level import NotExpressible
from router.adapters.segments import SegmentCache, read_segmenter
from router.adapters.tokenizers import HfTokenizer
from router.adapters.turn_tokenizers import TurnTokenizer, find_frame
from tests.fakes.tokenizers import SPECIALS, changed, kinds, train

SPOKEN = st.sampled_from(
    [
        *SPECIALS,
        "<|turn",
        "|>",
        "<|turn_end|><|turn|>",
        " ",
        "\n",
        "\n\n",
        "1234",
        "don't",
        "e\u0301",
        "\u0338",
        "\u0301",
        "字",
        "😀",
        "\U0001fae8",
        "the other " * 20,
    ]
)
TEXTS = st.lists(SPOKEN | st.text(max_size=12), max_size=16).map("".join)
KINDS = ("gpt2", "llama3", "qwen2", "o200k")


def turns_of(tokenizer: Tokenizer, max_bytes: int, *, exact: bool = False) -> TurnTokenizer:
    wrapped = HfTokenizer(tokenizer, chat_template=None, special_tokens={})
    document = None if exact else json.loads(tokenizer.to_str())
    return TurnTokenizer("m", wrapped, max_bytes=max_bytes, document=document)


@functools.cache
def improved(kind: str, max_bytes: int) -> TurnTokenizer:
    """A tokenizer whose memory lives on from example to example, as a gateway's does.

    The patterns of today's models are proved to mean the same to both engines.
    """
    tokenizer = turns_of(kinds()[kind], max_bytes)
    tokenizer.improve()
    assert tokenizer.describe()["encoder"] == "tiktoken"
    return tokenizer


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4), special=st.booleans())
def test_remembered_turns_give_the_ids_of_the_whole(
    kind: str, texts: list[str], special: bool
) -> None:
    """Each beginning of a conversation, seen before or not, has the ids of a full encode.

    Special tokens may be spelled out anywhere, halved, or stand before marks that would compose
    with their last character; 2,000 bytes of memory hold a few turns, so that others leave it.
    """
    whole = kinds()[kind]
    tokenizer = improved(kind, 2_000)
    said = ""
    for text in texts:
        said += text
        expected = whole.encode(said, add_special_tokens=special).ids
        assert list(tokenizer.encode(said, add_special_tokens=special)) == expected


@given(
    operations=st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9), st.integers(0, 90)), max_size=60
    ),
    max_bytes=st.integers(0, 2_000),
)
def test_the_memory_is_bounded_and_scopes_are_apart(
    operations: list[tuple[str, int, int]], max_bytes: int
) -> None:
    """It never takes more than it may, and finds only what the same scope kept."""
    cache = SegmentCache(max_bytes)
    kept: dict[tuple[str, str], int] = {}
    for scope, number, length in operations:
        text = f"text {number}"
        found = cache.find(scope, [text])
        if text in found:
            assert len(found[text]) == kept[scope, text]
        else:
            kept[scope, text] = length
            cache.keep(scope, {text: _ids(length)})
        assert cache.bytes <= max_bytes
        assert (cache.bytes == 0) == (len(cache) == 0)


def _ids(length: int) -> array[int]:
    return array("I", range(length))


def test_what_was_used_longest_ago_leaves_first() -> None:
    """A turn that is asked for again outlives one that is not."""
    cache = SegmentCache(600)
    cache.keep("a", {"one": _ids(1), "two": _ids(1)})
    assert cache.find("a", ["one"])
    cache.keep("a", {"three": _ids(1)})
    assert cache.find("a", ["one", "two", "three"]).keys() == {"one", "three"}


def test_another_tenant_finds_nothing() -> None:
    """The same words of two tenants are two segments, so none can time what another said."""
    tokenizer = improved("o200k", 2_000)
    text = "the other then there " * 10
    for scope, found in (("a", 0), ("b", 0), ("a", 1)):
        before = int(str(tokenizer.describe()["segments_found"]))
        tokenizer.encode(text, scope=scope)
        assert tokenizer.describe()["segments_found"] == before + found


@pytest.mark.parametrize("option", ["lstrip", "rstrip", "single_word"])
def test_special_tokens_that_look_around_are_no_cuts(option: str) -> None:
    """Where a special token takes the blanks around it, texts are encoded whole."""
    tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.add_special_tokens([AddedToken("<|wide|>", normalized=False, **{option: True})])
    with pytest.raises(NotExpressible, match="around it"):
        read_segmenter(json.loads(tokenizer.to_str()), None)
    turns = turns_of(tokenizer, 1000)
    turns.improve()
    text = f"the {SPECIALS[1]} other <|wide|> then"
    assert list(turns.encode(text)) == tokenizer.encode(text).ids
    assert turns.describe()["encoder"] == "huggingface"
    assert "around it" in str(turns.describe()["notes"])


def test_a_split_that_depends_on_the_place_is_no_cut() -> None:
    """SentencePiece's Metaspace marks the beginning of a text, so parts are not like the whole."""
    tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    with pytest.raises(NotExpressible, match="Metaspace"):
        read_segmenter(json.loads(tokenizer.to_str()), None)


def test_two_passes_of_special_tokens_are_no_cuts() -> None:
    """Tokens that are looked for after others may overlap them."""

    def mix(document: dict[str, Any]) -> None:
        document["added_tokens"][0]["normalized"] = True

    with pytest.raises(NotExpressible, match="two passes"):
        read_segmenter(changed(kinds()["o200k"], mix), None)


def test_the_frame_of_whole_texts_is_found() -> None:
    """What a model puts before every text is known; without such a rule it is nothing."""
    assert find_frame(kinds()["llama3"]) == ((0,), ())
    assert find_frame(kinds()["o200k"]) == ((), ())


def test_exact_leaves_everything_to_the_tokenizer() -> None:
    """With `encoder: hf` nothing is proved, and nothing remembered."""
    turns = turns_of(kinds()["o200k"], 100_000, exact=True)
    turns.improve()
    turns.encode("the other " * 50)
    told = turns.describe()
    assert (told["encoder"], told["checked"], told["remembered_bytes"]) == ("huggingface", True, 0)
