"""A stand-in for LMCache's coordinator that answers `/directory/lookup` as version 0.5.6 does.

It names chunks by a chain of its own, lists every chunk and rank of object group 0 whether anything
is known of it or not, and of other groups only what is stored. What it is asked is kept.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fakes.scripted_engine import Recorded, Script, ScriptedEngine, json_answer

Key = tuple[str, str, int, int, str]
"""(chunk hash, model, rank, object group, salt)."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where one key is."""

    server: str
    tier: str = "l1"
    shared: bool = False


class LmcacheCoordinator(ScriptedEngine):
    """A live coordinator; `store` fills its directory."""

    def __init__(self, *, chunk_size: int = 16, world_size: int = 1) -> None:
        super().__init__(json_answer({"detail": "Not Found"}, 404))
        self.chunk_size = chunk_size
        self.world_size = world_size
        self.asked: list[dict[str, Any]] = []
        self.directory: dict[Key, list[Stored]] = defaultdict(list)
        self.works()

    def works(self) -> None:
        """Answer as a healthy coordinator."""
        self.on("/directory/lookup", self._lookup)

    def hashes(self, tokens: Sequence[int]) -> Iterator[str]:
        """The hash of every complete chunk; the salt is beside it, not in it."""
        running = b""
        for end in range(self.chunk_size, len(tokens) + 1, self.chunk_size):
            chunk = repr(list(tokens[end - self.chunk_size : end])).encode()
            running = hashlib.blake2b(running + chunk, digest_size=16).digest()
            yield running.hex()

    def store(
        self,
        tokens: Sequence[int],
        stored: Stored,
        *,
        model: str = "tiny",
        salt: str = "",
        ranks: Sequence[int] | None = None,
        groups: Sequence[int] = (0,),
    ) -> None:
        """Place every complete chunk of a prompt, for each of `ranks` (all) and `groups`."""
        for chunk in self.hashes(tokens):
            for rank in range(self.world_size) if ranks is None else ranks:
                for group in groups:
                    self.directory[chunk, model, self._rank(rank), group, salt].append(stored)

    def _rank(self, rank: int) -> int:
        """As `ObjectKey.ComputeKVRank` packs them: opaque numbers that hold the world size too."""
        return self.world_size << 24 | rank << 16

    def _lookup(self, request: Recorded) -> Script:
        body = request.json()
        self.asked.append(body)
        world, salt, model = body["world_size"], body["cache_salt"], body["model_name"]
        chunks = list(self.hashes(body["token_ids"]))
        results = [
            self._result((chunk, model, self._rank(rank), group, salt))
            for chunk in chunks
            for rank in range(world)
            for group in self._groups(chunk, model, self._rank(rank), salt)
        ]
        return json_answer({"chunks": len(chunks), "results": results})

    def _groups(self, chunk: str, model: str, rank: int, salt: str) -> list[int]:
        stored = {
            key[3] for key in self.directory if (*key[:3], key[4]) == (chunk, model, rank, salt)
        }
        return sorted({0} | stored)

    def _result(self, key: Key) -> dict[str, Any]:
        chunk, model, rank, group, salt = key
        return {
            "key": {
                "chunk_hash_hex": chunk,
                "model_name": model,
                "kv_rank": rank,
                "object_group_id": group,
                "cache_salt": salt,
            },
            "placements": [
                {
                    "instance_id": each.server,
                    "incarnation": 1,
                    "tier": each.tier,
                    "backend": "dram" if each.tier == "l1" else "fs",
                    "size_bytes": 1024,
                    "shared": each.shared,
                }
                for each in self.directory.get(key, [])
            ],
            "token_ids": [],
            "access_count": 0,
        }
