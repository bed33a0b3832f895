"""Tokenizers as large as models have them: what is proved of small ones holds of 100,000 ids."""

from __future__ import annotations

import itertools
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.normalizers import NFC

from router.adapters.byte_level import NotExpressible
from router.adapters.same_encoding import prove_same, sample_texts
from router.adapters.tokenizers import HfTokenizer
from router.adapters.turn_tokenizers import TurnTokenizer
from tests.fakes.tokenizers import LLAMA3, SPECIALS, changed, split_by

pytestmark = pytest.mark.long

SIZE = 100_000
QWEN2 = LLAMA3.replace("{1,3}", "")


def sources(most_bytes: int) -> Iterator[str]:
    """Python's own library and what is installed beside it, as text, up to a size."""
    paths = sysconfig.get_paths()
    left = most_bytes
    for file in itertools.chain.from_iterable(
        sorted(Path(paths[name]).rglob("*.py")) for name in ("stdlib", "purelib")
    ):
        text = file.read_bytes()[:left].decode("utf-8", "ignore")
        left -= len(text.encode())
        yield text
        if left <= 0:
            return


@pytest.fixture(scope="module")
def large() -> Tokenizer:
    """A byte-level BPE of 100,000 ids, split and normalised as Qwen's are."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split_by(QWEN2)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.normalizer = NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        min_frequency=1,
        special_tokens=[AddedToken(token, normalized=False) for token in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*sample_texts(), *sources(6_000_000)], trainer)
    assert tokenizer.get_vocab_size() == SIZE
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def test_a_large_vocabulary_is_proved_and_counts_the_same(large: Tokenizer) -> None:
    """After the proof both engines give the same ids of texts that it was not trained on."""
    fast = prove_same(large, json.loads(large.to_str()))
    for text in itertools.islice(sources(40_000_000), 400, 450):
        assert fast.encode(text[::-1]) == encode(large, text[::-1])
        assert fast.encode(text) == encode(large, text)


def test_one_merge_out_of_order_is_found_among_all(large: Tokenizer) -> None:
    """A token that is never made, once its parts are merged too late, refuses the whole."""

    def delay(document: dict[str, dict[str, list[object]]]) -> None:
        merges = document["model"]["merges"]
        merges.append(merges.pop(300))

    document = changed(large, delay)
    with pytest.raises(NotExpressible):
        prove_same(Tokenizer.from_str(json.dumps(document)), document)


def test_special_tokens_cut_texts_anywhere(large: Tokenizer) -> None:
    """Spelled out, half spelled out, amid words and blanks: the ids are those of the whole text."""
    document = json.loads(large.to_str())
    wrapped = HfTokenizer(large, chat_template=None, special_tokens={})
    turns = TurnTokenizer("m", wrapped, max_bytes=1 << 20, document=document)
    turns.improve()
    assert turns.describe()["encoder"] == "tiktoken"
    begin, turn, end = SPECIALS
    betweens = (turn, begin + end, f" {turn}\n", turn[:-1], f"{turn[:4]}{turn}", end * 3)
    for text in itertools.islice(sources(2_000_000), 10):
        piece = text[:3_000]
        for cut in (0, 1, 7, len(piece) // 2, len(piece)):
            head, tail = piece[:cut], piece[cut:]
            for between in betweens:
                whole = head + between + tail
                assert list(turns.encode(whole)) == encode(large, whole)
