"""KV events of the mock engines: `python -m bench.gateway.events SOURCES`.

Each source says, to whoever asks for a replay, that it holds some of the beginnings that prompts
share; so the gateway's index is synced and its look-ups find something. Prints the endpoints as
JSON, `[[events, replay], ...]`, and serves until standard input ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import zmq

from bench.gateway.workloads import long_prefix, small_prefixes
from kvmeta.types import GroupKind
from router.sim.engines.kv_events import BlocksStored, encode_batch
from router.sim.engines.specs import EventEncoding

BLOCK_SIZE = 16
_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


def share_out(sources: int) -> list[list[list[int]]]:
    """Return the beginnings that each source holds: small ones in turn, the long one the last."""
    held: list[list[list[int]]] = [[] for _ in range(sources)]
    for number, prefix in enumerate(small_prefixes()):
        held[number % sources].append(prefix)
    held[-1].append(long_prefix())
    return held


def encode_prefixes(prefixes: Sequence[Sequence[int]]) -> list[bytes]:
    """Return one batch a prefix, as an engine publishes them."""
    payloads: list[bytes] = []
    label = 0
    for prefix in prefixes:
        blocks = len(prefix) // BLOCK_SIZE
        stored = BlocksStored(
            group=0,
            kind=GroupKind.FULL_ATTENTION,
            window=None,
            block_size=BLOCK_SIZE,
            labels=list(range(label, label + blocks)),
            parent=None,
            tokens=prefix[: blocks * BLOCK_SIZE],
            extra_keys=[None] * blocks,
            lora=None,
        )
        label += blocks
        payloads.append(encode_batch([stored], timestamp=1.0, rank=0, encoding=EventEncoding.MAP))
    return payloads


def main() -> int:
    """Bind, tell where, answer replays."""
    context = zmq.Context()
    poller = zmq.Poller()
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    lives: list[zmq.Socket[bytes]] = []
    replays: dict[zmq.Socket[bytes], list[bytes]] = {}
    endpoints: list[tuple[str, str]] = []
    for prefixes in share_out(int(sys.argv[1])):
        live, replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        lives.append(live)  # a socket that nobody keeps is closed
        replays[replay] = encode_prefixes(prefixes)
        ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (live, replay)]
        endpoints.append((f"tcp://127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}"))
        poller.register(replay, zmq.POLLIN)
    sys.stdout.write(json.dumps(endpoints) + "\n")
    sys.stdout.flush()
    while True:
        for ready, _ in poller.poll():
            if ready == sys.stdin.fileno():
                context.destroy(linger=0)
                return 0
            answer_replay(ready, replays[ready])


def answer_replay(socket: zmq.Socket[bytes], payloads: Sequence[bytes]) -> None:
    """Send every batch from the one that is asked for, then the end."""
    identity, *_, start = socket.recv_multipart()
    for number in range(int.from_bytes(start, "big"), len(payloads)):
        frames = [identity, b"", b"", number.to_bytes(8, "big"), payloads[number]]
        socket.send_multipart(frames)
    socket.send_multipart([identity, b"", b"", _END_OF_REPLAY, b""])


if __name__ == "__main__":
    raise SystemExit(main())
