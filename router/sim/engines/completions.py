"""Chat and text completions of one engine: a checked call in, a body or a stream out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from router.sim.engines.asgi import Exchange
from router.sim.engines.engine import Engine
from router.sim.engines.errors import LoadFailedError, RequestError
from router.sim.engines.generations import Delta, Emit, Generation, Run
from router.sim.engines.replies import (
    Frame,
    Transcript,
    completion_body,
    delta_chunk,
    encode_event,
    error_body,
    opening_chunk,
    usage_chunk,
)
from router.sim.engines.requests import Call

_DONE = b"data: [DONE]\n\n"


class BrokenStreamError(Exception):
    """An ordered fault: the response ends in the middle."""


class PartSender:
    """Sends a stream's parts and breaks it after `limit` of them, None for never."""

    def __init__(self, exchange: Exchange, limit: int | None) -> None:
        self._exchange = exchange
        self._limit = limit

    async def send(self, part: bytes) -> None:
        """Send one part; raises BrokenStreamError when the limit is reached."""
        if self._limit is not None:
            if self._limit <= 0:
                raise BrokenStreamError
            self._limit -= 1
        await self._exchange.send_part(part)


def start_runs(call: Call, reply_id: str, new_id: Callable[[], str]) -> list[Transcript]:
    """Make a run for every prompt and choice. Only the first carries the hand-off."""
    runs: list[Transcript] = []
    for place, prompt in enumerate(call.prompts):
        for choice in range(call.choices):
            inner = (
                f"{reply_id}-{new_id()[:8]}" if call.chat else f"{reply_id}-{place}-{new_id()[:8]}"
            )
            generation = Generation(
                request_id=inner,
                prompt=prompt,
                packed=call.packed[place],
                limits=call.limits[place],
                salt=call.salt,
                lora=call.lora,
                transfer=None if runs else call.transfer,
                streams=call.stream,
                reads_cache=not call.prompt_logprobs,
                choice=choice,
            )
            runs.append(Transcript(Run(generation), place))
    return runs


async def answer_whole(
    exchange: Exchange, engine: Engine, frame: Frame, runs: list[Transcript], broken: int | None
) -> None:
    """Generate everything, then answer. Raises what the engine raises."""
    await _run_all(engine, runs, collect)
    body = completion_body(frame, runs)
    if broken is None:
        await exchange.reply_json(200, body)
        return
    half = repr(body).encode()
    await exchange.start_broken(len(half))
    await exchange.send_part(half[: len(half) // 2])
    raise BrokenStreamError


async def answer_stream(
    exchange: Exchange, engine: Engine, frame: Frame, runs: list[Transcript], broken: int | None
) -> None:
    """Answer as tokens come out; a failure after the start is an error event."""
    await exchange.start_stream()
    sender = PartSender(exchange, broken)

    def relay(index: int, transcript: Transcript) -> Emit:
        async def emit(delta: Delta) -> None:
            opening = b""
            if frame.call.chat and not transcript.tokens:
                opening = encode_event(opening_chunk(frame, index, transcript))
            transcript.add(delta)
            await sender.send(opening + encode_event(delta_chunk(frame, index, transcript, delta)))

        return emit

    try:
        await _run_all(engine, runs, relay)
    except RequestError as error:
        await sender.send(encode_event(error_body(error)))
    except LoadFailedError:
        await sender.send(encode_event(error_body(internal_error())))
    else:
        if frame.call.include_usage:
            await sender.send(encode_event(usage_chunk(frame, runs)))
    await sender.send(_DONE)
    await exchange.send_part(b"", last=True)


def internal_error() -> RequestError:
    """Return vLLM's answer to a failed KV load."""
    return RequestError("Internal server error", status=500, kind="InternalServerError")


def collect(index: int, transcript: Transcript) -> Emit:
    """Return what only gathers a choice's deltas; `index` is for relays that tell them apart."""
    del index

    async def emit(delta: Delta) -> None:
        transcript.add(delta)

    return emit


async def _run_all(
    engine: Engine, runs: list[Transcript], relay: Callable[[int, Transcript], Emit]
) -> None:
    if len(runs) == 1:
        await engine.run(runs[0].run, relay(0, runs[0]))
        return
    works: list[Coroutine[Any, Any, None]] = [
        engine.run(transcript.run, relay(index, transcript))
        for index, transcript in enumerate(runs)
    ]
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except* (RequestError, LoadFailedError, BrokenStreamError) as errors:
        raise errors.exceptions[0] from errors
