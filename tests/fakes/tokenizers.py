"""Small tokenizers of every kind that models have, trained on the corpus of the shipped one."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.normalizers import NFC
from tokenizers.processors import TemplateProcessing

from router.adapters.byte_level import GPT2_PATTERN
from router.sim.tokenizer import locate_tokenizer

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TRAINING = (
    "the other then there she'd they'll we've it's 12 123 1234 (see) -- x=y; naïve café "
    "Большая река 敏捷的狐狸 한국어 문장 😀😁 the theater gathers others' feathers\n\n"
) * 3
SPECIALS = ("<|begin|>", "<|turn|>", "<|turn_end|>")


def split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    """A pre-tokenizer of one pattern, as converted models have it."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def train(
    pre_tokenizer: pre_tokenizers.PreTokenizer, *, normalizes: bool = False, begins: bool = False
) -> Tokenizer:
    """A byte-level BPE of some hundred tokens; `begins` puts a special token before each text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizes:
        tokenizer.normalizer = NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        min_frequency=1,
        special_tokens=[AddedToken(token, normalized=False) for token in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TRAINING], trainer)
    if begins:
        tokenizer.post_processor = TemplateProcessing(
            single=f"{SPECIALS[0]} $A", special_tokens=[(SPECIALS[0], 0)]
        )
    return tokenizer


@functools.cache
def kinds() -> dict[str, Tokenizer]:
    """One of each kind that is expressible."""
    return {
        "gpt2": train(pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "llama3": train(split_by(LLAMA3), begins=True),
        "qwen2": train(split_by(LLAMA3.replace("{1,3}", "")), normalizes=True),
        "o200k": train(split_by(O200K)),
        "shipped": Tokenizer.from_file(str(locate_tokenizer() / "tokenizer.json")),
    }


def changed(tokenizer: Tokenizer, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """A tokenizer's document after a change of it."""
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    change(document)
    return document


__all__ = ["GPT2_PATTERN", "LLAMA3", "O200K", "SPECIALS", "changed", "kinds", "split_by", "train"]
