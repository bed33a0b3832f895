"""Byte-level BPE as tiktoken has it, read from a `tokenizer.json`. Pure.

Both count the same where two things hold, and only then (`router/adapters/same_encoding.py` proves
them for one tokenizer; what cannot be proved is refused here).

**Splitting.** A text is cut by one regular expression that matches everything. Its syntax must mean
the same to both engines (Oniguruma and Rust's), and every character must have the same classes.

**Merging.** Hugging Face merges the adjacent pair that stands first in `merges`; tiktoken the pair
whose *result* has the lowest rank, whatever the pair. Suppose that every token, encoded alone,
gives itself. When two adjacent tokens x, y make up a token s, no merge has crossed the borders of s
so far, so what happened inside is what happens to s alone, of which the last step is to merge x and
y: so (x, y) is in `merges`, and is the one pair that ever makes s. Both then choose among the same
pairs, in the same order if results are ranked by where their pairs stand; and a tie is the same
pair twice, of which both take the left one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What the `ByteLevel` pre-tokenizer splits by unless told otherwise."""


class NotExpressible(ValueError):
    """tiktoken cannot be this tokenizer, or nobody can prove it; the message says why."""


@dataclass(frozen=True, slots=True)
class ByteLevelBpe:
    """A pattern, the tokens that merging makes in the order of their merges, and their ids.

    `tokens` begins with the 256 single bytes.
    """

    pattern: str
    tokens: tuple[bytes, ...]
    ids: tuple[int, ...]

    @property
    def in_order(self) -> bool:
        """Whether ids rise with the merges, so that they can serve as ranks."""
        made = self.ids[256:]
        return all(one < following for one, following in itertools.pairwise(made))


def byte_alphabet() -> dict[str, int]:
    """Return the characters that stand for bytes in byte-level vocabularies (GPT-2's mapping)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + place): byte for place, byte in enumerate(others)}


def read_byte_level(document: Mapping[str, Any]) -> ByteLevelBpe:
    """Return what tiktoken needs of a `tokenizer.json`. Raises NotExpressible."""
    if document.get("truncation") or document.get("padding"):
        raise NotExpressible("it truncates or pads")
    normalizer = document.get("normalizer")
    if normalizer is not None and normalizer.get("type") != "NFC":
        raise NotExpressible(f"it normalizes by {normalizer.get('type')}")
    model = document["model"]
    _check_model(model)
    tokens, ids = _order_tokens(model)
    pattern = read_pattern(document.get("pre_tokenizer"))
    return ByteLevelBpe(pattern, tokens, ids)


def _check_model(model: Mapping[str, Any]) -> None:
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise NotExpressible(f"its model is {model.get('type')}, not BPE")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(option):
            raise NotExpressible(f"its model has {option}")


def _order_tokens(model: Mapping[str, Any]) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """Return single bytes, then what merges make, in their order, with their ids."""
    alphabet = byte_alphabet()
    vocabulary: Mapping[str, int] = model["vocab"]
    missing = [char for char in alphabet if char not in vocabulary]
    if missing:
        raise NotExpressible(f"{len(missing)} bytes are no token")
    order = sorted(alphabet, key=lambda char: alphabet[char])
    order += _results(model["merges"])
    if model.get("ignore_merges"):
        # Whole pieces may then be tokens that no merge makes.
        order_set = set(order)
        strays = [token for token in vocabulary if token not in order_set]
        if strays:
            raise NotExpressible(f"{len(strays)} tokens are whole pieces that no merge makes")
    try:
        tokens = tuple(bytes(alphabet[char] for char in token) for token in order)
        return tokens, tuple(vocabulary[token] for token in order)
    except KeyError as error:
        raise NotExpressible(f"its merges make {error}, which is no token of bytes") from None


def _results(merges: Sequence[str | Sequence[str]]) -> list[str]:
    """Return what each merge makes, once, in the merges' order.

    Where several pairs make one token they must stand together: else its rank depends on the pair.
    """
    results: dict[str, None] = {}
    last = ""
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        made = left + right
        if made != last and made in results:
            raise NotExpressible("several pairs make one token, at different ranks")
        results[made] = None
        last = made
    return list(results)


def read_pattern(pre_tokenizer: Mapping[str, Any] | None) -> str:
    """Return the expression that a text is split by. Raises NotExpressible."""
    parts = _flatten(pre_tokenizer)
    last = parts[-1] if parts else {}
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        raise NotExpressible("its pre-tokenizer does not end with plain ByteLevel")
    splits = parts[:-1]
    if not splits and last.get("use_regex", True):
        return GPT2_PATTERN
    if len(splits) != 1 or last.get("use_regex", True):
        raise NotExpressible("it splits texts in several ways")
    (split,) = splits
    pattern = split.get("pattern", {}).get("Regex")
    if split.get("type") != "Split" or pattern is None:
        raise NotExpressible(f"it splits texts by {split.get('type')}")
    if split.get("behavior") not in {"Isolated", "Removed"} or (
        (split["behavior"] == "Removed") != bool(split.get("invert"))
    ):
        raise NotExpressible("it drops a part of the text")
    if _PORTABLE.fullmatch(pattern) is None:
        raise NotExpressible("its pattern has syntax that engines read differently")
    return str(pattern)


def _flatten(pre_tokenizer: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if pre_tokenizer is None:
        return []
    if pre_tokenizer.get("type") != "Sequence":
        return [pre_tokenizer]
    return [part for each in pre_tokenizer["pretokenizers"] for part in _flatten(each)]


_CLASS = r"\\[pP]\{[A-Z][a-z]?\}|\\[sSrnt]"
_PORTABLE = re.compile(
    rf"""(?x:
        {_CLASS}                              # a class or a control character
        | \[ \^? (?: {_CLASS} | [^\\\[\]&\^-] )+ \]   # a set without ranges, nests, intersections
        | \(\?(?: i: | : | ! | = ) | \( | \) | \|     # groups, look-ahead, alternatives
        | [?*+] (?!\?) \+? | \{{ \d+ (?: ,\d* )? \}} (?![?+])   # greedy or possessive repeats
        | [A-Za-z0-9'\ /]                             # what stands for itself
    )+"""
)
"""Syntax whose meaning does not depend on the engine. Not among it: anchors, `.`, lazy repeats."""
