"""The sockets of one publisher: its live stream, and replays on request.

Frames (vllm/distributed/kv_events.py): the PUB socket sends `topic | sequence | payload`; the
ROUTER answers a replay request with `"" | topic | sequence | payload`, older engines without the
topic, and ends with sequence -1. Both are read from the right. A REQ socket would take the first
answer only, hence DEALER with an empty delimiter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from kvmeta.errors import FrameError
from kvmeta.ingest.sequences import (
    Attached,
    LiveMessage,
    Reconnected,
    ReplayAnswer,
    ReplayEnd,
    ReplayFailed,
)
from kvmeta.types import CacheLayout, SourceId

SEQUENCE_BYTES = 8
END_OF_REPLAY = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)

RECEIVE_HIGH_WATER = 10_000
"""Messages that may queue in a SUB socket: what vLLM's replay buffer holds, so that whatever is
dropped here can still be asked for."""

RECONNECT_FIRST_MS = 100
RECONNECT_LONGEST_MS = 500
"""Until an engine that was started anew is heard its predecessor's cache is believed: be there
before its health has been seen twice, at intervals of a second."""

HEARTBEAT_MS = 5_000
"""Between ZMTP pings, with three times that to answer: a half-open connection is found, and the
reconnection that follows makes the sequence machine verify what it knows."""

_BURST = 64
"""Messages taken from a SUB socket between two looks at its monitor."""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """One publisher to follow.

    `bind`: the engine connects to us (its endpoint names a host instead of `*`), so we bind
    `events_endpoint`. `topic` is a prefix; empty takes every topic. `replay_endpoint` None means
    that nothing can be asked: no gap is filled and silence proves nothing.
    """

    source: SourceId
    layout: CacheLayout
    events_endpoint: str
    replay_endpoint: str | None = None
    bind: bool = False
    topic: str = ""


LiveObservation = Attached | Reconnected | LiveMessage
ReplayObservation = ReplayAnswer | ReplayEnd | ReplayFailed


def parse_message(frames: Sequence[bytes]) -> LiveMessage:
    """Read a published message from the right: payload, sequence, anything.

    Raises:
        FrameError: fewer than two frames, or a sequence that is not 8 bytes.
    """
    if len(frames) < 2 or len(frames[-2]) != SEQUENCE_BYTES:
        raise FrameError("no sequence frame before the payload")
    return LiveMessage(int.from_bytes(frames[-2], "big"), frames[-1])


def parse_answer(frames: Sequence[bytes]) -> ReplayAnswer | ReplayEnd:
    """Read one answer to a replay request, with or without its topic and delimiter frames.

    Raises:
        FrameError: fewer than two frames, or a sequence that is not 8 bytes.
    """
    if len(frames) >= 2 and frames[-2] == END_OF_REPLAY:
        return ReplayEnd()
    message = parse_message(frames)
    return ReplayAnswer(message.sequence, message.payload)


class Subscription:
    """The SUB socket of one publisher and the monitor that tells of its connections.

    An async context manager: leaving it closes both sockets at once. The first handshake reads as
    `Attached`, every later one as `Reconnected`.
    """

    def __init__(self, context: zmq.asyncio.Context, spec: SourceSpec) -> None:
        self._spec = spec
        self._socket = context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, RECEIVE_HIGH_WATER)
        self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_FIRST_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_LONGEST_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
        self._socket.setsockopt(zmq.SUBSCRIBE, spec.topic.encode())
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._poller = zmq.asyncio.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._attached = False

    async def __aenter__(self) -> Self:
        if self._spec.bind:
            self._socket.bind(self._spec.events_endpoint)
        else:
            self._socket.connect(self._spec.events_endpoint)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)

    async def receive(self) -> list[LiveObservation | FrameError]:
        """Wait for what comes next and return it, in an order that is safe to take it in.

        Handshakes come before the messages received with them: a message is never taken for the
        old process's when the new one sent it, and one of the old process that is taken for the new
        one's is checked against a replay.
        """
        await self._poller.poll()
        messages: list[LiveObservation | FrameError] = []
        for frames in await _drain(self._socket, _BURST):
            try:
                messages.append(parse_message(frames))
            except FrameError as error:
                messages.append(error)
        # After the messages: a handshake is told before anything that arrives over it.
        return [*await self._handshakes(), *messages]

    async def _handshakes(self) -> list[LiveObservation | FrameError]:
        seen: list[LiveObservation | FrameError] = []
        for frames in await _drain(self._monitor, _BURST):
            if parse_monitor_message(frames)["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED:
                continue
            seen.append(Reconnected() if self._attached else Attached())
            self._attached = True
        return seen


async def _drain(socket: zmq.asyncio.Socket, limit: int) -> list[list[bytes]]:
    """Return up to `limit` messages that are there already."""
    taken: list[list[bytes]] = []
    try:
        while len(taken) < limit:
            taken.append(await socket.recv_multipart(zmq.NOBLOCK))
    except zmq.Again:
        pass
    return taken


async def replay(
    context: zmq.asyncio.Context,
    endpoint: str,
    start: int,
    *,
    silence_seconds: float,
    deliver: Callable[[ReplayObservation], Awaitable[None]],
) -> None:
    """Ask for every batch from `start` on and deliver the answers, then the end or the failure.

    Exactly one `ReplayEnd` or `ReplayFailed` is delivered, last. Fails after `silence_seconds`
    without an answer; engines serve replays between two publishes, at least ten times a second
    while idle. A socket of its own each time: answers to an abandoned request die with it.
    """
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    # A ROUTER drops what does not fit into its queue and ours, and says nothing of it.
    dealer.setsockopt(zmq.RCVHWM, 0)
    try:
        dealer.connect(endpoint)
        async with asyncio.timeout(silence_seconds):
            await dealer.send_multipart([b"", start.to_bytes(SEQUENCE_BYTES, "big")])
        answer: ReplayObservation | None = None
        while not isinstance(answer, ReplayEnd):
            async with asyncio.timeout(silence_seconds):
                frames = await dealer.recv_multipart()
            answer = parse_answer(frames)
            await deliver(answer)
    except (TimeoutError, FrameError, zmq.ZMQError):
        await deliver(ReplayFailed())
    finally:
        dealer.close(0)
