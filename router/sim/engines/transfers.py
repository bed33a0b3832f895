"""The NIXL hand-off as JSON, and the port by which a decode engine pulls (ENGINE-FACTS 3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

JsonObject = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PullTicket:
    """What a decode engine must know of a finished prefill to pull its KV."""

    host: str
    port: int
    engine_id: str
    request_id: str
    prefill_cached_tokens: int | None

    @classmethod
    def from_params(cls, params: JsonObject) -> PullTicket | None:
        """Read `kv_transfer_params`; None if a field that vLLM requires is missing or unusable."""
        host, port = params.get("remote_host"), params.get("remote_port")
        engine_id, request_id = params.get("remote_engine_id"), params.get("remote_request_id")
        cached = params.get("remote_prefill_cached_tokens")
        if not (isinstance(host, str) and isinstance(engine_id, str)):
            return None
        if not (isinstance(request_id, str) and isinstance(port, int)):
            return None
        if not params.get("remote_block_ids"):
            return None
        known = cached if isinstance(cached, int) else None
        return cls(host, port, engine_id, request_id, known)


@dataclass(frozen=True, slots=True)
class PullAsk:
    """One pull as the prefill engine hears it. `local_tokens` is what the puller holds itself."""

    engine_id: str
    request_id: str
    cluster: str
    local_tokens: int


@dataclass(frozen=True, slots=True)
class PullReceipt:
    """What a pull moved, in bytes of simulated KV."""

    size: int


class Puller(Protocol):
    """How KV of another engine is fetched."""

    async def pull(self, ticket: PullTicket, *, cluster: str, local_tokens: int) -> PullReceipt:
        """Return once the KV has crossed. Raises PullError; cancelling gives the hand-off up."""
        ...

    async def discard(self, ticket: PullTicket) -> None:
        """Tell the prefill engine that nobody will pull. Never raises for a lost notice."""
        ...


def wants_remote_decode(params: JsonObject | None) -> bool:
    """Tell whether a request is a prefill leg."""
    return params is not None and params.get("do_remote_decode") is True


def wants_remote_prefill(params: JsonObject | None) -> bool:
    """Tell whether a request is a decode leg."""
    return params is not None and params.get("do_remote_prefill") is True


def offer_params(
    *,
    engine_id: str,
    request_id: str,
    host: str,
    port: int,
    block_ids: Sequence[Sequence[int]],
    tokens: int,
    cached_tokens: int,
) -> dict[str, object]:
    """Return the `kv_transfer_params` of a prefill leg's answer, field for field as vLLM's."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(group) for group in block_ids],
        "remote_engine_id": engine_id,
        "remote_request_id": request_id,
        "remote_host": host,
        "remote_port": port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": None,
        "remote_registration_generation": 0,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": cached_tokens,
    }
