"""A tokenizer that need not encode again what a conversation has already said.

Wraps a Hugging Face tokenizer, whose ids it gives at a fraction of the cost: texts are cut at
special tokens (`segments.py`), parts that were seen before are remembered, and the rest is encoded
by tiktoken where that is provably the same (`same_encoding.py`). Both are worked out by `improve`,
which takes seconds and runs beside requests; until then, and where something cannot be proved, it
is the wrapped tokenizer that encodes.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from router.adapters.byte_level import NotExpressible
from router.adapters.same_encoding import prove_same
from router.adapters.segments import SegmentCache, Segmenter, read_segmenter
from router.adapters.tokenizers import HfTokenizer

_log = logging.getLogger(__name__)

_SHORTEST_KEPT = 64
"""Characters from which a segment is worth a digest: what is shorter is encoded as fast."""

_EncodeEach = Callable[[Sequence[str]], list[list[int]]]


class TurnTokenizer:
    """One model's tokenizer with a memory. Safe to share between threads."""

    def __init__(
        self,
        name: str,
        wrapped: HfTokenizer,
        *,
        max_bytes: int,
        document: Mapping[str, Any] | None,
    ) -> None:
        """`name` is the model's, `max_bytes` bounds the memory, 0 is none.

        `document` is the `tokenizer.json`, let go once it was read; None only wraps.
        """
        self._name = name
        self._wrapped = wrapped
        self._cache = SegmentCache(max_bytes)
        self._document = document
        self._segmenter: Segmenter | None = None
        self._encode_each: _EncodeEach = wrapped.encode_each
        self._encoder = "huggingface"
        self._notes: tuple[str, ...] = ()
        self._checked = document is None

    def __repr__(self) -> str:
        return f"<TurnTokenizer of {self._name!r} by {self._encoder}, {len(self._cache)} segments>"

    def encode(
        self, text: str, *, add_special_tokens: bool = True, scope: str = ""
    ) -> Sequence[int]:
        """Return the ids of `text`; only what the same scope said before is remembered."""
        segmenter = self._segmenter
        if segmenter is None or (add_special_tokens and segmenter.frame is None):
            return self._wrapped.encode(text, add_special_tokens=add_special_tokens)
        parts = segmenter.split(text)
        encoded = self._encode_parts(dict.fromkeys(parts[::2]), scope)
        before, after = segmenter.frame if add_special_tokens and segmenter.frame else ((), ())
        ids = array("I", before)
        for place, part in enumerate(parts):
            if place % 2:
                ids.append(segmenter.ids[part])
            elif part:
                ids.extend(encoded[part])
        ids.extend(after)
        return ids

    def render_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: object,
    ) -> str:
        """Return the prompt of a chat, as the wrapped tokenizer does."""
        return self._wrapped.render_chat(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **template_kwargs,
        )

    def improve(self, checkpoint: Callable[[], None] = lambda: None) -> None:
        """Work out where texts may be cut and who may encode them. For a thread of its own.

        `checkpoint` is called every few milliseconds and may raise to end it; nothing is changed by
        halves.
        """
        document = self._document
        if document is None:
            return
        notes: list[str] = []
        tokenizer = self._wrapped.tokenizer
        try:
            self._segmenter = read_segmenter(document, find_frame(tokenizer))
        except NotExpressible as error:
            notes.append(f"no turns are remembered: {error}")
        else:
            # Only parts without special tokens may go past the wrapped tokenizer.
            try:
                fast = prove_same(tokenizer, document, checkpoint)
            except NotExpressible as error:
                notes.append(f"tiktoken is not used: {error}")
            else:
                self._encode_each = fast.encode_each
                self._encoder = "tiktoken"
        self._notes = tuple(notes)
        self._document = None
        self._checked = True
        for note in notes:
            _log.info("tokenizer of %s: %s", self._name, note)
        _log.info("tokenizer of %s: encoded by %s", self._name, self._encoder)

    def describe(self) -> dict[str, object]:
        """Return who encodes, what could not be proved, and how the memory does."""
        return {
            "encoder": self._encoder,
            "checked": self._checked,
            "notes": list(self._notes),
            "remembered_segments": len(self._cache),
            "remembered_bytes": self._cache.bytes,
            "segments_found": self._cache.found,
            "segments_missed": self._cache.missed,
        }

    def _encode_parts(self, texts: Iterable[str], scope: str) -> dict[str, array[int]]:
        """Return the ids of each text, from the memory where they are there."""
        wanted = [text for text in texts if text]
        long = [text for text in wanted if len(text) >= _SHORTEST_KEPT]
        encoded = self._cache.find(scope, long) if long else {}
        missing = [text for text in wanted if text not in encoded]
        if missing:
            new = self._encode_each(missing)
            fresh = {text: array("I", ids) for text, ids in zip(missing, new, strict=True)}
            encoded |= fresh
            kept = {text: ids for text, ids in fresh.items() if len(text) >= _SHORTEST_KEPT}
            if kept:
                self._cache.keep(scope, kept)
        return encoded


def find_frame(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the ids that stand around a text that is encoded with special tokens.

    None where they are not the same around different texts.
    """
    frames = set()
    for text in ("a", "some text\nof lines"):
        bare = tokenizer.encode(text, add_special_tokens=False).ids
        whole = tokenizer.encode(text, add_special_tokens=True).ids
        at = next(
            (place for place in range(len(whole)) if whole[place : place + len(bare)] == bare), None
        )
        if at is None:
            return None
        frames.add((tuple(whole[:at]), tuple(whole[at + len(bare) :])))
    return frames.pop() if len(frames) == 1 else None
