"""A scripted engine's publisher: a real PUB socket, a real ROUTER for replays, and its misfortunes.

It speaks as vLLM does (vllm/distributed/kv_events.py): sequence numbers from 0 for each process, a
bounded buffer, replays served from it. A test scripts what goes wrong: messages lost on the way,
older frames without a topic, a new process on the same ports, silence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Self

import zmq
import zmq.asyncio

END = (-1).to_bytes(8, "big", signed=True)


class KvPublisher:
    """An async context manager; binds free ports of the loopback, or connects (`connect_to`)."""

    def __init__(
        self,
        *,
        topic: bytes = b"kv@engine@model",
        replays: bool = True,
        topic_in_replay: bool = True,
        buffer_size: int = 10_000,
        connect_to: str | None = None,
    ) -> None:
        self.topic = topic
        self.topic_in_replay = topic_in_replay
        self.asked: list[int] = []
        """The start of every replay that was asked for, in order."""
        self.silent = False
        """True: replay requests are read and never answered."""
        self._replays = replays
        self._buffer_size = buffer_size
        self._connect_to = connect_to
        self._context = zmq.asyncio.Context()
        self._pub: zmq.asyncio.Socket | None = None
        self._router: zmq.asyncio.Socket | None = None
        self._serving: asyncio.Task[None] | None = None
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_size)
        self._next = 0
        self.endpoint = connect_to or "tcp://127.0.0.1:*"
        self.replay_endpoint = "tcp://127.0.0.1:*"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
        self._context.destroy(linger=0)

    async def start(self) -> None:
        """A process starts: its numbers begin at 0 and its buffer is empty."""
        self._next = 0
        self._buffer.clear()
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.setsockopt(zmq.LINGER, 0)
        self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)  # tell every subscription, also a repeated one
        if self._connect_to:
            self._pub.connect(self._connect_to)
        else:
            self.endpoint = await _bind(self._pub, self.endpoint)
        if self._replays:
            self._router = self._context.socket(zmq.ROUTER)
            self._router.setsockopt(zmq.LINGER, 0)
            self.replay_endpoint = await _bind(self._router, self.replay_endpoint)
            self._serving = asyncio.create_task(self._serve(self._router))

    async def stop(self) -> None:
        """The process ends; its ports close."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
            self._serving = None
        for socket in (self._pub, self._router):
            if socket is not None:
                socket.close(0)
        self._pub = self._router = None

    async def restart(self) -> None:
        """Another process on the same ports."""
        await self.stop()
        await self.start()

    async def subscribed(self, timeout_seconds: float = 60.0) -> None:
        """Wait until a subscriber's subscription has arrived."""
        assert self._pub is not None
        async with asyncio.timeout(timeout_seconds):
            while (await self._pub.recv())[:1] != b"\x01":
                pass

    async def publish(self, payload: bytes, *, lost: bool = False) -> int:
        """Number and buffer `payload`; send it unless it is `lost` on the way."""
        assert self._pub is not None
        number = self._next
        self._next += 1
        self._buffer.append((number, payload))
        if not lost:
            await self.send_raw([self.topic, number.to_bytes(8, "big"), payload])
        return number

    async def send_raw(self, frames: list[bytes]) -> None:
        """Publish any frames at all."""
        assert self._pub is not None
        await self._pub.send_multipart(frames)

    async def _serve(self, router: zmq.asyncio.Socket) -> None:
        while True:
            client, _, start = await router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            if self.silent:
                continue
            topic = [self.topic] if self.topic_in_replay else []
            for number, payload in list(self._buffer):
                if number >= first:
                    frames = [client, b"", *topic, number.to_bytes(8, "big"), payload]
                    await router.send_multipart(frames)
            no_topic = [b""] if self.topic_in_replay else []
            await router.send_multipart([client, b"", *no_topic, END, b""])


async def _bind(socket: zmq.asyncio.Socket, endpoint: str, deadline_seconds: float = 60.0) -> str:
    """Bind, waiting for a port that the previous process has just left."""
    async with asyncio.timeout(deadline_seconds):
        while True:
            try:
                socket.bind(endpoint)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise
                await asyncio.sleep(0.02)
            else:
                return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))
