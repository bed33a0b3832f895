"""How many tokens a prompt has, and which: from the client, a tokenizer, an engine, or a guess."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVarTuple

import msgspec
from msgspec import Struct

from router.domain.decision import TokenSource
from router.domain.errors import BadRequest, UpstreamError
from router.domain.topology import Instance
from router.domain.units import Seconds, Tokens
from router.ports import Clock, EngineClient, EngineRequest, Timeouts, Tokenizer
from router.service.bodies import (
    BodyKind,
    ClientBody,
    Conversation,
    IdsPrompt,
    OpaquePrompt,
    TextPrompt,
    encode_json,
    json_text,
)
from router.service.conversations import chat_from_messages, chat_from_responses
from router.service.fleet import Fleet
from router.service.media import cut_at_medium, estimate_media, text_before_medium
from router.service.models import NamedModel, TokenizerKind

_CHAT_FIELDS = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
)


class Counted(Struct, frozen=True, gc=False):
    """A prompt's length and, where known, its token ids.

    `ids` None means that nobody can say what is cached of it. Before media they are those to the
    first placeholder, so fewer than `total`.
    """

    total: Tokens
    source: TokenSource
    ids: Sequence[int] | None = None


_Given = TypeVarTuple("_Given")

_SHORT_BYTES = 2048
"""Bodies up to this are counted on the event loop: that takes as long as going to a thread and
back, a tenth of a millisecond by tiktoken and half of one by a tokenizer itself."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A prompt's ids as an engine lists them.

    `placeholder` is where the first medium begins, None where there is none or nobody says.
    """

    ids: list[int]
    placeholder: int | None = None


class _Place(msgspec.Struct):
    """Where a medium stands in the prompt."""

    offset: int


class _Features(msgspec.Struct):
    """The media of a rendered prompt, by modality."""

    mm_placeholders: dict[str, list[_Place]] | None = None


class _Rendered(msgspec.Struct):
    """The answer of vLLM's render endpoints (GenerateRequest)."""

    token_ids: list[int]
    features: _Features | None = None


class _Tokenized(msgspec.Struct):
    """The answer of vLLM's `/tokenize`."""

    tokens: list[int]


_RENDERED = msgspec.json.Decoder(_Rendered)
_RENDERED_LIST = msgspec.json.Decoder(list[_Rendered])
_TOKENIZED = msgspec.json.Decoder(_Tokenized)


def estimate_tokens(body: ClientBody, bytes_per_token: float) -> Tokens:
    """Return a prompt's length guessed from its UTF-8 bytes; exact where the client sent ids."""
    if isinstance(body.prompt, IdsPrompt):
        return max(1, len(body.prompt.ids))
    if body.media:
        return max(1, estimate_media(read_chat(body)["messages"], bytes_per_token))
    return max(1, round(_prompt_bytes(body) / bytes_per_token))


_TEMPLATE_TOKENS = 4096
"""What a chat's template may say by itself: instructions for tools and a default system prompt take
some hundreds; an assumption, and generous."""


def bound_tokens(body: ClientBody, named: NamedModel) -> Tokens | None:
    """Return a number of tokens that a prompt does not exceed, where an engine would count it.

    A token is at least one byte of the prompt or comes from the template. None where nobody asks an
    engine, and for media, whose tokens are no bytes.
    """
    if named.model.tokenizer is not TokenizerKind.ENGINE or body.media:
        return None
    if isinstance(body.prompt, TextPrompt | Conversation):
        return len(body.raw) + _TEMPLATE_TOKENS
    return None


def _prompt_bytes(body: ClientBody) -> int:
    if isinstance(body.prompt, TextPrompt):
        return len(body.prompt.text.encode("utf-8", "surrogatepass"))
    if isinstance(body.prompt, Conversation):
        return len(body.prompt.messages)
    return len(body.raw)


_DOUBT_SECONDS: Final[Seconds] = 5.0
"""How long an engine that did not answer a count is asked last: as long as a probe may take."""


class EngineCounter:
    """Asks an engine: by its render endpoint, which reads the very request body, else `/tokenize`.

    Engines without `--enable-scale-out` refuse to render (403): that is remembered per instance
    and path. `/tokenize` reads a subset of a chat's fields, so it may differ where
    `reasoning_effort`, `documents` or `tool_choice` shape the prompt; Messages and Responses are
    given to it as the chat that the engine makes of them. One that let a count wait in vain is
    asked last for a while: it may hang, and probes take seconds to tell.
    """

    def __init__(
        self, client: EngineClient, fleet: Fleet, *, clock: Clock, timeout: Seconds
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._clock = clock
        self._failed: dict[str, Seconds] = {}
        self._timeouts = Timeouts(connect=timeout, first_byte=timeout, idle=timeout)
        self._no_render: set[tuple[str, str]] = set()

    async def count(self, body: ClientBody, named: NamedModel) -> Listed | None:
        """Return the prompt's token ids, None when no engine could tell."""
        for instance in self._candidates(named.model.name):
            served = named.lora or instance.served_name or named.model.served_name
            self._failed[instance.name] = self._clock.monotonic()  # until it has answered
            try:
                listed = await self._ask(instance, body, served)
                self._failed.pop(instance.name, None)
            except (UpstreamError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if listed is not None:
                return listed
        return None

    def _candidates(self, model: str) -> list[Instance]:
        """Return at most two live instances, the idlest first: a count must not wait in line."""
        ready = [
            member
            for member in self._fleet.members
            if member.instance.model in (None, model) and self._fleet.is_ready(member)
        ]
        now = self._clock.monotonic()
        self._failed = {name: at for name, at in self._failed.items() if now - at < _DOUBT_SECONDS}
        ready.sort(
            key=lambda member: (
                member.instance.name in self._failed,
                member.inflight,
                member.instance.name,
            )
        )
        return [member.instance for member in ready[:2]]

    async def _ask(self, instance: Instance, body: ClientBody, served: str) -> Listed | None:
        path = _RENDER_PATHS.get(body.kind)
        if path is not None and (instance.name, path) not in self._no_render:
            status, answer = await self._post(instance, path, _render(body, served))
            if status == 200:
                return _read_rendered(answer)
            if status in (403, 404, 405):
                self._no_render.add((instance.name, path))
        status, answer = await self._post(instance, "/tokenize", _tokenize(body, served))
        return Listed(_TOKENIZED.decode(answer).tokens) if status == 200 else None

    async def _post(self, instance: Instance, path: str, body: bytes) -> tuple[int, bytes]:
        headers = [(b"content-type", b"application/json")]
        if instance.api_key:
            headers.append((b"authorization", b"Bearer " + instance.api_key.encode()))
        response = await self._client.send(
            EngineRequest(
                instance=instance.name,
                base_url=instance.url,
                path=path,
                body=body,
                headers=headers,
                timeouts=self._timeouts,
            )
        )
        try:
            return response.status, await response.read()
        finally:
            await response.aclose()


_RENDER_PATHS: Mapping[BodyKind, str] = MappingProxyType(
    {
        BodyKind.CHAT: "/v1/chat/completions/render",
        BodyKind.COMPLETION: "/v1/completions/render",
        BodyKind.RESPONSES: "/v1/responses/render",
        BodyKind.MESSAGES: "/v1/messages/render",
    }
)


def _render(body: ClientBody, served: str) -> bytes:
    return body.form({"model": json_text(served)})


def _read_rendered(answer: bytes) -> Listed | None:
    """A completion renders to a list with one entry a prompt, a chat to one object."""
    if answer.lstrip()[:1] == b"[":
        several = _RENDERED_LIST.decode(answer)
        return Listed(several[0].token_ids) if len(several) == 1 else None
    rendered = _RENDERED.decode(answer)
    media = rendered.features.mm_placeholders if rendered.features else None
    places = [place.offset for each in (media or {}).values() for place in each]
    return Listed(rendered.token_ids, min(places, default=None))


def _tokenize(body: ClientBody, served: str) -> bytes:
    changes: dict[str, bytes | None] = {"model": json_text(served)}
    if isinstance(body.prompt, TextPrompt):
        changes["prompt"] = json_text(body.prompt.text)
        return body.select(("add_special_tokens",), changes)
    if body.kind is not BodyKind.CHAT:
        changes |= {name: encode_json(value) for name, value in read_chat(body).items()}
        return body.select(("chat_template_kwargs",), changes)
    return body.select(_CHAT_FIELDS, changes)


def read_chat(body: ClientBody) -> Mapping[str, Any]:
    """Return `messages` and `tools` as the engine's chat template will see them.

    Raises BadRequest where a message of a chat is not an object.
    """
    match body.kind:
        case BodyKind.RESPONSES:
            names = ("input", "instructions", "tools")
            return chat_from_responses({name: body.decode(name) for name in names})
        case BodyKind.MESSAGES:
            names = ("messages", "system", "tools")
            return chat_from_messages({name: body.decode(name) for name in names})
        case _:
            return {"messages": body.decode_messages(), "tools": body.decode("tools")}


class PromptCounter:
    """Counts every prompt in the way its model is configured for."""

    def __init__(
        self,
        engines: EngineCounter,
        tokenizers: Mapping[str, Tokenizer],
        threads: Executor | None = None,
    ) -> None:
        """`tokenizers` are by model name, for models of kind `hf`; `threads` are where they run."""
        self._engines = engines
        self._tokenizers = tokenizers
        self._threads = threads

    async def count(self, body: ClientBody, named: NamedModel, scope: str = "") -> Counted:
        """Return the prompt's length and ids, or an estimate where nobody can count.

        What a tokenizer remembers of it serves prompts of the same `scope`, a tenant, alone.
        Raises BadRequest for a conversation whose fields have wrong types.
        """
        if (counted := self.count_at_once(body, named)) is not None:
            return counted
        match named.model.tokenizer:
            case TokenizerKind.HF:
                return await self._count_here(body, named, scope)
            case TokenizerKind.ENGINE:
                listed = await self._engines.count(body, named)
                if listed is None or not listed.ids:
                    return self._estimate(body, named)
                # A placeholder's KV depends on its picture, which only the engine can name.
                known = listed.ids[: listed.placeholder or 0] if body.media else listed.ids
                return Counted(len(listed.ids), TokenSource.ENGINE, known or None)
            case TokenizerKind.NONE:
                return self._estimate(body, named)

    def count_at_once(self, body: ClientBody, named: NamedModel) -> Counted | None:
        """Return what nobody has to be asked for: ids that the client sent, or a mere guess."""
        if isinstance(body.prompt, IdsPrompt):
            ids = body.prompt.ids
            return Counted(len(ids) or 1, TokenSource.CLIENT, ids)
        if isinstance(body.prompt, OpaquePrompt) or named.model.tokenizer is TokenizerKind.NONE:
            return self._estimate(body, named)
        return None

    def _estimate(self, body: ClientBody, named: NamedModel, before: Sequence[int] = ()) -> Counted:
        """Guess; `before` are the ids that are known nevertheless, to the first medium."""
        total = estimate_tokens(body, named.model.bytes_per_token)
        return Counted(max(total, len(before) + 1), TokenSource.ESTIMATE, before or None)

    async def _count_here(self, body: ClientBody, named: NamedModel, scope: str) -> Counted:
        ids = await self._encode(body, self._tokenizers[named.model.name], scope)
        if body.media or not ids:
            return self._estimate(body, named, ids or ())
        return Counted(len(ids), TokenSource.TOKENIZER, ids)

    async def _encode(
        self, body: ClientBody, tokenizer: Tokenizer, scope: str
    ) -> Sequence[int] | None:
        """Encode, long prompts off the event loop: they take tens of milliseconds.

        Of a prompt with media only what comes before the first is encoded.
        """
        if isinstance(body.prompt, TextPrompt):
            special = body.decode("add_special_tokens") is not False
            return await self._run(body, _encode_text, tokenizer, body.prompt.text, special, scope)
        chat = read_chat(body)
        messages, options = chat["messages"], _template_options(body, chat)
        encode = _encode_before_medium if body.media else _encode_chat
        try:
            return await self._run(body, encode, tokenizer, messages, options, scope)
        except (ValueError, TypeError):
            # The template refuses this conversation: the engine will, too, in its own words.
            return None

    async def _run(
        self, body: ClientBody, encode: Callable[[*_Given], Sequence[int]], *given: *_Given
    ) -> Sequence[int]:
        """Call it here for a short body, else in a thread; what waits for one can be cancelled."""
        if len(body.raw) <= _SHORT_BYTES:
            return encode(*given)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, encode, *given)


def _template_options(body: ClientBody, chat: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a chat request shapes the prompt, as `Tokenizer.render_chat` takes it."""
    arguments = body.decode("chat_template_kwargs")
    if arguments is not None and not isinstance(arguments, dict):
        raise BadRequest("chat_template_kwargs must be an object", param="chat_template_kwargs")
    tools = chat.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise BadRequest("tools must be an array", param="tools")
    return {
        "tools": tools or None,
        "add_generation_prompt": body.decode("add_generation_prompt") is not False,
        "continue_final_message": body.decode("continue_final_message") is True,
        **(arguments or {}),
    }


def _encode_text(tokenizer: Tokenizer, text: str, special: bool, scope: str) -> Sequence[int]:  # noqa: FBT001 - as threads take it
    return tokenizer.encode(text, add_special_tokens=special, scope=scope)


def _encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, object]],
    options: dict[str, Any],
    scope: str,
) -> Sequence[int]:
    text = tokenizer.render_chat(messages, **options)
    return tokenizer.encode(text, add_special_tokens=False, scope=scope)


def _encode_before_medium(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, object]],
    options: dict[str, Any],
    scope: str,
) -> Sequence[int]:
    text = tokenizer.render_chat(cut_at_medium(messages), **options)
    return tokenizer.encode(text_before_medium(text), add_special_tokens=False, scope=scope)
