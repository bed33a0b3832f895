# ruff: noqa: INP001 - scripts are run, not imported
"""Train the small tokenizer that the stand-in engines speak: byte-level BPE, 4,096 ids.

Run it from the repository's root: `python scripts/train_tokenizer.py [directory]`. The text is
`tokenizer_corpus.txt` beside this file and, so that 4,096 ids have something to stand for, the
corpus's own words with common endings. The result is the same wherever it runs; a test compares
it with the files that are shipped.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CORPUS = Path(__file__).with_name("tokenizer_corpus.txt")
SHIPPED = Path(__file__).parents[1] / "router" / "sim" / "tokenizer"
ENDINGS = ("", "s", "ed", "ing", "er", "ly", "ness", "able", "ion")

# Words with the space before them, numbers in groups of three, runs of signs, runs of blanks.
SPLIT = r" ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages and messages[0].role == 'system' %}
{{- messages[0].content + '\\n\\n' }}
{%- endif %}
{{- 'Functions that you may call, one JSON object a line:' }}
{%- for tool in tools %}
{{- '\\n' + (tool | tojson) }}
{%- endfor %}
{{- '\\nTo call one, answer with {"name": ..., "arguments": ...}.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role not in ['system', 'developer', 'user', 'assistant', 'tool'] %}
{{- raise_exception('unknown role: ' + message.role) }}
{%- endif %}
{%- if not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' }}
{{- message.content if message.content is string else '' }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' + (call.function | tojson) }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def read_training_text() -> Iterator[str]:
    """Yield the corpus by lines, then each of its words with each ending."""
    text = CORPUS.read_text(encoding="utf-8")
    yield from text.splitlines(keepends=True)
    words = sorted({word.lower() for word in re.findall(r"[A-Za-z]{3,}", text)})
    for ending in ENDINGS:
        for word in words:
            yield f" {word}{ending}"


def train() -> Tokenizer:
    """Return the trained tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=1,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(read_training_text(), trainer)
    return tokenizer


def describe() -> dict[str, object]:
    """Return `tokenizer_config.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 131072,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
    }


def main(directory: Path) -> None:
    """Write both files into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train()
    tokenizer.save(str(directory / "tokenizer.json"))
    config = json.dumps(describe(), indent=1, ensure_ascii=False) + "\n"
    (directory / "tokenizer_config.json").write_text(config, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED)
