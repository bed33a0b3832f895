"""A client's JSON body: read once into raw fields, changed only where the gateway must.

Values are never decoded and encoded again: a number over 2^53, `1e-7`, an unknown field or a
thousand messages reach the engine as the very bytes that the client wrote. `ClientBody.form`
copies these bytes round the few fields that change; without a change it returns the body itself.

What belongs to the gateway is gone after `read_body` (DESIGN 4): transfer parameters would let a
client steer connections between engines (CASES R25), wherever the engine reads them from.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from router.domain.errors import BadRequest

_OWNED = frozenset(
    {
        "kv_transfer_params",
        "ec_transfer_params",
        # SGLang's spellings of the same thing.
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "data_parallel_rank",
    }
)
_OWNED_ARGUMENTS = frozenset(
    {
        # vLLM merges `vllm_xargs` into the very dict that carries its transfer parameters.
        "kv_transfer_params",
        "ec_transfer_params",
        # Re-announces prefix hits as new blocks: a client could falsify the index.
        "kv_cache_report_mode",
    }
)
_TEXT_PARTS = frozenset(
    {
        "text",
        "refusal",
        "thinking",
        "redacted_thinking",
        "input_text",
        "output_text",
        "tool_use",
        "tool_reference",
    }
)
_MEDIA_MEMBERS = frozenset(
    {
        "image_url",
        "image_pil",
        "image_embeds",
        "input_audio",
        "audio_url",
        "audio_embeds",
        "video_url",
    }
)
_PART_NAMES = re.compile(
    rb'"type"\s*:\s*("[^"]*")|"(?:%s)"\s*:' % "|".join(sorted(_MEDIA_MEMBERS)).encode()
)
"""The type of each part (and of whatever else has one); empty for a member that is a medium."""

_PLAIN_NAMES = frozenset(f'"{name}"'.encode() for name in (*_TEXT_PARTS, "function"))

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_IDS = msgspec.json.Decoder(list[int])
_TEXTS = msgspec.json.Decoder(list[str])
_SEVERAL_IDS = msgspec.json.Decoder(list[list[int]])
_OBJECTS = msgspec.json.Decoder(list[dict[str, Any]])
_ENCODER = msgspec.json.Encoder()


class BodyKind(StrEnum):
    """Which endpoint the body is for."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"
    MESSAGES = "messages"
    PASSED = "passed"
    """Embeddings, scores and whatever else one instance answers by itself."""


_INDIVISIBLE: Mapping[BodyKind, tuple[str, ...]] = MappingProxyType(
    {
        BodyKind.CHAT: ("echo", "prompt_logprobs", "use_beam_search"),
        BodyKind.COMPLETION: ("echo", "prompt_logprobs", "use_beam_search"),
        BodyKind.RESPONSES: ("background",),  # answered later, by the instance that took it
        BodyKind.MESSAGES: (),
        BodyKind.PASSED: (),
    }
)
_SEVERAL = ("n", "best_of")
"""A hand-off is single-use, and vLLM gives every one of `n` answers the same one (its pull request
38900 would change that, and is open)."""


class TextPrompt(Struct, frozen=True, gc=False):
    """One prompt, as text."""

    text: str

    def __repr__(self) -> str:
        return "<TextPrompt>"


class IdsPrompt(Struct, frozen=True, gc=False):
    """One prompt, as the client's own token ids."""

    ids: Sequence[int]

    def __repr__(self) -> str:
        return "<IdsPrompt>"


class Conversation(Struct, frozen=True, gc=False):
    """Messages (or a Responses `input`) that a chat template turns into a prompt."""

    messages: bytes

    def __repr__(self) -> str:
        return "<Conversation>"


class OpaquePrompt(Struct, frozen=True, gc=False):
    """Something that only the engine can count: several prompts, embeddings, a stored response."""

    texts: int = 0


Prompt = TextPrompt | IdsPrompt | Conversation | OpaquePrompt


class ClientBody(Struct, frozen=True, gc=False):
    """A request body without what the gateway owns.

    `fields` are the top-level members as raw JSON, in the client's order. `disaggregable` is False
    where one instance must do everything: the answer depends on the prompt's own pass (`echo`,
    `prompt_logprobs`), there is more than one prompt, or the engine keeps the conversation.
    `media` tells that the prompt has parts other than text. `include_usage` is what the client
    asked of a stream.
    """

    kind: BodyKind
    raw: bytes
    fields: Mapping[str, msgspec.Raw]
    model: str
    stream: bool
    prompt: Prompt
    disaggregable: bool
    media: bool
    include_usage: bool
    cache_salt: str | None = None

    def __repr__(self) -> str:
        return f"<ClientBody {self.kind} for {self.model!r}, {len(self.raw)} bytes>"

    def form(self, changes: Mapping[str, bytes | None]) -> bytes:
        """Return the body with some top-level members replaced, added or (None) removed.

        Replacements are JSON texts. Members keep their place and their bytes; a new one goes to
        the end. Changes that change nothing return `raw` itself.
        """
        return form_object(self.raw, self.fields, changes)

    def select(self, names: Sequence[str], changes: Mapping[str, bytes | None]) -> bytes:
        """Return a body of only the `names` that are present, then changed as by `form`.

        For calls that take a part of a request, such as `/tokenize`.
        """
        kept = {name: self.fields[name] for name in names if name in self.fields}
        return form_object(b"", kept, changes)

    def with_salt(self, salt: str) -> ClientBody:
        """Return the body with another `cache_salt`; nothing else is read again."""
        raw = self.form({"cache_salt": json_text(salt)})
        fields = {**self.fields, "cache_salt": msgspec.Raw(json_text(salt))}
        return replace(self, raw=raw, fields=MappingProxyType(fields), cache_salt=salt)

    def decode(self, name: str) -> Any:  # noqa: ANN401 - a JSON value is of any type
        """Return one member as Python objects, None where it is absent."""
        return _member(self.fields, name)

    def decode_messages(self) -> list[dict[str, Any]]:
        """Return the conversation as Python objects, for a chat template.

        Raises BadRequest where a message is not an object.
        """
        try:
            return _OBJECTS.decode(self.fields.get("messages", msgspec.Raw(b"[]")))
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRequest("messages must be objects", param="messages") from error


def passed_body(model: str) -> ClientBody:
    """Return what stands for a body that is not JSON: all that is known of it is its model."""
    return ClientBody(
        kind=BodyKind.PASSED,
        raw=b"",
        fields=MappingProxyType({}),
        model=model,
        stream=False,
        prompt=OpaquePrompt(),
        disaggregable=False,
        media=False,
        include_usage=False,
    )


def form_object(
    raw: bytes, fields: Mapping[str, msgspec.Raw], changes: Mapping[str, bytes | None]
) -> bytes:
    """Return a JSON object with `changes` made; `raw` (when given) if they change nothing.

    `fields` are the members of `raw`. None removes, bytes are the JSON text of a new value.
    """
    edited = dict(fields)
    changed = not raw
    for name, value in changes.items():
        old = edited.get(name)
        if value is None:
            changed |= edited.pop(name, None) is not None
        elif old is None or bytes(old) != value:
            edited[name] = msgspec.Raw(value)
            changed = True
    return _ENCODER.encode(edited) if changed else raw


def json_text(value: str) -> bytes:
    """Return `value` as a JSON string, quotes included."""
    return _ENCODER.encode(value)


def encode_json(value: object) -> bytes:
    """Return a value as JSON text."""
    return _ENCODER.encode(value)


def read_body(raw: bytes, kind: BodyKind) -> ClientBody:
    """Read a request body.

    Raises BadRequest, naming the field, for malformed JSON, anything but an object, and a missing
    or ill-typed `model`, `stream`, prompt or `cache_salt`. The engine judges everything else.
    """
    raw = raw.removeprefix(codecs.BOM_UTF8)  # which Python's reader, and so vLLM, takes
    fields = _read_object(raw)
    owned = _remove_owned(fields)
    if owned:
        raw = form_object(raw, fields, owned)
        fields = _FIELDS.decode(raw)
    prompt = _read_prompt(fields, kind)
    return ClientBody(
        kind=kind,
        raw=raw,
        fields=MappingProxyType(fields),
        model=_read_model(fields),
        stream=kind is not BodyKind.PASSED and "stream" in fields and _read_flag(fields, "stream"),
        prompt=prompt,
        disaggregable=_may_split(fields, kind, prompt),
        media=isinstance(prompt, Conversation) and _has_media(prompt.messages),
        include_usage="stream_options" in fields and _wants_usage(fields),
        cache_salt=_read_optional_text(fields, "cache_salt") if "cache_salt" in fields else None,
    )


def _read_object(raw: bytes) -> dict[str, msgspec.Raw]:
    if not raw or raw.isspace():
        raise BadRequest("the body is empty; a JSON object is needed", code="invalid_json")
    try:
        return _FIELDS.decode(raw)
    except msgspec.ValidationError as error:
        raise BadRequest("the body must be a JSON object", code="invalid_json") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply", code="invalid_json") from error


def _remove_owned(fields: Mapping[str, msgspec.Raw]) -> dict[str, bytes | None]:
    """Return the changes that take away what the gateway owns."""
    changes: dict[str, bytes | None] = dict.fromkeys(_OWNED & fields.keys())
    raw = fields.get("vllm_xargs")
    if raw is None or not bytes(raw).startswith(b"{"):
        return changes
    try:
        arguments = _FIELDS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        told = "vllm_xargs is not valid JSON"
        raise BadRequest(told, param="vllm_xargs", code="invalid_json") from error
    if not _OWNED_ARGUMENTS.isdisjoint(arguments):
        kept: dict[str, bytes | None] = dict.fromkeys(_OWNED_ARGUMENTS)
        changes["vllm_xargs"] = form_object(bytes(raw), arguments, kept)
    return changes


def _read_model(fields: Mapping[str, msgspec.Raw]) -> str:
    model = _read_optional_text(fields, "model")
    if not model:
        raise BadRequest("model is missing", param="model")
    return model


def _read_optional_text(fields: Mapping[str, msgspec.Raw], name: str) -> str | None:
    value = _member(fields, name)
    if value is None or isinstance(value, str):
        return value
    raise BadRequest(f"{name} must be a string", param=name)


def _read_flag(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    flag = _FLAGS.get(bytes(fields[name]))
    if flag is not None:
        return flag
    raise BadRequest(f"{name} must be true or false", param=name)


_FLAGS: Mapping[bytes, bool] = MappingProxyType({b"true": True, b"false": False, b"null": False})


def _wants_usage(fields: Mapping[str, msgspec.Raw]) -> bool:
    options = _member(fields, "stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _member(fields: Mapping[str, msgspec.Raw], name: str) -> Any:  # noqa: ANN401 - any JSON value
    """Decode one member; None where it is absent or null."""
    if name not in fields:
        return None
    try:
        return msgspec.json.decode(fields[name])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{name} is not valid JSON", param=name, code="invalid_json") from error


def _read_prompt(fields: Mapping[str, msgspec.Raw], kind: BodyKind) -> Prompt:
    match kind:
        case BodyKind.CHAT | BodyKind.MESSAGES:
            return Conversation(_read_array(fields, "messages"))
        case BodyKind.COMPLETION:
            return _read_completion_prompt(fields)
        case BodyKind.RESPONSES:
            return _read_input(fields)
        case BodyKind.PASSED:
            return OpaquePrompt()


def _read_array(fields: Mapping[str, msgspec.Raw], name: str) -> bytes:
    if name not in fields:
        raise BadRequest(f"{name} is missing", param=name)
    raw = bytes(fields[name])
    if not raw.startswith(b"["):
        raise BadRequest(f"{name} must be an array", param=name)
    return raw


def _read_input(fields: Mapping[str, msgspec.Raw]) -> Prompt:
    """Read a Responses `input`: a text or items; with what the engine stored it is opaque."""
    if "input" not in fields:
        raise BadRequest("input is missing", param="input")
    stored = any(_is_set(fields, name) for name in ("previous_response_id", "conversation"))
    return OpaquePrompt() if stored else Conversation(bytes(fields["input"]))


def _read_completion_prompt(fields: Mapping[str, msgspec.Raw]) -> Prompt:
    raw = fields.get("prompt")
    text = b"null" if raw is None else bytes(raw)
    if text == b"null":
        if bytes(fields.get("prompt_embeds", msgspec.Raw(b"null"))) != b"null":
            return OpaquePrompt()
        raise BadRequest("prompt is missing", param="prompt")
    try:
        return _read_prompt_value(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(
            "prompt must be a string, token ids, or a list of either", param="prompt"
        ) from error


def _read_prompt_value(text: bytes) -> Prompt:
    """Tell the four shapes of a completion's prompt apart; a list of one is one prompt."""
    if not text.startswith(b"["):
        return TextPrompt(msgspec.json.decode(text, type=str))
    first = text[1:].lstrip()[:1]
    if first == b"]":
        raise BadRequest("prompt must not be empty", param="prompt")
    if first == b'"':
        texts = _TEXTS.decode(text)
        return TextPrompt(texts[0]) if len(texts) == 1 else OpaquePrompt(len(texts))
    if first == b"[":
        several = _SEVERAL_IDS.decode(text)
        return IdsPrompt(several[0]) if len(several) == 1 else OpaquePrompt(len(several))
    return IdsPrompt(_IDS.decode(text))


def _may_split(fields: Mapping[str, msgspec.Raw], kind: BodyKind, prompt: Prompt) -> bool:
    """Whether one instance may compute the prompt and another the answer (DESIGN 5)."""
    if isinstance(prompt, OpaquePrompt):
        return False
    if fields.keys().isdisjoint((*_SEVERAL, *_INDIVISIBLE[kind])):
        return True
    if any(_is_several(fields, name) for name in _SEVERAL):
        return False
    return not any(_is_set(fields, name) for name in _INDIVISIBLE[kind])


def _is_set(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    """Whether a member is there and neither null nor false; `prompt_logprobs: 0` is set."""
    raw = fields.get(name)
    return raw is not None and bytes(raw) not in {b"null", b"false"}


def _is_several(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    """Whether a member is a whole number over 1."""
    text = bytes(fields.get(name, msgspec.Raw(b"")))
    return text.isdigit() and (len(text) > 1 or text > b"1")


def _has_media(messages: bytes) -> bool:
    """Whether a conversation has parts that are not text. Malformed messages have none.

    One search over the bytes settles nearly every conversation; only the others are decoded.
    """
    if all(name in _PLAIN_NAMES for name in _PART_NAMES.findall(messages)):
        return False
    try:
        decoded = _OBJECTS.decode(messages)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return any(
        isinstance(part, dict) and _is_media(part)
        for message in decoded
        if isinstance(content := message.get("content"), list)
        for part in content
    )


def _is_media(part: dict[str, Any]) -> bool:
    """Whether a part is no text; vLLM takes media by their member alone, too."""
    kind = part.get("type", "text")
    if kind == "tool_result":
        told = part.get("content")
        parts = told if isinstance(told, list) else []
        return any(isinstance(each, dict) and _is_media(each) for each in parts)
    text = isinstance(kind, str) and kind in _TEXT_PARTS
    return not text or not _MEDIA_MEMBERS.isdisjoint(part)
