"""tiktoken in the place of a tokenizer: only where it is proved to be the same."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import Unigram

from router.adapters.byte_level import NotExpressible, read_byte_level
from router.adapters.same_encoding import (
    FastEncoder,
    characters_by_category,
    compare,
    find_differences,
    match_doubtful,
    prove_same,
    sample_texts,
)
from tests.fakes.tokenizers import LLAMA3, changed, kinds, split_by, train


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    encoded: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return encoded


def both(document: dict[str, Any]) -> tuple[FastEncoder, Callable[[str], list[int]]]:
    """Both encoders of a document, without a proof."""
    tokenizer = Tokenizer.from_str(json.dumps(document))

    def slow(text: str) -> list[int]:
        return ids(tokenizer, text)

    bpe = read_byte_level(document)
    return FastEncoder(bpe, slow=slow, doubtful=[], normalizes=False), slow


def test_characters_of_another_class_are_found_and_left_to_the_tokenizer() -> None:
    """Where one engine takes marks for letters, exactly the marks are found to differ."""
    other = LLAMA3.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+")
    assert other != LLAMA3
    characters = characters_by_category()
    different = find_differences(other, train(split_by(LLAMA3)), characters)
    marks = {point for category in ("Mn", "Mc", "Me") for point in characters[category]}
    assert different == marks


def test_patterns_that_differ_over_ascii_are_refused() -> None:
    """A difference that any text may meet leaves nothing to gain."""
    other = LLAMA3.replace(r"?\p{L}+", r"?\p{Ll}+")
    with pytest.raises(NotExpressible, match="differ over"):
        find_differences(other, train(split_by(LLAMA3)), characters_by_category())


def truncate(document: dict[str, Any]) -> None:
    document["truncation"] = {"max_length": 8, "strategy": "LongestFirst", "stride": 0}


def fold(document: dict[str, Any]) -> None:
    document["normalizer"] = {"type": "Lowercase"}


def drop(document: dict[str, Any]) -> None:
    document["model"]["dropout"] = 0.1


def fall_back(document: dict[str, Any]) -> None:
    document["model"]["byte_fallback"] = True


def prefix(document: dict[str, Any]) -> None:
    document["pre_tokenizer"]["pretokenizers"][-1]["add_prefix_space"] = True


def split_twice(document: dict[str, Any]) -> None:
    parts = document["pre_tokenizer"]["pretokenizers"]
    parts.insert(0, parts[0])


def keep_gaps_only(document: dict[str, Any]) -> None:
    document["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"


def split_lazily(document: dict[str, Any]) -> None:
    document["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": r"\s+?|\S+"}


def intersect(document: dict[str, Any]) -> None:
    document["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": r"[\S&&\p{L}]+|\s+"}


def lose_a_byte(document: dict[str, Any]) -> None:
    vocabulary = document["model"]["vocab"]
    vocabulary["lost"] = vocabulary.pop("!")


def repeat_a_result(document: dict[str, Any]) -> None:
    document["model"]["vocab"] |= {"zq": 900, "qx": 901, "zqx": 902}
    document["model"]["merges"] += [["z", "q"], ["zq", "x"], ["q", "x"], ["z", "qx"]]


def keep_whole_pieces(document: dict[str, Any]) -> None:
    document["model"]["ignore_merges"] = True
    document["model"]["vocab"]["zzz"] = 900


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (truncate, "truncates"),
        (fold, "normalizes by Lowercase"),
        (drop, "dropout"),
        (fall_back, "byte_fallback"),
        (prefix, "plain ByteLevel"),
        (split_twice, "several ways"),
        (keep_gaps_only, "drops a part"),
        (split_lazily, "syntax"),
        (intersect, "syntax"),
        (lose_a_byte, "bytes are no token"),
        (repeat_a_result, "different ranks"),
        (keep_whole_pieces, "no merge makes"),
    ],
)
def test_what_cannot_be_proved_is_refused(
    change: Callable[[dict[str, Any]], None], cause: str
) -> None:
    """Each property that the proof rests on is asked for, and its absence named."""
    with pytest.raises(NotExpressible, match=cause):
        read_byte_level(changed(kinds()["llama3"], change))


def test_other_models_are_refused() -> None:
    """Unigram and the like choose differently, whatever their vocabulary."""
    tokenizer = Tokenizer(Unigram([("a", 0.0)], 0, byte_fallback=False))
    with pytest.raises(NotExpressible, match="Unigram"):
        read_byte_level(json.loads(tokenizer.to_str()))


def test_a_token_that_is_never_made_is_refused() -> None:
    """In `abc` another merge comes first, so the token of it is never made: tiktoken would."""
    taken = 900

    def add(document: dict[str, Any]) -> None:
        model = document["model"]
        model["vocab"] |= {"qz": taken, "zj": taken + 1, "qzj": taken + 2}
        model["merges"] = [["z", "j"], ["q", "z"], ["qz", "j"], *model["merges"]]

    document = changed(kinds()["llama3"], add)
    tokenizer = Tokenizer.from_str(json.dumps(document))
    assert ids(tokenizer, "qzj") != [taken + 2]
    with pytest.raises(NotExpressible, match="never made"):
        prove_same(tokenizer, document)


def test_several_pairs_of_one_token_may_stand_together() -> None:
    """As in models converted from tiktoken, which list every pair that makes a token."""

    def add(document: dict[str, Any]) -> None:
        model = document["model"]
        model["vocab"] |= {"qz": 900, "zj": 901, "qzj": 902}
        model["merges"] += [["q", "z"], ["z", "j"], ["q", "zj"], ["qz", "j"]]

    document = changed(kinds()["llama3"], add)
    compare(*both(document), ["qzj", "qzjqzj qz zj", "zqzjj"])


def test_ids_need_not_rise_with_the_merges() -> None:
    """A vocabulary in another order is translated."""

    def turn_around(document: dict[str, Any]) -> None:
        model = document["model"]
        highest = max(model["vocab"].values())
        model["vocab"] = {token: highest - number for token, number in model["vocab"].items()}
        document["added_tokens"] = []

    document = changed(kinds()["o200k"], turn_around)
    assert not read_byte_level(document).in_order
    compare(*both(document), sample_texts())


def test_what_is_in_doubt_goes_to_the_tokenizer_and_nothing_else() -> None:
    """Unassigned characters and texts that a normalizer changes are encoded by the slower one."""
    tokenizer = kinds()["qwen2"]
    asked: list[str] = []

    def slow(text: str) -> list[int]:
        asked.append(text)
        return ids(tokenizer, text)

    bpe = read_byte_level(json.loads(tokenizer.to_str()))
    fast = FastEncoder(bpe, slow=slow, doubtful=[0x378, 0x1FAE8], normalizes=True)
    doubtful = ["a\u0378b", "a \U0001fae8", "cafe\u0301"]
    for text in [*doubtful, "plain", "café", "字😀", ""]:
        assert fast.encode(text) == ids(tokenizer, text)
    assert asked == doubtful


def test_doubt_is_never_missed() -> None:
    """Every code point in doubt is found, in either plane; most others are not."""
    points = [
        point
        for point in range(0x110000)
        if unicodedata.category(chr(point)) in {"Cn", "Co"} and not 0xD800 <= point < 0xE000
    ]
    expression = match_doubtful(points)
    assert all(expression.search(chr(point)) for point in points)
    assert not expression.search("".join(map(chr, range(0x20, 0x378))) + "字한😀𠀀")
    assert match_doubtful([]).search("a字😀") is None


def test_a_proof_can_be_broken_off() -> None:
    """What the checkpoint raises ends it; a gateway that stops need not wait for seconds."""
    tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    calls = iter(range(5))

    def checkpoint() -> None:
        if next(calls, None) is None:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        prove_same(tokenizer, json.loads(tokenizer.to_str()), checkpoint)
