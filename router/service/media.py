"""Conversations with pictures, sound and video: what can be said of them without the engine. Pure.

How many tokens a medium takes, and what its KV is, depends on its content and the model. But all
that a template writes before the message of the first medium is text, and its KV follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

MEDIUM_TOKENS: Final = 576
"""Taken for a medium of unknown size: LLaVA-1.5's 24 x 24 patches of one picture."""

_MARK: Final = "\ue000\ue001medium\ue001\ue000"
"""Stands for the content of the first message with a medium; private use, so in nobody's text."""

_TEXTS: Final = ("text", "refusal", "thinking", "input_text", "output_text")


def cut_at_medium(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages to the first with a medium, whose content becomes a mark.

    Its own text is left out as well: some templates put pictures before the text of their message.
    """
    cut: list[Mapping[str, Any]] = []
    for message in messages:
        if _count_media(message.get("content")):
            return [*cut, {**message, "content": _MARK}]
        cut.append(message)
    return cut


def text_before_medium(rendered: str) -> str:
    """Return what a template wrote before the mark; nothing where it wrote no mark."""
    before, mark, _ = rendered.partition(_MARK)
    return before if mark else ""


def estimate_media(messages: Sequence[Mapping[str, Any]], bytes_per_token: float) -> int:
    """Guess a conversation's tokens: its texts by their bytes, its media by their number."""
    contents = [message.get("content") for message in messages]
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in map(_join_text, contents))
    return round(size / bytes_per_token) + MEDIUM_TOKENS * sum(map(_count_media, contents))


def _parts(content: object) -> list[dict[str, Any]]:
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _is_text(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("text", part.get("refusal")), str) and part.get("type") in (
        None,
        *_TEXTS,
    )


def _count_media(content: object) -> int:
    return sum(not _is_text(part) for part in _parts(content))


def _join_text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "".join(
        str(part.get("text", part.get("refusal", ""))) for part in _parts(content) if _is_text(part)
    )
