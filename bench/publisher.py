"""A publisher of KV events for `bench.index`: encodes its batches first, then sends all at once.

Usage: python -m bench.publisher BATCHES NUMBER

Prints its endpoint, then a line once somebody subscribed; sends after a line on standard input and
ends after another one.
"""

from __future__ import annotations

import sys

import msgspec
import zmq

BLOCKS_PER_BATCH = 128
"""What a step of 8,192 prefill tokens stores in blocks of 64."""

_BLOCK = 64


def payload(publisher: int, number: int) -> bytes:
    """One batch as vLLM 0.24 and later send it: a new prompt's blocks."""
    first = (publisher * 1_000_000 + number) * BLOCKS_PER_BATCH
    stored = {
        "type": "BlockStored",
        "block_hashes": list(range(first, first + BLOCKS_PER_BATCH)),
        "parent_block_hash": None,
        "token_ids": [
            (first * _BLOCK + at) * 2_654_435_761 % 150_000
            for at in range(BLOCKS_PER_BATCH * _BLOCK)
        ],
        "block_size": _BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * BLOCKS_PER_BATCH,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return msgspec.msgpack.encode([1.0, [stored], 0])


def main() -> int:
    """Encode, wait for the subscriber, send."""
    payloads = [payload(int(sys.argv[2]), number) for number in range(int(sys.argv[1]))]
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.SNDHWM, 0)  # nothing is dropped: what is measured is the other side
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    sys.stdout.write(f"tcp://127.0.0.1:{port}\n")
    sys.stdout.flush()
    socket.recv()
    sys.stdout.write("subscribed\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for number, one in enumerate(payloads):
        socket.send_multipart([b"kv", number.to_bytes(8, "big"), one])
    sys.stdin.readline()
    socket.close(linger=0)
    context.term()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
