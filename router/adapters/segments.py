"""Texts cut at special tokens, the only places where the parts' ids are the whole's ids.

A tokenizer looks for its special tokens before anything else, and each text between two of them
goes its way alone: normalized, split and merged without a look at its neighbours. So the ids of a
conversation's earlier turns can be kept and joined, provided that

- special tokens swallow no blanks around them and need no word borders (`lstrip`, `rstrip`,
  `single_word`),
- nothing in the way depends on where in the whole text a part stands (SentencePiece's Metaspace
  marks the first one),
- what is put before and after the whole (a BOS token) is the same for every text.
"""

from __future__ import annotations

import hashlib
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from router.adapters.byte_level import NotExpressible

_INDEPENDENT_SPLITS = frozenset(
    ("Split", "ByteLevel", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit")
)
_INDEPENDENT_NORMALIZERS = frozenset(("NFC", "NFD", "NFKC", "NFKD", "Lowercase"))


@dataclass(frozen=True, slots=True)
class Segmenter:
    """Where a tokenizer's texts may be cut.

    `before` and `after` are the ids around a text that is encoded with special tokens, None where
    they depend on it.
    """

    cut: re.Pattern[str]
    ids: Mapping[str, int]
    frame: tuple[tuple[int, ...], tuple[int, ...]] | None

    def split(self, text: str) -> list[str]:
        """Return texts and special tokens in turn, beginning and ending with a text."""
        return self.cut.split(text)


def read_segmenter(
    document: Mapping[str, Any], frame: tuple[tuple[int, ...], tuple[int, ...]] | None
) -> Segmenter:
    """Return where texts of a `tokenizer.json` may be cut. Raises NotExpressible."""
    _check_parts(document.get("pre_tokenizer"), "pretokenizers", _INDEPENDENT_SPLITS)
    _check_parts(document.get("normalizer"), "normalizers", _INDEPENDENT_NORMALIZERS)
    if document.get("truncation") or document.get("padding"):
        raise NotExpressible("it truncates or pads")
    added = document.get("added_tokens") or []
    for token in added:
        if token.get("lstrip") or token.get("rstrip") or token.get("single_word"):
            raise NotExpressible("a special token looks at what is around it")
    if any(token["normalized"] for token in added) and (
        document.get("normalizer") is not None or not all(token["normalized"] for token in added)
    ):
        raise NotExpressible("special tokens are looked for in two passes")
    # The longest first: of several that begin at one place, the longest is taken.
    contents = sorted((token["content"] for token in added), key=len, reverse=True)
    cut = re.compile("(" + ("|".join(map(re.escape, contents)) or "(?!)") + ")")
    return Segmenter(cut, {token["content"]: token["id"] for token in added}, frame)


def _check_parts(part: Mapping[str, Any] | None, inner: str, known: frozenset[str]) -> None:
    """Check that a normalizer or pre-tokenizer treats each part of a text alike."""
    if part is None:
        return
    if part.get("type") == "Sequence":
        for each in part[inner]:
            _check_parts(each, inner, known)
        return
    if part.get("type") not in known:
        raise NotExpressible(f"{part.get('type')} may depend on where a text stands")


_Key = tuple[str, bytes]
_OVERHEAD_BYTES = 250
"""What a key, its entry and an empty array take, measured with CPython 3.11."""


class SegmentCache:
    """Ids of segments, the least recently used of which leave first. For any thread.

    Keys are digests under the scope that the segment came from: one tenant can neither find nor
    time what another one sent. Texts are not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[_Key, array[int]] = OrderedDict()
        self._lock = threading.Lock()
        self.found = 0
        self.missed = 0

    @property
    def bytes(self) -> int:
        """What the entries take."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, scope: str, texts: Iterable[str]) -> dict[str, array[int]]:
        """Return the ids of those texts that are there; counts tokens found and texts missed."""
        found: dict[str, array[int]] = {}
        keys = {text: _name(scope, text) for text in texts}
        with self._lock:
            for text, key in keys.items():
                ids = self._entries.get(key)
                if ids is None:
                    self.missed += 1
                    continue
                self._entries.move_to_end(key)
                self.found += 1
                found[text] = ids
        return found

    def keep(self, scope: str, encoded: Mapping[str, array[int]]) -> None:
        """Keep the ids of texts, in place of what was used longest ago."""
        keys = [(_name(scope, text), ids) for text, ids in encoded.items()]
        with self._lock:
            for key, ids in keys:
                size = _size(ids)
                if size > self._max_bytes or key in self._entries:
                    continue
                self._entries[key] = ids
                self._bytes += size
            while self._bytes > self._max_bytes:
                _, gone = self._entries.popitem(last=False)
                self._bytes -= _size(gone)


def _size(ids: Sequence[int]) -> int:
    return len(ids) * 4 + _OVERHEAD_BYTES


def _name(scope: str, text: str) -> _Key:
    # Nobody can make two texts of one digest, so nobody can have another's ids in place of his own.
    return scope, hashlib.blake2b(text.encode(), digest_size=16).digest()
