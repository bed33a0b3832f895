"""What is read from a pool's directory against an oracle that tries every length."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmeta.errors import DirectoryError
from kvmeta.pools.lmcache import PoolShape, read_lookup

SERVERS = ("s0", "s1", "s2")
Directory = dict[tuple[int, int, int], list[tuple[str, str, bool]]]
"""(chunk, group, rank) -> where: (server, tier, shared)."""


def answer(directory: Directory, chunks: int, ranks: int, groups: int) -> bytes:
    """The coordinator's answer: group 0 in full, of the others what is stored."""
    results = [
        {
            "key": {"chunk_hash_hex": f"{chunk:032x}", "kv_rank": rank, "object_group_id": group},
            "placements": [
                {"instance_id": server, "tier": tier, "shared": shared}
                for server, tier, shared in directory.get((chunk, group, rank), [])
            ],
        }
        for chunk in range(chunks)
        for rank in range(ranks)
        for group in range(groups)
        if group == 0 or (chunk, group, rank) in directory
    ]
    return msgspec.json.encode({"chunks": chunks, "results": results})


def can_load(
    directory: Directory, server: str, chunks: int, ranks: int, groups: int, shape: PoolShape
) -> bool:
    """Whether every key of the first `chunks` chunks can be had at `server`."""
    return all(
        any(
            tier in shape.tiers and (where == server or shared or shape.any_server)
            for where, tier, shared in directory.get((chunk, group, rank), [])
        )
        for chunk in range(chunks)
        for group in range(groups)
        for rank in range(ranks)
    )


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_depth_is_the_longest_that_every_key_allows(seed: int) -> None:
    """Whatever is placed where, each server's depth is the oracle's."""
    rng = random.Random(seed)
    chunks, ranks, groups = rng.randrange(1, 7), rng.randrange(1, 4), rng.randrange(1, 4)
    shape = PoolShape(
        chunk_tokens=4,
        object_groups=groups,
        tiers=frozenset(rng.choice([{"l1"}, {"l1", "l2"}])),
        any_server=rng.random() < 0.2,
    )
    directory: Directory = {}
    for chunk in range(chunks):
        for group in range(groups):
            for rank in range(ranks):
                for server in SERVERS:
                    if rng.random() < 0.9:
                        where = (server, rng.choice(["l1", "l1", "l2"]), rng.random() < 0.1)
                        directory.setdefault((chunk, group, rank), []).append(where)
    total = 4 * chunks + rng.randrange(4)
    found = read_lookup(answer(directory, chunks, ranks, groups), shape, total_tokens=total)
    for server in SERVERS:
        longest = max(
            length
            for length in range(chunks + 1)
            if can_load(directory, server, length, ranks, groups, shape)
        )
        assert found.depth(server) == longest


@given(st.binary())
def test_any_bytes_are_an_answer_or_a_directory_error(body: bytes) -> None:
    """Nothing that a coordinator sends raises anything else."""
    with pytest.raises(DirectoryError):
        read_lookup(body, PoolShape(), total_tokens=512)
