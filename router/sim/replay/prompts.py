"""Prompts from hash ids: equal ids give equal blocks, everywhere and in every run."""

from __future__ import annotations

import hashlib
import json
import struct
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from router.domain.units import Tokens
from router.sim.replay.traces import BLOCK_TOKENS, TraceRequest

_REMEMBERED_BLOCKS: Final = 4096
"""Encoded blocks kept for reuse, about 2.5 KB each: the shared prefixes of a trace fit."""


class PromptForm(StrEnum):
    """How prompts are sent."""

    IDS = "ids"
    """As token ids: the engine sees exactly the trace's number of tokens."""
    TEXT = "text"
    """As words, one for each token of the trace; how many tokens an engine makes of them is its
    tokenizer's affair."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token ids that prompts are made of: `low` to `high`, `high` not included.

    The default leaves out the lowest ids, where tokenizers keep bytes and special tokens, and fits
    into any vocabulary of 4,000 entries.
    """

    low: int = 256
    high: int = 4000

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(f"no token ids from {self.low} to {self.high}")


def make_block(identity: int, vocabulary: Vocabulary) -> list[int]:
    """Return the 512 token ids that a hash id stands for.

    A function of its arguments alone. Different ids give different blocks but by a chance that
    no one lives to see: 512 independent draws would have to be equal.
    """
    seed = b"prfaas trace block" + identity.to_bytes(8, "big")
    drawn = struct.unpack(f">{BLOCK_TOKENS}I", hashlib.shake_128(seed).digest(4 * BLOCK_TOKENS))
    span = vocabulary.high - vocabulary.low
    return [vocabulary.low + number % span for number in drawn]


def make_prompt(request: TraceRequest, vocabulary: Vocabulary) -> list[int]:
    """Return a request's prompt: its blocks in order, cut to exactly `input_tokens`."""
    tokens: list[int] = []
    for identity in request.blocks:
        tokens += make_block(identity, vocabulary)
    return tokens[: request.input_tokens]


class PromptWriter:
    """Writes request bodies, encoding each shared block once."""

    def __init__(self, *, model: str, form: PromptForm, vocabulary: Vocabulary) -> None:
        self._model = json.dumps(model).encode()
        self._form = form
        self._vocabulary = vocabulary
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def body(self, request: TraceRequest, *, max_output: Tokens | None = None) -> bytes:
        """Return the JSON body of a streaming /v1/completions call.

        `ignore_eos` makes engines that know it answer with the trace's number of tokens.
        """
        output = (
            request.output_tokens if max_output is None else min(request.output_tokens, max_output)
        )
        return b"".join(
            (
                b'{"model":',
                self._model,
                b',"prompt":',
                self._prompt(request),
                b',"max_tokens":%d,"temperature":0,"ignore_eos":true,"stream":true,' % output,
                b'"stream_options":{"include_usage":true}}',
            )
        )

    def _prompt(self, request: TraceRequest) -> bytes:
        whole, rest = divmod(request.input_tokens, BLOCK_TOKENS)
        parts = [self._block(identity) for identity in request.blocks[:whole]]
        if rest:
            tokens = make_block(request.blocks[whole], self._vocabulary)[:rest]
            parts.append(self._encode(tokens))
        match self._form:
            case PromptForm.IDS:
                return b"[" + b",".join(parts) + b"]"
            case PromptForm.TEXT:
                return b'"' + b" ".join(parts) + b'"'

    def _block(self, identity: int) -> bytes:
        known = self._blocks.get(identity)
        if known is not None:
            self._blocks.move_to_end(identity)
            return known
        encoded = self._encode(make_block(identity, self._vocabulary))
        self._blocks[identity] = encoded
        if len(self._blocks) > _REMEMBERED_BLOCKS:
            self._blocks.popitem(last=False)
        return encoded

    def _encode(self, tokens: list[int]) -> bytes:
        match self._form:
            case PromptForm.IDS:
                return ",".join(map(str, tokens)).encode()
            case PromptForm.TEXT:
                return " ".join(f"w{token}" for token in tokens).encode()
