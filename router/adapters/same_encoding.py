"""tiktoken in the place of a Hugging Face tokenizer, where both are proved to count the same.

tiktoken is several times faster. `prove_same` reads what the tokenizer is (`byte_level.py`), proves
the merges token by token and the splitting character by character, and compares both on a corpus
besides. Characters that the engines' Unicode tables do not agree on are remembered: a text with one
of them is encoded by the slower engine, as is what a normalizer would change. Proving takes seconds
of processor time: run it in a thread.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tiktoken
from tokenizers import Tokenizer, models

from router.adapters.byte_level import (
    ByteLevelBpe,
    NotExpressible,
    byte_alphabet,
    read_byte_level,
)

Encode = Callable[[str], list[int]]
Checkpoint = Callable[[], None]

_MOST_DOUBTFUL = 5_000
"""Characters besides the unassigned ones: more of them and the engines differ in more than age."""


class FastEncoder:
    """Texts without special tokens to the ids that the tokenizer gives them. For any thread."""

    def __init__(
        self, bpe: ByteLevelBpe, *, slow: Encode, doubtful: Iterable[int], normalizes: bool
    ) -> None:
        """`slow` is the tokenizer itself, `doubtful` are the code points that are left to it."""
        self._encode = _build(bpe).encode_ordinary
        self._ids = None if bpe.in_order else bpe.ids
        self._slow = slow
        self._doubtful = match_doubtful(doubtful)
        self._normalizes = normalizes

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        if not text.isascii() and self._is_doubtful(text):
            return self._slow(text)
        ranks: list[int] = self._encode(text)
        ids = self._ids
        return ranks if ids is None else [ids[rank] for rank in ranks]

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return [self.encode(text) for text in texts]

    def _is_doubtful(self, text: str) -> bool:
        if self._doubtful.search(text) is not None:
            return True
        return self._normalizes and not unicodedata.is_normalized("NFC", text)


def prove_same(
    tokenizer: Tokenizer, document: Mapping[str, Any], checkpoint: Checkpoint = lambda: None
) -> FastEncoder:
    """Return tiktoken set up as this tokenizer, whose `tokenizer.json` is `document`.

    `checkpoint` is called now and then, and may raise. Raises NotExpressible where it is not
    provable.
    """
    bpe = read_byte_level(document)
    _prove_merges(bpe, document["model"], checkpoint)
    characters = characters_by_category(checkpoint)
    different = find_differences(bpe.pattern, tokenizer, characters, checkpoint)
    # What is no character yet may be one in the other's newer table.
    doubtful = itertools.chain(different, characters["Cn"], characters["Co"])

    def slow(text: str) -> list[int]:
        # As a batch of one: only batches let other threads run meanwhile.
        (encoded,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoded.ids
        return ids

    normalizes = document.get("normalizer") is not None
    fast = FastEncoder(bpe, slow=slow, doubtful=doubtful, normalizes=normalizes)
    compare(fast, slow, itertools.chain(sample_vocabulary(bpe), sample_texts()), checkpoint)
    return fast


def compare(
    fast: FastEncoder, slow: Encode, texts: Iterable[str], checkpoint: Checkpoint = lambda: None
) -> None:
    """Encode texts by both. Raises NotExpressible at the first difference."""
    for text in texts:
        checkpoint()
        if fast.encode(text) != slow(text):
            raise NotExpressible("a sample text has other ids")


def _build(bpe: ByteLevelBpe) -> tiktoken.Encoding:
    ranks = bpe.ids if bpe.in_order else range(len(bpe.tokens))
    return _encoding(bpe.pattern, dict(zip(bpe.tokens, ranks, strict=True)))


def _encoding(pattern: str, ranks: dict[bytes, int]) -> tiktoken.Encoding:
    try:
        return tiktoken.Encoding("", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    except ValueError as error:
        raise NotExpressible(f"tiktoken refuses it: {error}") from error


def _prove_merges(bpe: ByteLevelBpe, model: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Check that each token, encoded alone, gives itself (`byte_level`, Merging)."""
    # With `ignore_merges` a token would give itself by being looked up.
    merging = Tokenizer.from_str(
        json.dumps(
            {"version": "1.0", "added_tokens": [], "model": {**model, "ignore_merges": False}}
        )
    ).model
    letters = {byte: char for char, byte in byte_alphabet().items()}
    for place, (token, number) in enumerate(zip(bpe.tokens, bpe.ids, strict=True)):
        if place % 128 == 0:
            checkpoint()
        made = merging.tokenize("".join(letters[byte] for byte in token))
        if [each.id for each in made] != [number]:
            raise NotExpressible("some of its tokens are never made")


# -- the splitting, character by character

_NEIGHBOURS = "aA1. \n'"
_CONTEXTS = "a{0}a1{0}1.{0}. {0}{0}\n{0}A{0}'{0}a'l{0}a'r{0}\n"
"""A character among those of every class that patterns speak of, and where contractions end."""


def characters_by_category(checkpoint: Checkpoint = lambda: None) -> dict[str, array[int]]:
    """Return all code points, as this Python's Unicode knows them; `Cn` are not assigned."""
    found: dict[str, array[int]] = {}
    for point in range(sys.maxunicode + 1):
        if point % 8192 == 0:
            checkpoint()
        found.setdefault(unicodedata.category(chr(point)), array("I")).append(point)
    return found


def find_differences(
    pattern: str,
    tokenizer: Tokenizer,
    characters: Mapping[str, Sequence[int]],
    checkpoint: Checkpoint = lambda: None,
) -> set[int]:
    """Return the assigned code points that the two engines put into different classes.

    Both split probes with a vocabulary in which any two neighbours merge if they stand in one
    piece, so that every cut shows. Raises NotExpressible where they differ in more than a few.
    """
    slow, fast = _probes(pattern, tokenizer)
    others = [
        point
        for category, points in characters.items()
        if category not in {"Lo", "Cn", "Co", "Cs"}
        for point in points
    ]
    different: set[int] = set()
    for point in _differing(others, slow, fast, checkpoint):
        _add(different, point)
    # Ideographs, syllables and other letters without case are most of all characters. They need no
    # contexts of their own where a run of them is not cut, which leaves every merge in place.
    for run in _batches(characters["Lo"], 256):
        checkpoint()
        letters = "A".join(map(chr, run))
        ids = fast(f"a{letters}a")
        if ids != slow(f"a{letters}a") or len(ids) != len(letters.encode()) - len(run) + 1:
            for point in _differing(run, slow, fast, checkpoint):
                _add(different, point)
    return different


def _add(different: set[int], point: int) -> None:
    """Take in one more character that differs, unless that is one too many."""
    different.add(point)
    if point < 128:
        raise NotExpressible("engines differ over ASCII")
    if len(different) > _MOST_DOUBTFUL:
        raise NotExpressible(f"engines differ over more than {_MOST_DOUBTFUL} characters")


def _probes(pattern: str, tokenizer: Tokenizer) -> tuple[Encode, Encode]:
    """Return both engines with a vocabulary that shows where they cut."""
    letters = {byte: char for char, byte in byte_alphabet().items()}
    high, plain = range(0x80, 0x100), _NEIGHBOURS.encode()
    pairs = [
        *itertools.product(plain, high),
        *itertools.product(range(0x80, 0xC0), range(0xC2, 0xF5)),
        *itertools.product(high, plain),
        *itertools.product(range(0x80), range(0x80)),
    ]
    tokens = [(letters[byte],) for byte in range(256)]
    merges = [(letters[one], letters[other]) for one, other in pairs]
    vocabulary = {"".join(token): at for at, token in enumerate([*tokens, *merges])}
    probe = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    probe.pre_tokenizer = tokenizer.pre_tokenizer
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {bytes(pair): 256 + at for at, pair in enumerate(pairs)}
    encoding = _encoding(pattern, ranks)

    def slow(text: str) -> list[int]:
        (encoded,) = probe.encode_batch_fast([text])
        ids: list[int] = encoded.ids
        return ids

    return slow, encoding.encode_ordinary


def _differing(
    points: Sequence[int], slow: Encode, fast: Encode, checkpoint: Checkpoint
) -> Iterator[int]:
    """Yield the code points in whose contexts the engines cut differently, by halving."""
    waiting = list(_batches(points, 128))
    while waiting:
        checkpoint()
        batch = waiting.pop()
        text = "".join(_CONTEXTS.format(chr(point)) for point in batch)
        if fast(text) == slow(text):
            continue
        if len(batch) == 1:
            yield batch[0]
            continue
        middle = len(batch) // 2
        waiting += [batch[:middle], batch[middle:]]


def _batches(points: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for at in range(0, len(points), size):
        yield points[at : at + size]


def match_doubtful(points: Iterable[int]) -> re.Pattern[str]:
    """Return an expression that finds any of these code points, and perhaps some others.

    `re` looks characters of the basic plane up but compares others with one range after the other,
    all the while keeping other threads out. So of those only the longest runs without doubt go.
    """
    doubt = bytearray(sys.maxunicode + 1)
    for point in points:
        doubt[point] = 1
    basic = "".join(_range(*run.span()) for run in re.finditer(b"\x01+", doubt[:0x10000]))
    certain = [
        (run.start() + 0x10000, run.end() + 0x10000)
        for run in re.finditer(b"\x00+", doubt[0x10000:])
    ]
    certain.sort(key=lambda run: run[0] - run[1])
    allowed = "".join(_range(*run) for run in certain[:_RUNS_WITHOUT_DOUBT])
    return re.compile((f"[{basic}]|" if basic else "") + f"[^\\x00-\\uffff{allowed}]")


_RUNS_WITHOUT_DOUBT = 32
"""Ideographs, most emoji and the larger ancient scripts; others are left to the tokenizer."""


def _range(start: int, end: int) -> str:
    return f"\\U{start:08x}-\\U{end - 1:08x}"


# -- the corpus

_SCRIPTS = (
    "The quick brown fox; don't, we'LL, I'd've, O'Neill's 1,234,567.89 (e.g.) -> x=y+1; //\n",
    "def f(x: int) -> str:\n\treturn f'{x!r}'  # comment\n\n\n    if not x:\r\n        pass\r\n",
    "Größe, naïve café, Ærøskøbing, İstanbul, ſtraße, ŒUVRE, e\u0301te\u0301, ﬁn",
    "Быстрая лиса. Η γρήγορη αλεπού. ქართული ენა. Հայերեն. עברית שָׁלוֹם. العربية 123 ٤٥٦",
    "敏捷的棕色狐狸，跳过了。素早い茶色の狐が飛び越えた。빠른 갈색 여우가 뛰어넘다.",
    "हिन्दी में पाठ। বাংলা ১২৩। தமிழ் உரை. ภาษาไทย ๑๒๓ ລາວ မြန်မာ ខ្មែរ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 😀😁 ½ ² Ⅷ ① … — « » ™ ∑∫√ \u200b\u200d\ufeff\u00a0\u2003\u3000\u0085\u2028",
    '{"a": [1, 2.5e-7, null, true], "b": "\\u00e9\\n"}\n<div class="x">&amp;</div>\n',
)
_BLANKS = (" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n\n", " \n ", "\u00a0", "\u3000", "\v\f")


def sample_vocabulary(bpe: ByteLevelBpe) -> Iterator[str]:
    """Yield texts in which every token that is text occurs, in an order drawn by chance."""
    chance = random.Random(17)  # noqa: S311 - samples
    texts = []
    for token in bpe.tokens:
        try:
            texts.append(token.decode())
        except UnicodeDecodeError:
            continue  # a part of a character: the scripts below have those
    chance.shuffle(texts)
    for at in range(0, len(texts), 512):
        yield "".join(texts[at : at + 512])
        yield " ".join(texts[at : at + 512])


def sample_texts() -> Iterator[str]:
    """Yield scripts, blanks in every order, and strings drawn by chance."""
    yield ""
    yield from _SCRIPTS
    for blanks in itertools.product(_BLANKS, repeat=3):
        yield "a".join(blanks) + "".join(blanks) + "1" + "".join(blanks)
    chance = random.Random(19)  # noqa: S311 - samples
    everything = "".join(_SCRIPTS) + "".join(_BLANKS)
    for length in range(1, 400):
        yield "".join(chance.choices(everything, k=length))
        yield "".join(chr(chance.randrange(0x20, 0x250)) for _ in range(length))
        yield "".join(chance.choices("ab", k=length)) + " " * (length % 9)
