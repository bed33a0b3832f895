"""KV events over ZMQ as vLLM publishes them: a PUB socket, and a ROUTER that replays.

Three frames: topic, sequence (8 bytes, big-endian, from 0 with each incarnation), payload. A replay
request is one such sequence after an empty delimiter; the answer is every buffered batch from
there, then an end marker with sequence -1 (ENGINE-FACTS 1.1, 1.7). Publishing never blocks: a slow
subscriber loses messages at the high-water mark, as in vLLM.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import zmq
import zmq.asyncio

from router.sim.engines.kv_events import KvEvent, encode_batch
from router.sim.engines.specs import EngineSpec

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_BIND_DEADLINE_SECONDS = 5.0
_BIND_RETRY_SECONDS = 0.01


class EventPublisher:
    """One engine's event stream. `wall_time` stamps batches, in seconds since 1970."""

    def __init__(self, spec: EngineSpec, host: str, wall_time: Callable[[], float]) -> None:
        self._spec = spec
        self._host = host
        self._wall_time = wall_time
        self._context = zmq.asyncio.Context()
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.asyncio.Socket | None = None
        self._replayer: asyncio.Task[None] | None = None
        self._buffer: deque[tuple[int, bytes]] = deque()
        self._buffered_bytes = 0
        self.sequence = 0
        self.events_port = spec.events_port
        self.replay_port = None if spec.events_port is None else spec.replay_port
        self.drop_live = 0
        self.drop_replay = False

    async def start(self, *, patient: bool = False) -> None:
        """Bind both sockets; the ports are known afterwards.

        Raises zmq.ZMQError for a port that is taken; `patient` waits for it, as a restart does.
        """
        if self._spec.events_port is None:
            return
        # A plain socket: PUB never blocks, so there is nothing to wait for.
        pub = zmq.Context(self._context).socket(zmq.PUB)
        pub.linger = 0
        pub.sndhwm = 100_000  # vLLM's default `hwm`
        self._pub = pub
        self.events_port = await self._bind(pub, self._spec.events_port, patient=patient)
        if self._spec.replay_port is not None:
            self._router = self._context.socket(zmq.ROUTER)
            # vLLM leaves the default of 1,000, beyond which a ROUTER drops without a word.
            self._router.sndhwm = 0
            self._router.linger = 0
            self.replay_port = await self._bind(
                self._router, self._spec.replay_port, patient=patient
            )
            self._replayer = asyncio.create_task(self._serve_replay(self._router))

    async def stop(self) -> None:
        """Close the sockets; the buffer is forgotten with the incarnation."""
        if self._replayer is not None:
            self._replayer.cancel()
            await asyncio.gather(self._replayer, return_exceptions=True)
        for socket in (self._pub, self._router):
            if socket is not None:
                socket.close(linger=0)
        self._context.term()

    def publish(self, events: Sequence[KvEvent]) -> None:
        """Send one step's events as the next batch; nothing for an engine without events."""
        if self._pub is None or not events:
            return
        payload = encode_batch(
            events, timestamp=self._wall_time(), rank=0, encoding=self._spec.event_encoding
        )
        sequence, self.sequence = self.sequence, self.sequence + 1
        dropped = self.drop_live > 0
        self.drop_live -= dropped
        if not (dropped and self.drop_replay):
            self._remember(sequence, payload)
        if not dropped:
            frames = [self._spec.topic.encode(), sequence.to_bytes(8, "big"), payload]
            self._pub.send_multipart(frames, flags=zmq.NOBLOCK)

    def describe_source(self) -> dict[str, object]:
        """Return this source's entry of `GET /kv_event_sources`.

        A wildcard, as of an engine that binds; one with a host would say that it connects there.
        """
        enabled = self._pub is not None
        replay = f"tcp://*:{self.replay_port}" if self._router else None
        return {
            "enable_kv_cache_events": enabled,
            "publisher": "zmq" if enabled else "null",
            "endpoint": f"tcp://*:{self.events_port}" if enabled else None,
            "replay_endpoint": replay,
            "buffer_steps": self._spec.replay_steps,
            "hwm": 100_000,
            "max_queue_size": 100_000,
            "topic": self._spec.topic,
        }

    def _remember(self, sequence: int, payload: bytes) -> None:
        self._buffer.append((sequence, payload))
        self._buffered_bytes += len(payload)
        while (
            len(self._buffer) > self._spec.replay_steps
            or self._buffered_bytes > self._spec.replay_bytes
        ):
            self._buffered_bytes -= len(self._buffer.popleft()[1])

    async def _serve_replay(self, router: zmq.asyncio.Socket) -> None:
        while True:
            identity, *rest = await router.recv_multipart()
            if not rest or len(rest[-1]) != 8:
                continue
            start = int.from_bytes(rest[-1], "big")
            topic = self._spec.topic.encode()
            for sequence, payload in list(self._buffer):
                if sequence >= start:
                    frames = [identity, b"", topic, sequence.to_bytes(8, "big"), payload]
                    await router.send_multipart(frames)
            await router.send_multipart([identity, b"", b"", END_OF_REPLAY, b""])

    async def _bind(
        self, socket: zmq.Socket[bytes] | zmq.asyncio.Socket, port: int, *, patient: bool
    ) -> int:
        """Bind to `port`, or a free one for 0; a port just given up takes a moment to be free."""
        async with asyncio.timeout(_BIND_DEADLINE_SECONDS):
            while True:
                try:
                    socket.bind(f"tcp://{self._host}:{port or '*'}")
                    break
                except zmq.ZMQError as error:
                    if error.errno != zmq.EADDRINUSE or not patient:
                        raise
                await asyncio.sleep(_BIND_RETRY_SECONDS)
        endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
        return int(bytes(endpoint).rstrip(b"\0").rsplit(b":", 1)[1])
