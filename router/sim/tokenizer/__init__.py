"""The small tokenizer of the stand-in engines, made by `scripts/train_tokenizer.py`."""

from __future__ import annotations

from pathlib import Path


def locate_tokenizer() -> Path:
    """Return the directory with `tokenizer.json` and `tokenizer_config.json`."""
    return Path(__file__).parent
