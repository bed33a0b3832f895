"""Reading requests as vLLM reads them: the same bodies are refused, with the same errors.

Two kinds of refusal (fixtures of vLLM 0.32; ENGINE-FACTS 4.4): a body of the wrong shape gets type
"Bad Request" and names the field as `body.<field>`; a value that no engine could serve gets
"BadRequestError" and names the parameter. Unknown fields are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from router.sim.engines.answers import AnswerLimits
from router.sim.engines.chains import pack_tokens
from router.sim.engines.errors import RequestError
from router.sim.engines.specs import EngineSpec, Tokenizer

Body = dict[str, object]

MAX_CHOICES = 16_384
"""vLLM's default bound of `n`."""
MAX_SALT_CHARACTERS = 1024

_INTEGERS = ("max_tokens", "max_completion_tokens", "min_tokens", "n", "priority", "seed", "top_k")
_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")
_FLAGS = ("stream", "echo", "ignore_eos", "return_token_ids", "add_generation_prompt")
_STRINGS = ("model", "cache_salt", "user", "request_id")
_OBJECTS = ("stream_options", "kv_transfer_params", "chat_template_kwargs", "vllm_xargs")


@dataclass(frozen=True, slots=True)
class Call:
    """A completion request that passed every check.

    `prompts` are token ids, packed alike in `packed`; `texts` the prompts as text where `echo`
    wants them. `lora` is set when the model asked for is an adapter.
    """

    chat: bool
    model: str
    prompts: tuple[list[int], ...]
    packed: tuple[bytes, ...]
    texts: tuple[str, ...]
    limits: tuple[AnswerLimits, ...]
    choices: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: bool = False
    logprobs: bool = False
    prompt_logprobs: bool = False
    return_token_ids: bool = False
    salt: str | None = None
    lora: str | None = None
    transfer: Mapping[str, object] | None = None


def read_body(content_type: str, raw: bytes) -> Body:
    """Decode a JSON body; raises RequestError as vLLM would for anything else."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise _bad_shape("Unsupported Media Type: Only 'application/json' is allowed", None)
    if not raw:
        raise _bad_field("missing", "body", "Field required", "None")
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _explain_json(raw) from error
    if not isinstance(body, dict):
        raise _bad_field("dict_type", "body", "Input should be a valid dictionary", repr(body)[:80])
    return body


def read_call(body: Body, spec: EngineSpec, tokenizer: Tokenizer, *, chat: bool) -> Call:
    """Check a chat or completion body and turn its prompt into ids. Raises RequestError."""
    check_shape(body, required="messages" if chat else None)
    _check_combinations(body, chat=chat)
    model, lora = resolve_model(body, spec)
    prompts, texts = _read_prompts(body, tokenizer, chat=chat)
    packed = tuple(check_prompt(prompt, spec, tokenizer) for prompt in prompts)
    stops = _read_stops(body)
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    logprobs = body.get("logprobs")
    transfer = body.get("kv_transfer_params")
    return Call(
        chat=chat,
        model=model,
        prompts=tuple(prompts),
        packed=packed,
        texts=tuple(texts),
        limits=tuple(
            _read_limits(body, spec.max_model_len - len(prompt), stops) for prompt in prompts
        ),
        choices=_integer(body, "n", 1),
        stream=body.get("stream") is True,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
        echo=body.get("echo") is True,
        logprobs=logprobs is True if chat else logprobs is not None,
        prompt_logprobs=body.get("prompt_logprobs") is not None,
        return_token_ids=body.get("return_token_ids") is True,
        salt=_string(body, "cache_salt"),
        lora=lora,
        transfer=transfer if isinstance(transfer, dict) else None,
    )


def resolve_model(body: Body, spec: EngineSpec) -> tuple[str, str | None]:
    """Return the model's name as asked for and the LoRA it means; 404 for an unknown one."""
    name = body.get("model") or spec.model
    if name in spec.loras:
        return str(name), str(name)
    if name != spec.model and name not in spec.aliases:
        known = ", ".join((spec.model, *spec.aliases, *spec.loras))
        raise RequestError(
            f"The model `{name}` does not exist. Valid aliases: {known}.",
            status=404,
            kind="NotFoundError",
            param="model",
        )
    return str(name), None


def render_prompt(body: Body, tokenizer: Tokenizer) -> str:
    """Return the prompt text of a chat body; raises RequestError if it cannot be rendered."""
    messages, tools = body["messages"], body.get("tools")
    kwargs = body.get("chat_template_kwargs")
    extra: dict[str, object] = dict(kwargs) if isinstance(kwargs, dict) else {}
    for name in ("documents", "reasoning_effort"):
        if body.get(name) is not None:
            extra[name] = body[name]
    if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
        raise _bad_field("dict_type", "body.messages.0", "Input should be a valid dictionary", "")
    generate = body.get("add_generation_prompt") is not False
    try:
        return tokenizer.render_chat(
            messages,
            tools=tools if isinstance(tools, list) else None,
            add_generation_prompt=generate,
            continue_final_message=body.get("continue_final_message") is True,
            **extra,
        )
    except (TypeError, ValueError) as error:  # a TypeError for names that the call itself takes
        raise RequestError(str(error)) from error


def check_shape(body: Body, *, required: str | None) -> None:
    """Check the types of the fields that are read. Raises RequestError of type "Bad Request"."""
    if required == "messages":
        if "messages" not in body:
            raise _missing("messages", body)
        if not isinstance(body["messages"], list):
            shown = repr(body["messages"])
            raise _bad_field(
                "list_type", "body.messages", "Input should be a valid list", shown[1:-1]
            )
    for names, kinds, kind, article in (
        (_INTEGERS, (int,), "int_type", "integer"),
        (_NUMBERS, (int, float), "float_type", "number"),
        (_FLAGS, (bool,), "bool_type", "boolean"),
        (_STRINGS, (str,), "string_type", "string"),
        (_OBJECTS, (dict,), "dict_type", "dictionary"),
    ):
        for name in names:
            value = body.get(name)
            if value is None:
                continue
            wrong_bool = isinstance(value, bool) and bool not in kinds
            if wrong_bool or not isinstance(value, kinds):
                message = f"Input should be a valid {article}"
                raise _bad_field(kind, f"body.{name}", message, repr(value)[:80])


def check_prompt(prompt: list[int], spec: EngineSpec, tokenizer: Tokenizer) -> bytes:
    """Return the packed prompt. Raises RequestError if empty, too long or out of vocabulary."""
    if not prompt:
        raise RequestError("The decoder prompt cannot be empty", param="prompt")
    if len(prompt) >= spec.max_model_len:
        raise RequestError(
            f"This model's maximum context length is {spec.max_model_len} tokens. However, your "
            f"prompt contains {len(prompt)} input tokens, which exceeds this limit even without "
            "any output tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={len(prompt)})",
            param="input_tokens",
        )
    highest = max(prompt)
    if highest < tokenizer.vocabulary_size:
        try:
            return pack_tokens(prompt)
        except OverflowError:
            highest = min(prompt)
    raise RequestError(f"Token id {highest} is out of vocabulary")


def _check_combinations(body: Body, *, chat: bool) -> None:
    if body.get("stream_options") is not None and body.get("stream") is not True:
        raise RequestError(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            param="stream_options",
        )
    salt = body.get("cache_salt")
    if salt is not None and not (0 < len(str(salt)) <= MAX_SALT_CHARACTERS):
        raise RequestError(
            "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)",
            param="cache_salt",
        )
    if body.get("priority"):
        raise RequestError(
            f"Got priority {body['priority']} but priority scheduling is not enabled."
        )
    if body.get("prompt_logprobs") is not None and body.get("stream") is True:
        raise RequestError(
            "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)",
            param="prompt_logprobs",
        )
    if chat and body.get("top_logprobs") and body.get("logprobs") is not True:
        raise RequestError(
            "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)",
            param="top_logprobs",
        )
    _check_sampling(body)


def _check_sampling(body: Body) -> None:
    choices = _integer(body, "n", 1)
    if choices < 1:
        raise RequestError(f"n must be at least 1, got {choices}.")
    if choices > MAX_CHOICES:
        raise RequestError(f"n must be at most {MAX_CHOICES}, got {choices}.")
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        value = float(temperature)
        raise _bad_value("temperature", f"temperature must be non-negative, got {value}", value)
    top_p = body.get("top_p")
    if isinstance(top_p, int | float) and not 0 < top_p <= 1:
        raise _bad_value("top_p", f"top_p must be in (0, 1], got {float(top_p)}", float(top_p))
    most = _most_tokens(body)
    if most is not None and most < 1:
        raise _bad_value("max_tokens", f"max_tokens must be at least 1, got {most}", most)
    least = _integer(body, "min_tokens", 0)
    if least < 0:
        raise RequestError(f"min_tokens must be greater than or equal to 0, got {least}.")
    if most is not None and least > most:
        raise RequestError(
            f"min_tokens must be less than or equal to max_tokens={most}, got {least}."
        )


def _most_tokens(body: Body) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if isinstance(value, int):
            return value
    return None


def _read_limits(
    body: Body, room: int, stops: tuple[tuple[str, ...], frozenset[int]]
) -> AnswerLimits:
    return AnswerLimits(
        room=room,
        max_tokens=_most_tokens(body),
        min_tokens=_integer(body, "min_tokens", 0),
        ignore_eos=body.get("ignore_eos") is True,
        stop=stops[0],
        stop_token_ids=stops[1],
    )


def _read_stops(body: Body) -> tuple[tuple[str, ...], frozenset[int]]:
    stop = body.get("stop")
    texts = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    if not all(isinstance(text, str) for text in texts):
        raise _bad_field("string_type", "body.stop", "Input should be a valid string", "")
    if "" in texts:
        raise RequestError("stop cannot contain an empty string.")
    ids = body.get("stop_token_ids") or []
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise RequestError(f"stop_token_ids must contain only integers, got {ids}.")
    return tuple(texts), frozenset(ids)


def _read_prompts(
    body: Body, tokenizer: Tokenizer, *, chat: bool
) -> tuple[list[list[int]], list[str]]:
    """Return the prompts as ids, and as text where that was at hand."""
    given = _given_ids(body)
    if given is not None:
        return [given], [""]
    if chat:
        text = render_prompt(body, tokenizer)
        return [tokenizer.encode(text, add_special_tokens=False)], [text]
    prompt = body.get("prompt")
    special = body.get("add_special_tokens") is not False
    items: list[object] = prompt if isinstance(prompt, list) else [prompt]
    if isinstance(prompt, list) and _are_integers(prompt):
        return [prompt], [tokenizer.decode(prompt) if body.get("echo") is True else ""]
    ids: list[list[int]] = []
    texts: list[str] = []
    for item in items:
        if isinstance(item, str) and item:
            ids.append(tokenizer.encode(item, add_special_tokens=special))
            texts.append(item)
        elif isinstance(item, list) and _are_integers(item):
            ids.append(item)
            texts.append(tokenizer.decode(item) if body.get("echo") is True else "")
        else:
            break
    if not ids or len(ids) != len(items):
        raise RequestError(
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            param="prompt",
        )
    return ids, texts


def _given_ids(body: Body) -> list[int] | None:
    """Return the ids that the other leg already made, if the body carries them."""
    params = body.get("kv_transfer_params")
    ids = params.get("prompt_token_ids") if isinstance(params, dict) else None
    if ids is None or body.get("echo") is True:
        return None
    if not isinstance(ids, list) or not _are_integers(ids) or min(ids) < 0:
        name = "kv_transfer_params.prompt_token_ids"
        raise RequestError(
            "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative "
            f"integers. (parameter={name})",
            param=name,
        )
    return ids


def _are_integers(items: list[object]) -> bool:
    """Tell whether `items` are integers and not empty; without a Python step for each of them."""
    return set(map(type, items)) == {int}


def _integer(body: Body, name: str, default: int) -> int:
    value = body.get(name)
    return value if isinstance(value, int) else default


def _string(body: Body, name: str) -> str | None:
    value = body.get(name)
    return value if isinstance(value, str) else None


def _missing(name: str, body: Body) -> RequestError:
    return _bad_field("missing", f"body.{name}", "Field required", f"<dict of {len(body)} items>")


def require_field(body: Body, name: str) -> object:
    """Return a field that must be there; raises RequestError of type "Bad Request"."""
    if name not in body:
        raise _missing(name, body)
    return body[name]


def _bad_value(name: str, message: str, value: float) -> RequestError:
    return RequestError(f"{message}. (parameter={name}, value={value})", param=name)


def _bad_field(
    kind: str, place: str, message: str, shown: str, context: str | None = None
) -> RequestError:
    context_text = "" if context is None else f", 'ctx': {{'error': '{context}'}}"
    detail = (
        f"{{'type': '{kind}', 'loc': '{place}', 'msg': '{message}', 'input': '{shown}'"
        f"{context_text}}}"
    )
    return _bad_shape(detail, place)


def _bad_shape(detail: str, place: str | None) -> RequestError:
    return RequestError(f"1 validation error:\n  {detail}", kind="Bad Request", param=place)


def _explain_json(raw: bytes) -> RequestError:
    try:
        json.loads(raw)
    except json.JSONDecodeError as error:
        place, reason = f"body.{error.pos}", error.msg
    except UnicodeDecodeError as error:
        place, reason = f"body.{error.start}", error.reason
    except ValueError:  # a number of more digits than Python converts
        place, reason = "body.0", "Invalid number"
    else:
        place, reason = "body.0", "Invalid JSON"
    return _bad_field("json_invalid", place, "JSON decode error", "<dict of 0 items>", reason)
