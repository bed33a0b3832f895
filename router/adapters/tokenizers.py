"""A Hugging Face tokenizer in process: text to ids, chats to prompts.

Loads what a model's directory holds: `tokenizer.json`, and the chat template from
`chat_template.jinja` or `tokenizer_config.json`. Templates are code from a model's repository, so
they run in jinja's immutable sandbox with the names that such templates expect, and no others.
Encoding long texts takes milliseconds and lets other threads run: call it in a thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn, Self

import jinja2
import jinja2.ext
import jinja2.sandbox
from tokenizers import Tokenizer


class TokenizerError(ValueError):
    """The root of what goes wrong with a tokenizer."""


class TokenizerLoadError(TokenizerError):
    """The directory holds no usable tokenizer; the message names the file."""


class ChatTemplateError(TokenizerError):
    """The chat cannot be rendered: no template, or one that refuses these messages."""


_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What running a template's expressions can raise."""


class HfTokenizer:
    """One model's tokenizer and chat template. Immutable, and safe to share between threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: str | None,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.tokenizer = tokenizer
        self._special_names = dict(special_tokens)
        self._special_ids = frozenset(
            token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special
        )
        self.vocabulary_size = tokenizer.get_vocab_size(with_added_tokens=True)
        self._template = None if chat_template is None else _compile(chat_template, now)

    def __repr__(self) -> str:
        return f"<HfTokenizer of {self.vocabulary_size} ids>"

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a tokenizer's directory. Raises TokenizerLoadError naming the file at fault."""
        directory = Path(path)
        file = directory / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the binding raises nothing narrower
            raise TokenizerLoadError(f"{file}: {error}") from error
        config = _read_config(directory / "tokenizer_config.json")
        return cls(
            tokenizer,
            chat_template=_read_template(directory, config),
            special_tokens=_read_special_tokens(config),
        )

    @staticmethod
    def read_document(path: Path | str) -> Mapping[str, object]:
        """Return the `tokenizer.json` of a directory. Raises TokenizerLoadError."""
        return _read_config(Path(path) / "tokenizer.json")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; special tokens spelled out in it are recognised.

        As a batch of one: only batches let other threads run meanwhile, and a prompt of 100,000
        tokens takes a fifth of a second, in which the event loop must not stand still (CASES R38).
        """
        (encoded,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoded.ids
        return ids

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without what stands around a whole one."""
        encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [each.ids for each in encoded]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Return each id's entry in the vocabulary; the empty string for an unknown id."""
        return [self.tokenizer.id_to_token(token) or "" for token in ids]

    def is_special(self, token: int) -> bool:
        """Tell whether `token` is a control token."""
        return token in self._special_ids

    def render_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: object,
    ) -> str:
        """Return the prompt of a chat; encode it with `add_special_tokens=False`.

        Text parts of a message's content are joined by newlines. Raises ChatTemplateError for
        other parts, without a template, and when the template refuses.
        """
        if self._template is None:
            raise ChatTemplateError("the tokenizer has no chat template")
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError(
                "continue_final_message and add_generation_prompt exclude each other"
            )
        flat = [_flatten(message) for message in messages]
        names: dict[str, object] = {
            **self._special_names,
            **template_kwargs,
            "messages": flat,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._template.render(names)
        except _TEMPLATE_FAILURES as error:
            raise ChatTemplateError(str(error)) from error
        return _end_at_content(text, flat) if continue_final_message else text


def _compile(source: str, now: Callable[[], datetime]) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise TokenizerLoadError(f"chat template: {error}") from error


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates pass it by position
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - templates pass it by position
) -> str:
    # Unlike jinja's own filter this does not escape HTML, which prompts are not.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _flatten(message: Mapping[str, object]) -> dict[str, object]:
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise ChatTemplateError(f"content part of type {kind} is not text")
    return {**message, "content": "\n".join(texts)}


def _end_at_content(text: str, messages: Sequence[Mapping[str, object]]) -> str:
    """Cut what the template puts after the final message, so that the model goes on with it."""
    content = messages[-1].get("content") if messages else None
    final = content.strip() if isinstance(content, str) else ""
    at = text.rfind(final) if final else -1
    if at < 0:
        raise ChatTemplateError("the final message is not part of the rendered chat")
    return text[: at + len(final)]


def _read_config(file: Path) -> Mapping[str, object]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerLoadError(f"{file}: {error}") from error
    if not isinstance(config, dict):
        raise TokenizerLoadError(f"{file}: not a JSON object")
    return config


def _read_template(directory: Path, config: Mapping[str, object]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named templates; "default" is the one without tools
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _read_special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = config.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            names[name] = token
    return names
