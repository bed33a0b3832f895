"""Stand-in clusters for tests: a plain profile, small specs, and both ends of a link."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from kvmeta.types import GroupKind
from router.adapters.tokenizers import HfTokenizer
from router.adapters.turn_tokenizers import TurnTokenizer
from router.domain.topology import Role
from router.sim.engines.cluster import RunningCluster, serve_cluster
from router.sim.engines.specs import CacheSpec, ClusterSpec, EngineSpec, GroupSpec, LinkSpec
from router.sim.tokenizer import locate_tokenizer

MODEL = "tiny"
HYBRID = (GroupSpec(GroupKind.RECURRENT, 3), GroupSpec(GroupKind.FULL_ATTENTION))


@dataclass(frozen=True, slots=True)
class AffineProfile:
    """T_prefill = base + tokens / rate, S_kv = fixed + tokens * per_token."""

    base_seconds: float = 0.0
    tokens_per_second: float = 10_000.0
    fixed_bytes: int = 0
    bytes_per_token: int = 1000

    def prefill_seconds(self, tokens: float) -> float:
        return self.base_seconds + tokens / self.tokens_per_second if tokens > 0 else 0.0

    def kv_bytes(self, tokens: float) -> int:
        return int(self.fixed_bytes + self.bytes_per_token * tokens) if tokens > 0 else 0


@functools.cache
def shipped_tokenizer() -> HfTokenizer:
    """The tokenizer that ships with the stand-ins, loaded once."""
    return HfTokenizer.load(locate_tokenizer())


def turn_tokenizer(max_bytes: int = 1_000_000) -> TurnTokenizer:
    """The same as the gateway uses it, not improved yet, with a memory of its own."""
    document = HfTokenizer.read_document(locate_tokenizer())
    return TurnTokenizer("tiny", shipped_tokenizer(), max_bytes=max_bytes, document=document)


def engine_spec(name: str, role: Role = Role.BOTH, **changes: object) -> EngineSpec:
    """A small engine on free ports."""
    fields: dict[str, object] = {
        "profile": AffineProfile(),
        "model": MODEL,
        "cache": CacheSpec(hash_unit=16, blocks=4096),
        "max_model_len": 8192,
        "decode_tokens_per_second": 1000.0,
    }
    return EngineSpec(name=name, role=role, **{**fields, **changes})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class TwoClusters:
    """A PrfaaS engine `pf`, and a PD cluster of `p` and `d`, behind the link `west-east`."""

    west: RunningCluster
    east: RunningCluster
    client: httpx.AsyncClient

    def url(self, name: str) -> str:
        cluster = self.west if name in self.west.engines else self.east
        return cluster.engines[name].url

    async def complete(self, name: str, **body: object) -> httpx.Response:
        return await self.client.post(f"{self.url(name)}/v1/completions", json=asking(**body))

    async def prefill(self, name: str, prompt: list[int], **body: object) -> dict[str, object]:
        answer = await self.complete(name, prompt=prompt, **{**PREFILL_LEG, **body})
        assert answer.status_code == 200, answer.text
        params: dict[str, object] = answer.json()["kv_transfer_params"]
        return params

    async def state(self, name: str) -> dict[str, object]:
        answer = await self.client.get(f"{self.url(name)}/standin/state")
        document: dict[str, object] = answer.json()
        return document


PREFILL_LEG: dict[str, object] = {
    "max_tokens": 1,
    "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
}


def asking(**body: object) -> dict[str, object]:
    """A completion body with the fields that tests rarely vary."""
    return {"model": MODEL, "max_tokens": 8, "return_token_ids": True, **body}


@asynccontextmanager
async def two_clusters(
    *,
    gbps: float = 1.0,
    overlap: bool = True,
    time_scale: float = 100.0,
    **changes: object,
) -> AsyncIterator[TwoClusters]:
    """Serve both clusters and a client for the time of a test."""
    link = LinkSpec("west-east", "east", gbps, overlap=overlap)
    west = ClusterSpec(
        "west", (engine_spec("pf", Role.PREFILL, **changes),), (link,), time_scale=time_scale
    )
    east = ClusterSpec(
        "east",
        (engine_spec("p", Role.PREFILL, **changes), engine_spec("d", Role.DECODE, **changes)),
        time_scale=time_scale,
    )
    tokenizer = shipped_tokenizer()
    async with (
        serve_cluster(west, tokenizer=tokenizer) as left,
        serve_cluster(east, tokenizer=tokenizer) as right,
        httpx.AsyncClient(timeout=20, trust_env=False) as client,
    ):
        yield TwoClusters(left, right, client)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    """Poll until `condition` holds; fail when it does not in time."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - state is only to be had by asking
            await asyncio.sleep(0.005)
