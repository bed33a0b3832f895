"""Pools that a cluster's instances share, as one more thing known of their caches (DESIGN 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvmeta.types import CacheBelief, CacheLayout, PromptBlocks, SourceId, SourceState
from router.domain.units import Seconds, Tokens
from router.service.fleet import Fleet
from router.service.models import NamedModel
from router.service.snapshots import Beliefs


@dataclass(frozen=True, slots=True)
class PoolPrompt:
    """A prompt as a pool's directory wants it. `salt` is the one that engines will get."""

    tokens: Sequence[int] = field(repr=False)
    salt: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """How the latest question went. None: none was asked, or none was ever answered."""

    answering: bool | None = None
    answered_at: Seconds | None = None


class PrefixPool(Protocol):
    """The directory of one pool, for one model."""

    @property
    def status(self) -> PoolStatus:
        """How it does."""
        ...

    async def look_up(self, prompt: PoolPrompt, members: Collection[str]) -> Mapping[str, Tokens]:
        """Return how much of `prompt` each member could load, from its first token on.

        `members` are the names by which the pool knows them. Bounded by the pool's own budget, and
        never raises: a pool that cannot be asked in time has nothing to say, an empty mapping.
        """
        ...


class PoolBook:
    """Every cluster's pools, by (cluster, model)."""

    def __init__(self, fleet: Fleet, pools: Mapping[tuple[str, str], PrefixPool]) -> None:
        self._fleet = fleet
        self._pools = pools

    async def look_up(
        self, named: NamedModel, tokens: Sequence[int], salt: str | None
    ) -> Mapping[SourceId, Tokens]:
        """Ask the pools of a model, all at once; return what each prefill source could load.

        A pool's keys leave adapters out, so nothing of it counts for a prompt of one.
        """
        if named.lora is not None or not self._pools:
            return {}
        prompt = PoolPrompt(tokens, salt)
        found: dict[SourceId, Tokens] = {}
        asked = [key for key in self._pools if key[1] == named.model.name]
        for held in await asyncio.gather(*(self._ask(key, prompt) for key in asked)):
            found |= held
        return found

    @property
    def is_empty(self) -> bool:
        """Whether there is no pool to ask."""
        return not self._pools

    @property
    def pools(self) -> Mapping[tuple[str, str], PrefixPool]:
        """The pools, by (cluster, model)."""
        return self._pools

    @property
    def statuses(self) -> Mapping[tuple[str, str], PoolStatus]:
        """How every pool does, by (cluster, model)."""
        return {key: pool.status for key, pool in self._pools.items()}

    async def _ask(self, key: tuple[str, str], prompt: PoolPrompt) -> Mapping[SourceId, Tokens]:
        cluster, model = key
        members = [
            member.instance
            for member in self._fleet.members_of(cluster, model)
            if member.instance.can_prefill
        ]
        if not members:
            return {}
        names = {instance.pool_member or instance.name for instance in members}
        held = await self._pools[key].look_up(prompt, names)
        return {
            SourceId(instance.name, rank): held.get(instance.pool_member or instance.name, 0)
            for instance in members
            for rank in range(instance.ranks)
        }


def raise_beliefs(
    beliefs: Beliefs, pooled: Mapping[SourceId, Tokens], prompt: PromptBlocks, layout: CacheLayout
) -> Beliefs:
    """Return `beliefs` with what can be loaded from pools where that is more.

    Such a belief is `partial`: a lower bound, for the pool does not know what lies in GPUs alone,
    and its word is a moment old. An engine uses whole aligned blocks of it, with EAGLE one less.
    """
    if not pooled:
        return beliefs
    raised = dict(beliefs)
    for source, tokens in pooled.items():
        usable = min(tokens, prompt.limit) - (layout.block_size if layout.eagle else 0)
        usable -= usable % layout.declared_alignment
        if usable > (raised.get(source, CacheBelief.unknown()).tokens or 0):
            raised[source] = CacheBelief(usable, SourceState.PARTIAL)
    return raised
