"""LMCache's coordinator: `POST /directory/lookup` -> the longest prefix that a server can give.

The coordinator (lmcache/v1/mp_coordinator/http_apis/directory_api.py) names a prompt's chunks by
itself and answers where each is:

    {token_ids, model_name, world_size, cache_salt}
    -> {"chunks": n, "results": [{"key": {"chunk_hash_hex", "model_name", "kv_rank",
        "object_group_id", "cache_salt"}, "placements": [{"instance_id", "incarnation", "tier",
        "backend", "size_bytes", "shared"}], "token_ids": […], "access_count": n}, …]}

One result for each chunk and rank of object group 0, in the order of the prompt, and one for each
*stored* copy in another group: what is missing there is not listed at all. So the number of groups
has to be known, and nothing may be taken from the number of results. A prefix of n chunks can be
given if every chunk before n is placed whole: every rank of every group, on that server or on a
backend that the whole fleet shares.

Placements are hints, about a second old. Salts are part of the keys, so no other tenant's are seen.
Only what engines offloaded is known; what lies in their GPUs alone is not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kvmeta.errors import DirectoryError

LOOKUP_PATH = "/directory/lookup"

_Place = tuple[int, int]
"""(object group, rank) of one key of a chunk."""


class _Key(msgspec.Struct):
    chunk_hash_hex: str
    kv_rank: int
    object_group_id: int = 0


class _Placement(msgspec.Struct):
    instance_id: str
    tier: str = "l1"
    shared: bool = False


class _Result(msgspec.Struct):
    key: _Key
    placements: list[_Placement] = []


class _Answer(msgspec.Struct):
    chunks: int
    results: list[_Result]


_DECODER = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class PoolShape:
    """How a pool cuts and spreads KV: what has to agree with its servers.

    `chunk_tokens` is their `--chunk-size`, `object_groups` how many groups a chunk is stored in
    (1 without `--separate-object-groups`), `tiers` those that count. `any_server`: servers fetch
    from each other, so what one has all have.
    """

    chunk_tokens: int = 256
    object_groups: int = 1
    tiers: frozenset[str] = frozenset({"l1", "l2"})
    any_server: bool = False


@dataclass(frozen=True, slots=True)
class Chunks:
    """Who has the whole of each chunk, in the order of the prompt; None means every server."""

    holders: Sequence[frozenset[str] | None] = field(repr=False)

    def depth(self, server: str) -> int:
        """How many chunks from the first on `server` has whole."""
        for at, holders in enumerate(self.holders):
            if holders is not None and server not in holders:
                return at
        return len(self.holders)


def form_lookup(
    tokens: Sequence[int], *, model_name: str, world_size: int, salt: str | None
) -> bytes:
    """Return the request's body. It holds the prompt and the salt: never log it."""
    return msgspec.json.encode(
        {
            "token_ids": list(tokens),
            "model_name": model_name,
            "world_size": world_size,
            "cache_salt": salt or "",
        }
    )


def read_lookup(body: bytes, shape: PoolShape, *, total_tokens: int) -> Chunks:
    """Return who has each whole chunk of a prompt of `total_tokens`.

    Raises:
        DirectoryError: no answer of this form, or one that cuts the prompt otherwise than `shape`:
            then its servers and this configuration disagree, and nothing of it can be used.
    """
    try:
        answer = _DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DirectoryError("the coordinator's answer cannot be read") from error
    if answer.chunks != total_tokens // shape.chunk_tokens:
        raise DirectoryError(
            f"the coordinator cuts chunks of another size than {shape.chunk_tokens} tokens"
        )
    chunks: dict[str, dict[_Place, list[_Placement]]] = {}
    for result in answer.results:
        place = (result.key.object_group_id, result.key.kv_rank)
        chunks.setdefault(result.key.chunk_hash_hex, {})[place] = result.placements
    if len(chunks) != answer.chunks:
        raise DirectoryError("the coordinator's answer leaves chunks out")
    needed = _needed_places(chunks, shape)
    return Chunks([_whole_at(placed, needed, shape) for placed in chunks.values()])


def _needed_places(
    chunks: Mapping[str, Mapping[_Place, object]], shape: PoolShape
) -> frozenset[_Place]:
    """Every rank in every group: those declared, and those that some chunk turns out to have."""
    seen = [place for placed in chunks.values() for place in placed]
    ranks = {rank for _, rank in seen}
    groups = {group for group, _ in seen} | set(range(shape.object_groups))
    return frozenset((group, rank) for group in groups for rank in ranks)


def _whole_at(
    placed: Mapping[_Place, list[_Placement]], needed: Collection[_Place], shape: PoolShape
) -> frozenset[str] | None:
    """The servers that can give all of one chunk; None for every one."""
    whole: frozenset[str] | None = None  # no restriction yet
    for place in needed:
        counted = [each for each in placed.get(place, ()) if each.tier in shape.tiers]
        if any(each.shared or shape.any_server for each in counted):
            continue
        servers = frozenset(each.instance_id for each in counted)
        whole = servers if whole is None else whole & servers
    return whole
