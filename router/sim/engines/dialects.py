"""The Messages and Responses endpoints: a chat underneath, other words on top (as in vLLM).

Both read their body as a chat, run one sequence, and tell it in their own documents and events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from router.service.conversations import chat_from_messages, chat_from_responses
from router.sim.engines.asgi import Exchange
from router.sim.engines.completions import PartSender, collect, internal_error
from router.sim.engines.engine import Engine
from router.sim.engines.errors import LoadFailedError, RequestError
from router.sim.engines.generations import Delta
from router.sim.engines.replies import Frame, Json, Transcript, encode_named_event
from router.sim.engines.requests import Body, require_field

_KEPT = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "ignore_eos",
    "cache_salt",
    "chat_template_kwargs",
    "kv_transfer_params",
)
"""What both endpoints read under the chat's own names."""


class Dialect(Protocol):
    """How an endpoint tells an answer."""

    def whole(self, frame: Frame, run: Transcript) -> Json:
        """Return the document of a whole answer."""
        ...

    def opening(self, frame: Frame, run: Transcript) -> Iterator[Json]:
        """Yield the events before the first text."""
        ...

    def delta(self, text: str) -> Json:
        """Return the event of some text."""
        ...

    def closing(self, frame: Frame, run: Transcript) -> Iterator[Json]:
        """Yield the events after the last text."""
        ...

    def failure(self, error: RequestError) -> Json:
        """Return the event of a failure in mid-stream."""
        ...


async def answer_dialect(
    exchange: Exchange,
    engine: Engine,
    frame: Frame,
    run: Transcript,
    dialect: Dialect,
    broken: int | None,
) -> None:
    """Generate and answer, as a stream or whole. `broken` is after how many parts a stream dies."""
    if not frame.call.stream:
        await engine.run(run.run, collect(0, run))
        await exchange.reply_json(200, dialect.whole(frame, run))
        return
    await exchange.start_stream()
    sender = PartSender(exchange, broken)

    async def emit(delta: Delta) -> None:
        events = list(dialect.opening(frame, run)) if not run.tokens else []
        run.add(delta)
        events.append(dialect.delta("".join(delta.pieces)))
        await sender.send(b"".join(map(encode_named_event, events)))

    try:
        await engine.run(run.run, emit)
    except RequestError as error:
        await sender.send(encode_named_event(dialect.failure(error)))
    except LoadFailedError:
        await sender.send(encode_named_event(dialect.failure(internal_error())))
    else:
        await sender.send(b"".join(map(encode_named_event, dialect.closing(frame, run))))
    await exchange.send_part(b"", last=True)


# -- Messages


def chat_body_of_messages(body: Body) -> Body:
    """Return the chat body that a Messages body stands for. Raises RequestError."""
    require_field(body, "max_tokens")
    require_field(body, "messages")
    kept = {name: body[name] for name in _KEPT if name in body}
    stops = {"stop": body["stop_sequences"]} if body.get("stop_sequences") else {}
    return {**kept, **stops, "max_tokens": body["max_tokens"], **chat_from_messages(body)}


class Messages:
    """Anthropic's documents and events."""

    _STOPS = {"stop": "end_turn", "length": "max_tokens"}  # noqa: RUF012 - never written

    def whole(self, frame: Frame, run: Transcript) -> Json:
        """Return a message; vLLM adds its transfer parameters."""
        return self._message(frame, run, [{"type": "text", "text": "".join(run.pieces)}]) | {
            "kv_transfer_params": run.run.transfer
        }

    def opening(self, frame: Frame, run: Transcript) -> Iterator[Json]:
        """Yield the empty message and its one block."""
        yield {"type": "message_start", "message": self._message(frame, run, [])}
        block = {"type": "text", "text": ""}
        yield {"type": "content_block_start", "index": 0, "content_block": block}

    def delta(self, text: str) -> Json:
        """Return a piece of the block."""
        delta = {"type": "text_delta", "text": text}
        return {"type": "content_block_delta", "index": 0, "delta": delta}

    def closing(self, frame: Frame, run: Transcript) -> Iterator[Json]:
        """Yield the block's end, why it ended, and the message's end."""
        yield {"type": "content_block_stop", "index": 0}
        delta = {"stop_reason": self._stop_reason(run), "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": self._usage(frame, run)}
        yield {"type": "message_stop"}

    def failure(self, error: RequestError) -> Json:
        """Return Anthropic's error event."""
        return {"type": "error", "error": {"type": error.kind, "message": error.message}}

    def _message(self, frame: Frame, run: Transcript, content: list[Json]) -> Json:
        return {
            "id": frame.reply_id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": frame.call.model,
            "stop_reason": self._stop_reason(run),
            "stop_sequence": None,
            "usage": self._usage(frame, run),
        }

    def _stop_reason(self, run: Transcript) -> str | None:
        return self._STOPS.get(run.finish_reason or "")

    def _usage(self, frame: Frame, run: Transcript) -> Json:
        usage: Json = {
            "input_tokens": len(frame.call.prompts[0]),
            "output_tokens": len(run.tokens),
        }
        if frame.report_cached:
            usage["cache_read_input_tokens"] = run.run.cached_tokens
        return usage


# -- Responses


@dataclass(slots=True)
class ResponseShelf:
    """The responses that an engine keeps until it restarts, with the chat that each one ends."""

    documents: dict[str, Json] = field(default_factory=dict)
    chats: dict[str, list[object]] = field(default_factory=dict)

    def find(self, response_id: str) -> Json:
        """Return a response's document. Raises RequestError."""
        try:
            return self.documents[response_id]
        except KeyError:
            raise RequestError(
                f"Response with id '{response_id}' not found.",
                status=404,
                kind="NotFoundError",
                param="response_id",
            ) from None

    def chat_body(self, body: Body) -> Body:
        """Return the chat body that a Responses body stands for. Raises RequestError."""
        require_field(body, "input")
        chat = chat_from_responses(body)
        previous = body.get("previous_response_id")
        if previous is not None:
            self.find(str(previous))
            chat["messages"] = [*self.chats[str(previous)], *chat["messages"]]
        kept = {name: body[name] for name in _KEPT if name in body}
        limit = body.get("max_output_tokens")
        return {**kept, **chat} | ({} if limit is None else {"max_tokens": limit})

    def keep(self, document: Json, chat: Body, text: str) -> None:
        """Keep a response that has been made."""
        response_id, messages = str(document["id"]), chat["messages"]
        told = list(messages) if isinstance(messages, list) else []
        self.documents[response_id] = document
        self.chats[response_id] = [*told, {"role": "assistant", "content": text}]


_ITEM_ID = "msg_standin"
_PLACE: Json = {"item_id": _ITEM_ID, "output_index": 0, "content_index": 0}
"""A response has one item with one part."""


class Responses:
    """OpenAI's response documents and events. `keep` is told of each one that is complete."""

    def __init__(self, body: Body, chat: Body, keep: Callable[[Json, Body, str], None]) -> None:
        self._body = body
        self._chat = chat
        self._keep = keep
        self._number = 0

    def whole(self, frame: Frame, run: Transcript) -> Json:
        """Return a response; vLLM adds its transfer parameters."""
        document = self._document(frame, run)
        if self._body.get("store") is not False:
            self._keep(document, self._chat, "".join(run.pieces))
        return document | {"kv_transfer_params": run.run.transfer}

    def opening(self, frame: Frame, run: Transcript) -> Iterator[Json]:
        """Yield the empty response, its one item and that one's one part."""
        begun = self._document(frame, run)
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)
        item = self._item(run, "in_progress") | {"content": []}
        yield self._event("response.output_item.added", output_index=0, item=item)
        part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._event("response.content_part.added", **_PLACE, part=part)

    def delta(self, text: str) -> Json:
        """Return a piece of the part."""
        return self._event("response.output_text.delta", **_PLACE, delta=text, logprobs=[])

    def closing(self, frame: Frame, run: Transcript) -> Iterator[Json]:
        """Yield the ends of part, item and response."""
        item = self._item(run, "completed")
        text = "".join(run.pieces)
        yield self._event("response.output_text.done", **_PLACE, text=text, logprobs=[])
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        yield self._event("response.content_part.done", **_PLACE, part=part)
        yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event("response.completed", response=self.whole(frame, run))

    def failure(self, error: RequestError) -> Json:
        """Return OpenAI's error event."""
        return self._event("error", message=error.message, code=str(error.status), param=None)

    def _event(self, kind: str, **members: object) -> Json:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **members}

    def _item(self, run: Transcript, status: str) -> Json:
        text = "".join(run.pieces)
        part: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
        return {
            "id": _ITEM_ID,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [part],
        }

    def _document(self, frame: Frame, run: Transcript) -> Json:
        ended = run.finish_reason is not None
        cut = run.finish_reason == "length"
        return {
            "id": frame.reply_id,
            "object": "response",
            "created_at": frame.created,
            "model": frame.call.model,
            "status": ("incomplete" if cut else "completed") if ended else "in_progress",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "instructions": self._body.get("instructions"),
            "metadata": None,
            "output": [self._item(run, "completed")] if ended else [],
            "parallel_tool_calls": True,
            "previous_response_id": self._body.get("previous_response_id"),
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": self._body.get("tools") or [],
            "top_p": 1.0,
            "usage": self._usage(frame, run) if ended else None,
        }

    def _usage(self, frame: Frame, run: Transcript) -> Json:
        prompt, output = len(frame.call.prompts[0]), len(run.tokens)
        cached = run.run.cached_tokens if frame.report_cached else 0
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + output,
        }
