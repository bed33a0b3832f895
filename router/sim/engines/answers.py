"""What the stand-in says: an answer that follows from the prompt alone.

Token `i` of an answer is a hash of the prompt and `i`, mapped onto the vocabulary's printable
tokens. Every engine therefore answers a prompt alike, so a hand-off gone wrong shows as a
different answer. The cache salt and the engine take no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import xxhash

from router.sim.engines.specs import Tokenizer

SHORTEST_ANSWER, LONGEST_ANSWER = 16, 64
"""Bounds of an answer whose length the client left open, in tokens; a demo's reading length."""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """What ends an answer. `room` is the context left after the prompt, in tokens."""

    room: int
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: tokens, the text of each, why it ends (`length` or `stop`) and on what."""

    tokens: list[int]
    pieces: list[str]
    finish_reason: str
    stop_reason: int | str | None = None


class Answers:
    """The answers over one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._ids, self._pieces = _list_printable(tokenizer)

    def plan(self, prompt: bytes, limits: AnswerLimits, *, choice: int = 0) -> Answer:
        """Return the answer to a packed prompt; `choice` tells the answers of one request apart."""
        seed = xxhash.xxh3_64_intdigest(prompt, choice)
        natural = SHORTEST_ANSWER + seed % (LONGEST_ANSWER - SHORTEST_ANSWER + 1)
        length, reason = limits.room, "length"
        if limits.max_tokens is not None:
            length = min(length, limits.max_tokens)
        elif not limits.ignore_eos and max(natural, limits.min_tokens) <= length:
            length, reason = max(natural, limits.min_tokens), "stop"
        tokens, pieces = self._spell(seed, length)
        if limits.stop or limits.stop_token_ids:
            return _stop_early(tokens, pieces, reason, limits)
        return Answer(tokens, pieces, reason)

    def piece(self, token: int) -> str:
        """Return the text of a token of an answer."""
        return self._pieces[token]

    def _spell(self, seed: int, length: int) -> tuple[list[int], list[str]]:
        ids, digest = self._ids, xxhash.xxh3_64_intdigest
        tokens = [ids[digest(index.to_bytes(4, "big"), seed) % len(ids)] for index in range(length)]
        return tokens, [self._pieces[token] for token in tokens]


def _list_printable(tokenizer: Tokenizer) -> tuple[list[int], dict[int, str]]:
    pieces: dict[int, str] = {}
    for token in range(tokenizer.vocabulary_size):
        if not tokenizer.is_special(token):
            text = tokenizer.decode([token])
            if text and text.isprintable() and "\ufffd" not in text:
                pieces[token] = text
    return list(pieces), pieces


def _stop_early(
    tokens: Sequence[int], pieces: Sequence[str], reason: str, limits: AnswerLimits
) -> Answer:
    text = ""
    for index, (token, piece) in enumerate(zip(tokens, pieces, strict=True)):
        before, text = len(text), text + piece
        if index + 1 < limits.min_tokens:
            continue
        kept = list(tokens[: index + 1])
        if token in limits.stop_token_ids:
            return Answer(kept, list(pieces[: index + 1]), "stop", token)
        for stop in limits.stop:
            at = text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                # A stop string is never part of the text, even if earlier tokens began it.
                return Answer(kept, _cut(pieces[: index + 1], at), "stop", stop)
    return Answer(list(tokens), list(pieces), reason)


def _cut(pieces: Sequence[str], length: int) -> list[str]:
    kept: list[str] = []
    for piece in pieces:
        kept.append(piece[:length])
        length -= len(kept[-1])
    return kept
