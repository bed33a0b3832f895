"""The HTTP surface of one engine: vLLM's paths (ENGINE-FACTS 4) beside those of `controls`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, MutableMapping
from functools import partial
from typing import Any

from router.sim.engines.asgi import ClientGoneError, Exchange, Receive, Send
from router.sim.engines.completions import (
    BrokenStreamError,
    answer_stream,
    answer_whole,
    collect,
    internal_error,
    start_runs,
)
from router.sim.engines.controls import LINK_PREFIX, Handler, Site, list_control_routes
from router.sim.engines.dialects import (
    Dialect,
    Messages,
    Responses,
    ResponseShelf,
    answer_dialect,
    chat_body_of_messages,
)
from router.sim.engines.embeddings import embed, pack_vector
from router.sim.engines.errors import LoadFailedError, RequestError
from router.sim.engines.faults import Dead
from router.sim.engines.replies import (
    VERSION,
    Frame,
    embeddings_body,
    error_body,
    models_body,
    rendered_body,
)
from router.sim.engines.requests import (
    Body,
    check_shape,
    read_body,
    read_call,
    render_prompt,
    require_field,
    resolve_model,
)
from router.sim.engines.specs import Tokenizer

_SCALE_OUT_PATHS = frozenset(
    {
        "/v1/chat/completions/render",
        "/v1/completions/render",
        "/v1/messages/render",
        "/v1/responses/render",
        "/inference/v1/generate",
    }
)
_RESPONSES_PREFIX = "/v1/responses/"
_EMBEDDING_SIZE = 16


class EngineApp:
    """The ASGI application of one engine. `wall_time` is seconds since 1970."""

    def __init__(
        self,
        site: Site,
        tokenizer: Tokenizer,
        *,
        new_id: Callable[[], str],
        wall_time: Callable[[], float],
    ) -> None:
        self._site = site
        self._tokenizer = tokenizer
        self._new_id = new_id
        self._wall_time = wall_time
        self._load = 0
        self._started = int(wall_time())
        self._shelf = ResponseShelf()
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completion},
            "/v1/chat/completions/render": {"POST": self._render_chat},
            "/v1/completions/render": {"POST": self._render_completion},
            "/v1/messages": {"POST": self._messages},
            "/v1/messages/count_tokens": {"POST": self._count_tokens},
            "/v1/messages/render": {"POST": self._render_messages},
            "/v1/responses": {"POST": self._responses},
            "/v1/responses/render": {"POST": self._render_responses},
            "/v1/embeddings": {"POST": self._embeddings},
            "/inference/v1/generate": {"POST": self._generate},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._empty, "POST": self._empty},
            "/version": {"GET": self._version},
            "/load": {"GET": self._server_load},
            "/metrics": {"GET": self._metrics},
            "/kv_event_sources": {"GET": self._event_sources},
            "/reset_prefix_cache": {"POST": self._reset},
            **list_control_routes(site),
        }

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        try:
            await self._serve(exchange)
        except RequestError as error:
            await exchange.reply_json(error.status, error_body(error))
        except LoadFailedError:
            await exchange.reply_json(500, error_body(internal_error()))
        except (ClientGoneError, BrokenStreamError):
            return

    async def _serve(self, exchange: Exchange) -> None:
        ours = exchange.path.startswith("/standin/")
        if self._site.faults.dead is Dead.BLACK_HOLE and not ours:
            await exchange.wait_gone()
            raise ClientGoneError
        is_link = exchange.path.startswith(LINK_PREFIX)
        handlers = self._routes.get(LINK_PREFIX if is_link else exchange.path)
        if handlers is None and exchange.path.startswith(_RESPONSES_PREFIX):
            cancels = exchange.path.endswith("/cancel")
            handlers = {"POST": self._cancel} if cancels else {"GET": self._stored}
        if handlers is None:
            await exchange.reply_json(404, {"detail": "Not Found"})
            return
        handler = handlers.get(exchange.method)
        if handler is None:
            allowed = (b"allow", ", ".join(sorted(handlers)).encode())
            await exchange.reply_json(405, {"detail": "Method Not Allowed"}, [allowed])
            return
        if self._site.spec.enable_request_id_headers and not ours:
            asked = exchange.header(b"x-request-id") or self._new_id()
            exchange.extra_headers.append((b"x-request-id", asked.encode("latin-1")))
        if exchange.path in _SCALE_OUT_PATHS and not self._site.spec.enable_scale_out:
            raise RequestError(
                "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to "
                "enable them.",
                status=403,
                kind="PermissionDeniedError",
            )
        await handler(exchange)

    async def _chat(self, exchange: Exchange) -> None:
        await self._complete(exchange, chat=True)

    async def _completion(self, exchange: Exchange) -> None:
        await self._complete(exchange, chat=False)

    async def _complete(self, exchange: Exchange, *, chat: bool) -> None:
        await self._work(exchange, partial(self._generate_answer, exchange, chat=chat))

    async def _messages(self, exchange: Exchange) -> None:
        await self._work(exchange, partial(self._generate_message, exchange))

    async def _responses(self, exchange: Exchange) -> None:
        await self._work(exchange, partial(self._generate_response, exchange))

    async def _work(
        self, exchange: Exchange, generate: Callable[[Body], Coroutine[Any, Any, None]]
    ) -> None:
        """Read a body and generate from it for as long as the client stays."""
        raw = await exchange.read()

        async def work() -> None:
            faults = self._site.faults
            if faults.slow_seconds > 0:
                await asyncio.sleep(faults.slow_seconds)
            status = faults.take_status()
            if status is not None:
                raise RequestError("ordered fault", status=status, kind="InternalServerError")
            await generate(read_body(exchange.header(b"content-type") or "", raw))

        self._load += 1
        try:
            await exchange.run_while_connected(work())
        finally:
            self._load -= 1

    async def _generate_answer(self, exchange: Exchange, body: Body, *, chat: bool) -> None:
        frame = self._frame(exchange, body, "chatcmpl" if chat else "cmpl", chat=chat)
        runs = start_runs(frame.call, frame.reply_id, self._new_id)
        answer = answer_stream if frame.call.stream else answer_whole
        broken = self._site.faults.broken_stream_after
        await answer(exchange, self._site.engine, frame, runs, broken)

    async def _generate_message(self, exchange: Exchange, body: Body) -> None:
        frame = self._frame(exchange, chat_body_of_messages(body), "chatcmpl", chat=True)
        await self._speak(exchange, frame, Messages())

    async def _generate_response(self, exchange: Exchange, body: Body) -> None:
        chat = self._shelf.chat_body(body)
        frame = self._frame(exchange, chat, "resp", chat=True)
        await self._speak(exchange, frame, Responses(body, chat, self._shelf.keep))

    async def _speak(self, exchange: Exchange, frame: Frame, dialect: Dialect) -> None:
        [run] = start_runs(frame.call, frame.reply_id, self._new_id)
        broken = self._site.faults.broken_stream_after
        await answer_dialect(exchange, self._site.engine, frame, run, dialect, broken)

    def _frame(self, exchange: Exchange, body: Body, prefix: str, *, chat: bool) -> Frame:
        """Check a body; a refused one gives up the blocks that were held for it."""
        site = self._site
        try:
            call = read_call(body, site.spec, self._tokenizer, chat=chat)
        except RequestError:
            transfer = body.get("kv_transfer_params")
            site.engine.give_up(transfer if isinstance(transfer, dict) else None)
            raise
        return Frame(
            call=call,
            reply_id=self._reply_id(exchange, prefix),
            created=int(self._wall_time()),
            instance=site.spec.name,
            report_cached=site.spec.report_cached_tokens,
        )

    async def _stored(self, exchange: Exchange) -> None:
        response_id = exchange.path.removeprefix(_RESPONSES_PREFIX)
        await exchange.reply_json(200, self._shelf.find(response_id))

    async def _cancel(self, exchange: Exchange) -> None:
        self._shelf.find(exchange.path.removeprefix(_RESPONSES_PREFIX).removesuffix("/cancel"))
        raise RequestError("Cannot cancel a synchronous response.", param="response_id")

    async def _count_tokens(self, exchange: Exchange) -> None:
        body = read_body(exchange.header(b"content-type") or "", await exchange.read())
        call = self._frame(
            exchange, chat_body_of_messages({"max_tokens": 1, **body}), "count", chat=True
        ).call
        await exchange.reply_json(200, {"input_tokens": len(call.prompts[0])})

    async def _embeddings(self, exchange: Exchange) -> None:
        body = read_body(exchange.header(b"content-type") or "", await exchange.read())
        prompt = {"model": body.get("model"), "prompt": require_field(body, "input")}
        call = read_call(prompt, self._site.spec, self._tokenizer, chat=False)
        vectors = [embed(ids, size=_EMBEDDING_SIZE) for ids in call.prompts]
        packed = body.get("encoding_format") == "base64"
        told = [pack_vector(vector) if packed else vector for vector in vectors]
        await exchange.reply_json(200, embeddings_body(call, told))

    def _reply_id(self, exchange: Exchange, prefix: str) -> str:
        return f"{prefix}-{exchange.header(b'x-request-id') or self._new_id()[:16]}"

    async def _render_chat(self, exchange: Exchange) -> None:
        body = read_body(exchange.header(b"content-type") or "", await exchange.read())
        call = read_call(body, self._site.spec, self._tokenizer, chat=True)
        request_id = self._reply_id(exchange, "chatcmpl")
        await exchange.reply_json(200, rendered_body(call, request_id, 0))

    async def _render_completion(self, exchange: Exchange) -> None:
        body = read_body(exchange.header(b"content-type") or "", await exchange.read())
        call = read_call(body, self._site.spec, self._tokenizer, chat=False)
        request_id = self._reply_id(exchange, "cmpl")
        rendered = [rendered_body(call, request_id, place) for place in range(len(call.prompts))]
        await exchange.reply_json(200, rendered)

    async def _render_messages(self, exchange: Exchange) -> None:
        await self._render_dialect(exchange, chat_body_of_messages)

    async def _render_responses(self, exchange: Exchange) -> None:
        await self._render_dialect(exchange, self._shelf.chat_body)

    async def _render_dialect(self, exchange: Exchange, chat_body: Callable[[Body], Body]) -> None:
        body = read_body(exchange.header(b"content-type") or "", await exchange.read())
        call = read_call(chat_body(body), self._site.spec, self._tokenizer, chat=True)
        request_id = self._reply_id(exchange, "chatcmpl")
        await exchange.reply_json(200, rendered_body(call, request_id, 0))

    async def _generate(self, exchange: Exchange) -> None:
        raw = await exchange.read()
        body = read_body(exchange.header(b"content-type") or "", raw)
        params = body.get("sampling_params")
        inner: Body = {**(params if isinstance(params, dict) else {}), **body}
        inner["prompt"] = require_field(body, "token_ids")
        inner["return_token_ids"] = True
        inner.pop("stream", None)
        call = read_call(inner, self._site.spec, self._tokenizer, chat=False)
        request_id = self._reply_id(exchange, "generate-tokens")
        runs = start_runs(call, request_id, self._new_id)

        async def work() -> None:
            for place, run in enumerate(runs):
                await self._site.engine.run(run.run, collect(place, run))

        await exchange.run_while_connected(work())
        choices = [
            {
                "index": index,
                "finish_reason": run.finish_reason,
                "stop_reason": run.stop_reason,
                "token_ids": run.tokens,
                "logprobs": None,
            }
            for index, run in enumerate(runs)
        ]
        reply: Body = {
            "request_id": request_id,
            "model": call.model,
            "created": int(self._wall_time()),
            "kv_transfer_params": runs[0].run.transfer,
            "output_mode": "tokens",
            "choices": choices,
        }
        await exchange.reply_json(200, reply)

    async def _models(self, exchange: Exchange) -> None:
        spec = self._site.spec
        names: dict[str, str | None] = dict.fromkeys((spec.model, *spec.aliases))
        names.update(dict.fromkeys(spec.loras, spec.model))
        await exchange.reply_json(200, models_body(names, self._started, spec.max_model_len))

    async def _tokenize(self, exchange: Exchange) -> None:
        body = read_body(exchange.header(b"content-type") or "", await exchange.read())
        check_shape(body, required=None)
        resolve_model(body, self._site.spec)
        if "messages" in body:
            check_shape(body, required="messages")
            special = body.get("add_special_tokens") is True
            text = render_prompt(body, self._tokenizer)
        else:
            prompt = require_field(body, "prompt")
            if not isinstance(prompt, str):
                raise RequestError("prompt must be a string", param="prompt")
            special, text = body.get("add_special_tokens") is not False, prompt
        ids = self._tokenizer.encode(text, add_special_tokens=special)
        wanted = body.get("return_token_strs") is True
        reply = {
            "count": len(ids),
            "max_model_len": self._site.spec.max_model_len,
            "tokens": ids,
            "token_strs": self._tokenizer.token_strings(ids) if wanted else None,
        }
        await exchange.reply_json(200, reply)

    async def _detokenize(self, exchange: Exchange) -> None:
        body = read_body(exchange.header(b"content-type") or "", await exchange.read())
        resolve_model(body, self._site.spec)
        tokens = require_field(body, "tokens")
        size = self._tokenizer.vocabulary_size
        if not isinstance(tokens, list) or any(
            type(token) is not int or not 0 <= token < size for token in tokens
        ):
            raise RequestError("tokens must be ids of the vocabulary", param="tokens")
        text = self._tokenizer.decode(tokens, skip_special_tokens=False)
        await exchange.reply_json(200, {"prompt": text})

    async def _health(self, exchange: Exchange) -> None:
        faults = self._site.faults
        if faults.health_seconds > 0:
            await asyncio.sleep(faults.health_seconds)
        await exchange.reply(faults.health_status, b"")

    async def _empty(self, exchange: Exchange) -> None:
        await exchange.reply(200, b"")

    async def _version(self, exchange: Exchange) -> None:
        await exchange.reply_json(200, {"version": VERSION})

    async def _server_load(self, exchange: Exchange) -> None:
        await exchange.reply_json(200, {"server_load": self._load})

    async def _metrics(self, exchange: Exchange) -> None:
        text = self._site.engine.render_metrics()
        await exchange.reply(200, text, b"text/plain; version=0.0.4; charset=utf-8")

    async def _event_sources(self, exchange: Exchange) -> None:
        source = self._site.engine.publisher.describe_source()
        await exchange.reply_json(200, {"0": source})

    async def _reset(self, exchange: Exchange) -> None:
        await exchange.reply_json(200, {"success": self._site.engine.cache.reset()})
