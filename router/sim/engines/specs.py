"""What a stand-in cluster is made of: frozen values that the composition root fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import lcm
from typing import Protocol

from kvmeta.types import GroupKind
from router.domain.topology import Role
from router.sim.engines.errors import SpecError


class EngineProfile(Protocol):
    """Times and sizes of one pool; `router.throughput.profiles.Profile` fits."""

    def prefill_seconds(self, tokens: float) -> float:
        """T_prefill of `tokens` uncached tokens, in seconds; 0 for none."""
        ...

    def kv_bytes(self, tokens: float) -> int:
        """S_kv of a prefix of `tokens` tokens, in bytes; 0 for none."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back; `router.adapters.tokenizers.HfTokenizer` fits."""

    @property
    def vocabulary_size(self) -> int:
        """The number of ids; every id is below it."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`."""
        ...

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Return each id's entry in the vocabulary, as stored."""
        ...

    def is_special(self, token: int) -> bool:
        """Tell whether `token` is a control token, never part of an answer's text."""
        ...

    def render_chat(
        self,
        messages: Sequence[dict[str, object]],
        *,
        tools: Sequence[dict[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: object,
    ) -> str:
        """Return the prompt text of a chat; raise a ValueError subclass for a bad one."""
        ...


class LoadFailurePolicy(StrEnum):
    """vLLM's `kv_load_failure_policy`."""

    FAIL = "fail"
    """The request ends with HTTP 500, or an error object in a stream that has begun (default)."""
    RECOMPUTE = "recompute"
    """The decode engine does the prefill itself."""


class EventEncoding(StrEnum):
    """How KV events are laid out in msgpack."""

    MAP = "map"
    """Tagged maps, vLLM 0.24 and newer."""
    ARRAY = "array"
    """Positional arrays with the tag first, vLLM up to 0.23."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """`count` equal KV groups. `block_size` in tokens, None for the cache's hash unit."""

    kind: GroupKind
    count: int = 1
    window: int | None = None
    block_size: int | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SpecError(f"a KV group needs a count of at least 1, got {self.count}")
        if (self.kind is GroupKind.SLIDING_WINDOW) != (self.window is not None):
            raise SpecError("a window belongs to sliding-window groups, and to those alone")


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The prefix cache of one engine.

    `hash_unit` is the tokens one chain label covers; each group's block is a multiple of it.
    `blocks` counts physical blocks of all groups together, as vLLM's pool does.
    `retention_interval` is vLLM's `prefix_cache_retention_interval`: 0 keeps sparse groups only at
    the replay boundary and at junctions (vLLM's default), n also every n tokens, None densely.
    """

    hash_unit: int = 64
    blocks: int = 65_536
    groups: tuple[GroupSpec, ...] = (GroupSpec(GroupKind.FULL_ATTENTION),)
    retention_interval: int | None = 0
    hash_seed: int = 0

    def __post_init__(self) -> None:
        if not self.groups:
            raise SpecError("a cache needs at least one KV group")
        if self.hash_unit < 1:
            raise SpecError(f"the hash unit must be positive, got {self.hash_unit}")
        for group in self.groups:
            if (group.block_size or self.hash_unit) % self.hash_unit:
                raise SpecError(f"a block of {group.block_size} is no multiple of the hash unit")
        if self.retention_interval and self.retention_interval % self.alignment:
            raise SpecError(f"the retention interval must be a multiple of {self.alignment}")

    @property
    def alignment(self) -> int:
        """The granularity of hits: the least common multiple of the groups' blocks, in tokens."""
        return lcm(*(group.block_size or self.hash_unit for group in self.groups))

    @property
    def is_recurrent(self) -> bool:
        """Whether a group keeps state, so that a prefill leg drops its last token."""
        return any(group.kind is GroupKind.RECURRENT for group in self.groups)

    def blocks_for(self, tokens: int) -> int:
        """Return the most physical blocks that a request of `tokens` tokens can hold at once."""
        total = 0
        for group in self.groups:
            size = group.block_size or self.hash_unit
            held = -(-tokens // size)
            if group.kind is GroupKind.RECURRENT:
                held = min(held, 4)  # the state hit, the last, the next, one on its way out
            total += group.count * held
        return total


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """The egress link from the cluster that owns it to `target`, another cluster's name.

    `gbps` is Gbit/s of simulated time. With `overlap` the transfer of a hand-off starts with its
    prefill (layer-wise); else it starts when the decode engine asks.
    """

    name: str
    target: str
    gbps: float
    overlap: bool = True
    up: bool = True

    def __post_init__(self) -> None:
        if not self.gbps >= 0:
            raise SpecError(f"link {self.name}: bandwidth must not be negative, got {self.gbps}")


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine. Ports are on the cluster's host; 0 takes a free one.

    Seconds are simulated. `max_concurrency` counts decode slots, `decode_tokens_per_second` is the
    rate of each. `batch_tokens` is vLLM's `max_num_batched_tokens`, the longest prefill step.
    `replay_steps` and `replay_bytes` bound the replay buffer, whichever is reached first.
    `lease_seconds` is how long a finished prefill waits for its pull (vLLM's `kv_lease_duration`);
    because routers do not run in simulated time it never falls below `lease_floor_seconds` of
    wall time. `max_queued` refuses further requests with 503, None for no limit.
    """

    name: str
    profile: EngineProfile
    model: str
    role: Role = Role.BOTH
    port: int = 0
    events_port: int | None = 0
    replay_port: int | None = 0
    cache: CacheSpec = field(default_factory=CacheSpec)
    max_model_len: int = 131_072
    max_concurrency: int = 256
    decode_tokens_per_second: float = 40.0
    batch_tokens: int = 8192
    event_encoding: EventEncoding = EventEncoding.MAP
    topic: str = ""
    replay_steps: int = 100_000
    replay_bytes: int = 256 * 1024 * 1024
    lease_seconds: float = 30.0
    lease_floor_seconds: float = 1.0
    load_failure_policy: LoadFailurePolicy = LoadFailurePolicy.FAIL
    enable_scale_out: bool = False
    enable_request_id_headers: bool = True
    report_cached_tokens: bool = True
    max_queued: int | None = None
    aliases: tuple[str, ...] = ()
    loras: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.decode_tokens_per_second <= 0 or self.max_concurrency < 1 or self.batch_tokens < 1:
            raise SpecError(f"engine {self.name}: rates and limits must be positive")
        needed = self.cache.blocks_for(self.max_model_len)
        if self.cache.blocks < needed:
            raise SpecError(
                f"engine {self.name}: {self.cache.blocks} blocks cannot hold one request of "
                f"{self.max_model_len} tokens, which takes {needed}"
            )


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The engines of one cluster, which one process serves, and the links that leave it.

    All simulated time runs `time_scale` times faster than the wall clock.
    """

    name: str
    engines: tuple[EngineSpec, ...]
    links: tuple[LinkSpec, ...] = ()
    host: str = "127.0.0.1"
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.time_scale <= 0:
            raise SpecError(f"cluster {self.name}: the time scale must be positive")
        names = [engine.name for engine in self.engines]
        if len(set(names)) != len(names):
            raise SpecError(f"cluster {self.name}: two engines share a name")
        targets = [link.target for link in self.links]
        if len(set(targets)) != len(targets):
            raise SpecError(f"cluster {self.name}: two links lead to one cluster")
        if self.name in targets:
            raise SpecError(f"cluster {self.name}: a link cannot lead back to its own cluster")
