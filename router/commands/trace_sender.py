"""Sends a trace to a gateway at the trace's times, and reads what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from router.domain.errors import UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from router.domain.units import Seconds, Tokens
from router.ports import Clock, EngineClient, EngineRequest, EngineResponse, Timeouts
from router.sim.replay.answers import StreamEnd, StreamTail
from router.sim.replay.prompts import PromptWriter
from router.sim.replay.reports import Outcome, sum_metric
from router.sim.replay.traces import TraceRequest

KV_BYTES_METRIC: Final = "prfaas_kv_bytes_total"


@dataclass(frozen=True, slots=True)
class Pace:
    """When requests are sent: at the trace's times divided by `speed`, or one after another.

    `concurrency` bounds requests under way; one that has to wait for its turn is late, and says so.
    """

    speed: float = 1.0
    sequential: bool = False
    concurrency: int = 1024


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where requests go. `silence` bounds the wait for each next byte."""

    url: str
    api_key: str | None
    connect: Seconds = 5.0
    silence: Seconds = 600.0

    def request(self, path: str, body: bytes = b"", *, key: str | None = None) -> EngineRequest:
        """Return a call: POST with a body, GET without."""
        bearer = key or self.api_key
        headers = [(b"accept-encoding", b"identity")]
        if body:
            headers.append((b"content-type", b"application/json"))
        if bearer:
            headers.append((b"authorization", f"Bearer {bearer}".encode()))
        return EngineRequest(
            instance="gateway",
            base_url=self.url,
            path=path,
            body=body,
            method="POST" if body else "GET",
            headers=headers,
            timeouts=Timeouts(connect=self.connect, first_byte=self.silence, idle=self.silence),
        )


class TraceSender:
    """Replays requests against one gateway. `record` gets each outcome as it is known."""

    def __init__(
        self,
        gateway: Gateway,
        client: EngineClient,
        writer: PromptWriter,
        clock: Clock,
        *,
        max_output: Tokens | None,
        record: Callable[[Outcome], None],
    ) -> None:
        self._gateway = gateway
        self._client = client
        self._writer = writer
        self._clock = clock
        self._max_output = max_output
        self._record = record

    async def send_all(self, requests: Iterable[TraceRequest], pace: Pace) -> None:
        """Send every request and wait for the last answer. Cancel it to stop early."""
        start = self._clock.monotonic()
        if pace.sequential:
            for request in requests:
                await self._send(request, start, self._clock.monotonic())
            return
        places = asyncio.Semaphore(pace.concurrency)

        async def send_in_turn(request: TraceRequest, due: Seconds) -> None:
            try:
                await self._send(request, start, due)
            finally:
                places.release()

        async with asyncio.TaskGroup() as group:
            for request in requests:
                due = start + request.at / pace.speed
                await asyncio.sleep(max(0.0, due - self._clock.monotonic()))
                await places.acquire()
                group.create_task(send_in_turn(request, due))

    async def _send(self, request: TraceRequest, start: Seconds, due: Seconds) -> None:
        call = self._gateway.request(
            "/v1/completions", self._writer.body(request, max_output=self._max_output)
        )
        sent = self._clock.monotonic()
        try:
            response = await self._client.send(call)
        except (UpstreamUnreachable, UpstreamTimeout, UpstreamBroken) as error:
            self._record(
                Outcome(request.index, sent - start, max(0.0, sent - due), error=_kind(error))
            )
            return
        try:
            outcome = await self._read(request, response, sent, start, max(0.0, sent - due))
        finally:
            await response.aclose()
        self._record(outcome)

    async def _read(
        self,
        request: TraceRequest,
        response: EngineResponse,
        sent: Seconds,
        start: Seconds,
        lateness: Seconds,
    ) -> Outcome:
        """Read an answer to its end, noting when its first and its last piece came."""
        tail = StreamTail()
        first, last = None, sent
        broken: str | None = None
        try:
            async for chunk in response.chunks():
                last = self._clock.monotonic()
                if first is None and b"data:" in chunk:
                    first = last
                tail.feed(chunk)
        except (UpstreamTimeout, UpstreamBroken) as error:
            broken = _kind(error)
        end = tail.end()
        gaps = (end.output_tokens or 0) - 1
        heard = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers
        }
        return Outcome(
            index=request.index,
            sent_at=sent - start,
            lateness=lateness,
            status=response.status,
            error=_fault_of(response.status, end, broken),
            request_id=heard.get("x-request-id"),
            route=heard.get("x-prfaas-route"),
            reason=heard.get("x-prfaas-reason"),
            prefill=heard.get("x-prfaas-prefill") or None,
            decode=heard.get("x-prfaas-decode") or None,
            threshold=_whole(heard.get("x-prfaas-threshold")),
            total_tokens=_whole(heard.get("x-prfaas-total-tokens")),
            uncached_tokens=_whole(heard.get("x-prfaas-uncached-tokens")),
            believed_cached=_whole(heard.get("x-prfaas-cached-tokens")),
            prompt_tokens=end.prompt_tokens,
            reported_cached=end.cached_tokens,
            output_tokens=end.output_tokens,
            ttft=first - sent if first is not None else None,
            tpot=(last - first) / gaps if first is not None and gaps > 0 else None,
            duration=last - sent,
        )


def _fault_of(status: int, end: StreamEnd, broken: str | None) -> str | None:
    """Name what was wrong with an answer; None for a complete one."""
    if status >= 400:
        return f"http_{status}"
    if end.failed:
        return "stream_error"
    if broken is None and not end.finished:
        return "cut"
    return broken


def _kind(error: UpstreamUnreachable | UpstreamTimeout | UpstreamBroken) -> str:
    match error:
        case UpstreamUnreachable():
            return "unreachable"
        case UpstreamTimeout():
            return "timeout"
        case UpstreamBroken():
            return "broken"


def _whole(text: str | None) -> int | None:
    """Read a count; absent, empty or odd means unknown."""
    return int(text) if text and text.isascii() and text.isdigit() else None


async def read_kv_bytes(gateway: Gateway, client: EngineClient, key: str | None) -> float | None:
    """Return the KV bytes that the gateway counted so far, None where it does not tell."""
    body = await _get(gateway, client, "/metrics", key)
    return sum_metric(body.decode("utf-8", "replace"), KV_BYTES_METRIC) if body else None


async def read_models(gateway: Gateway, client: EngineClient) -> bytes | None:
    """Return the gateway's list of models as it sends it, None where it sends none."""
    return await _get(gateway, client, "/v1/models", None)


async def _get(gateway: Gateway, client: EngineClient, path: str, key: str | None) -> bytes | None:
    try:
        async with asyncio.timeout(10):
            response = await client.send(gateway.request(path, key=key))
            try:
                return await response.read() if response.status == 200 else None
            finally:
                await response.aclose()
    except (UpstreamUnreachable, UpstreamTimeout, UpstreamBroken, TimeoutError):
        return None
