"""The bodies that vLLM answers with, chunk by chunk or whole (fixtures of vLLM 0.32).

Every completion carries one field more, `standin`, which no engine has: the event sequence number
at its cache look-up, so that an index's belief can be checked at that very instant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from router.sim.engines.errors import RequestError
from router.sim.engines.generations import Delta, Run
from router.sim.engines.requests import Call

VERSION = "0.33.0"
FINGERPRINT = f"vllm-{VERSION}-standin"

Json = dict[str, object]
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Frame:
    """What all chunks and bodies of one call share."""

    call: Call
    reply_id: str
    created: int
    instance: str
    report_cached: bool


@dataclass(slots=True)
class Transcript:
    """One choice as it grows."""

    run: Run
    prompt: int
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, delta: Delta) -> None:
        """Append a delta."""
        self.tokens += delta.tokens
        self.pieces += delta.pieces
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


def encode_event(chunk: Json) -> bytes:
    """Return one server-sent event."""
    return b"data: " + _encode(chunk) + b"\n\n"


def encode_named_event(event: Json) -> bytes:
    """Return one event that is named for its type, as Messages and Responses have it."""
    return b"event: %s\n" % str(event["type"]).encode() + encode_event(event)


def embeddings_body(call: Call, vectors: Sequence[object]) -> Json:
    """Return the answer of `/v1/embeddings`: one vector a prompt."""
    tokens = sum(map(len, call.prompts))
    return {
        "id": "embd-standin",
        "object": "list",
        "created": 0,
        "model": call.model,
        "data": [
            {"index": index, "object": "embedding", "embedding": vector}
            for index, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }


def error_body(error: RequestError) -> Json:
    """Return the body of a refusal."""
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.status,
        }
    }


def completion_body(frame: Frame, choices: Sequence[Transcript]) -> Json:
    """Return the whole answer of a call that does not stream."""
    call, first = frame.call, choices[0].run
    body: Json = {
        "id": frame.reply_id,
        "object": "chat.completion" if call.chat else "text_completion",
        "created": frame.created,
        "model": call.model,
        "choices": [_whole_choice(call, index, choice) for index, choice in enumerate(choices)],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": usage_body(frame, choices),
    }
    if call.chat:
        body["prompt_logprobs"] = _prompt_logprobs(call, 0)
        body["prompt_token_ids"] = call.prompts[0] if call.return_token_ids else None
        body["prompt_text"] = None
    body["kv_transfer_params"] = first.transfer
    body["ec_transfer_params"] = None
    body["metrics"] = None
    body["standin"] = standin_body(frame, first)
    return body


def usage_body(frame: Frame, choices: Sequence[Transcript], *, sparse: bool = False) -> Json:
    """Count tokens; `sparse` leaves nulls out, as the last chunk of a stream does."""
    seen = {choice.prompt: len(frame.call.prompts[choice.prompt]) for choice in choices}
    prompt = sum(seen.values())
    output = sum(len(choice.tokens) for choice in choices)
    usage: Json = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
    }
    details: Json = {"cached_tokens": choices[0].run.cached_tokens, "created_cache_tokens": 0}
    if sparse:
        if frame.report_cached:
            usage["prompt_tokens_details"] = details
        return usage
    details["multimodal_tokens"] = None
    usage["prompt_tokens_details"] = details if frame.report_cached else None
    usage["completion_tokens_details"] = None
    return usage


def standin_body(frame: Frame, run: Run) -> Json:
    """Return the test-only field."""
    look_up = run.look_up
    return {
        "kv_event_seq": None if look_up is None else look_up.kv_event_seq,
        "cached_tokens": None if look_up is None else look_up.cached_tokens,
        "instance": frame.instance,
    }


def opening_chunk(frame: Frame, index: int, choice: Transcript) -> Json:
    """Return a chat stream's first chunk, which carries the role alone."""
    chunk = _chunk(frame, "chat.completion.chunk")
    chunk["choices"] = [
        {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    if frame.call.continuous_usage:
        chunk["usage"] = _running_usage(frame, choice)
    chunk["prompt_token_ids"] = frame.call.prompts[0] if frame.call.return_token_ids else None
    chunk["prompt_text"] = None
    return chunk


def delta_chunk(frame: Frame, index: int, choice: Transcript, delta: Delta) -> Json:
    """Return the chunk of one delta; `choice` already contains it."""
    call = frame.call
    chunk = _chunk(frame, "chat.completion.chunk" if call.chat else "text_completion")
    ids = delta.tokens if call.return_token_ids else None
    text = "".join(delta.pieces)
    ends = delta.finish_reason is not None
    part: Json = {"index": index}
    if call.chat:
        part["delta"] = {"content": text}
    else:
        starts = len(choice.tokens) == len(delta.tokens)
        part["text"] = call.texts[choice.prompt] + text if call.echo and starts else text
    part["logprobs"] = _logprobs(call, delta.tokens, delta.pieces)
    part["finish_reason"] = delta.finish_reason
    if ends or not call.chat:
        part["stop_reason"] = delta.stop_reason
    if not call.chat:
        starts = len(choice.tokens) == len(delta.tokens)
        wanted = call.return_token_ids and starts
        part["prompt_token_ids"] = call.prompts[choice.prompt] if wanted else None
    part["token_ids"] = ids
    chunk["choices"] = [part]
    if call.continuous_usage:
        chunk["usage"] = _running_usage(frame, choice)
    if ends:
        if not call.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        if choice.run.transfer is not None:
            chunk["kv_transfer_params"] = choice.run.transfer
    return chunk


def usage_chunk(frame: Frame, choices: Sequence[Transcript]) -> Json:
    """Return a stream's last chunk, which has usage and no choices."""
    chunk = _chunk(frame, "chat.completion.chunk" if frame.call.chat else "text_completion")
    chunk["choices"] = []
    chunk["usage"] = usage_body(frame, choices, sparse=True)
    chunk["system_fingerprint"] = FINGERPRINT
    chunk["standin"] = standin_body(frame, choices[0].run)
    return chunk


def models_body(names: Mapping[str, str | None], created: int, max_model_len: int) -> Json:
    """Return `GET /v1/models`; `names` maps each model to its parent, None for the base."""
    permission = {
        "id": "modelperm-standin",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    cards = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": name,
            "parent": parent,
            "max_model_len": max_model_len,
            "permission": [permission],
        }
        for name, parent in names.items()
    ]
    return {"object": "list", "data": cards}


def rendered_body(call: Call, request_id: str, prompt: int) -> Json:
    """Return one prompt of a `/render` answer: the ids that the engine would compute."""
    limits = call.limits[prompt]
    return {
        "request_id": request_id,
        "token_ids": call.prompts[prompt],
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": {
            "temperature": 1.0,
            "top_p": 1.0,
            "stop": list(limits.stop),
            "stop_token_ids": sorted(limits.stop_token_ids),
            "max_tokens": limits.room if limits.max_tokens is None else limits.max_tokens,
        },
        "model": call.model,
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": call.return_token_ids or None,
        "output_mode": "tokens",
        "stream": call.stream,
        "stream_options": None,
        "cache_salt": call.salt,
        "priority": 0,
        "kv_transfer_params": call.transfer,
        "ec_transfer_params": None,
    }


def _chunk(frame: Frame, kind: str) -> Json:
    return {
        "id": frame.reply_id,
        "object": kind,
        "created": frame.created,
        "model": frame.call.model,
    }


def _running_usage(frame: Frame, choice: Transcript) -> Json:
    prompt, output = len(frame.call.prompts[choice.prompt]), len(choice.tokens)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
        "completion_tokens_details": None,
    }


def _whole_choice(call: Call, index: int, choice: Transcript) -> Json:
    text = "".join(choice.pieces)
    part: Json = {"index": index}
    if call.chat:
        part["message"] = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
    else:
        part["text"] = call.texts[choice.prompt] + text if call.echo else text
    part["logprobs"] = _logprobs(call, choice.tokens, choice.pieces)
    part["finish_reason"] = choice.finish_reason
    part["stop_reason"] = choice.stop_reason
    part["token_ids"] = choice.tokens if call.return_token_ids else None
    if not call.chat:
        part["prompt_logprobs"] = _prompt_logprobs(call, choice.prompt)
        part["prompt_token_ids"] = call.prompts[choice.prompt] if call.return_token_ids else None
    part["routed_experts"] = None
    return part


def _logprobs(call: Call, tokens: Sequence[int], pieces: Sequence[str]) -> Json | None:
    """Return logprobs in their shape; an answer that follows from the prompt is certain."""
    if not call.logprobs:
        return None
    if call.chat:
        return {
            "content": [
                {
                    "token": piece,
                    "logprob": 0.0,
                    "bytes": list(piece.encode()),
                    "top_logprobs": [],
                }
                for piece in pieces
            ]
        }
    offsets, at = [], 0
    for piece in pieces:
        offsets.append(at)
        at += len(piece)
    return {
        "text_offset": offsets,
        "token_logprobs": [0.0] * len(tokens),
        "tokens": list(pieces),
        "top_logprobs": [{piece: 0.0} for piece in pieces],
    }


def _prompt_logprobs(call: Call, prompt: int) -> list[Json | None] | None:
    if not call.prompt_logprobs:
        return None
    known: list[Json | None] = [None]
    known += [
        {str(token): {"logprob": 0.0, "rank": 1, "decoded_token": None}}
        for token in call.prompts[prompt][1:]
    ]
    return known
