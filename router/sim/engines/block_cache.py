"""The prefix cache of one engine: look-up, allocation, retention, eviction, events.

One request goes through `look_up`, `admit`, then for each engine step `allocate` and `commit`, and
last `release`. Everything is synchronous and deterministic; events pile up until `take_events`.

Look-up is vLLM's fixed point over the groups (v1/core/kv_cache_coordinator.py): every group maps
the candidate length to the largest length that it could serve, until none shrinks it. If one group
alone could have served more, that longer length is a *junction*, a prefix shared with an earlier
request at which sparse groups kept nothing; the request stores it on its way, so that the next
sibling hits (ENGINE-FACTS 2.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvmeta.types import GroupKind
from router.sim.engines.block_pool import NULL_BLOCK, BlockPool
from router.sim.engines.chains import TokenChain
from router.sim.engines.groups import (
    GroupHit,
    GroupSet,
    count_skipped_tokens,
    find_hit,
    list_group_sets,
    mark_retained,
)
from router.sim.engines.kv_events import AllCleared, BlockRemoved, BlocksStored, KvEvent
from router.sim.engines.specs import CacheSpec


@dataclass(frozen=True, slots=True)
class Hit:
    """The reusable prefix of a prompt: `tokens`, a block table per group, and the junction.

    `junction` is the end of a shared prefix that could not be reused, in tokens, 0 for none.
    """

    tokens: int
    tables: tuple[list[int], ...]
    junction: int = 0


@dataclass(slots=True, eq=False)
class Holding:
    """What one running request holds.

    `prompt_tokens` is the length that decides the replay boundary. `peak` is the most blocks that
    it may come to hold, `held` what it holds now: the difference is promised to it, so that an
    admission never has to be taken back.
    """

    chain: TokenChain
    prompt_tokens: int
    junction: int
    tables: list[list[int]]
    told: list[int]
    retired: list[int]
    computed: int
    peak: int
    held: int

    @property
    def promised(self) -> int:
        """Blocks that it may still take."""
        return max(0, self.peak - self.held)


class BlockCache:
    """All KV blocks of one engine."""

    def __init__(self, spec: CacheSpec) -> None:
        self.spec = spec
        self._sets = list_group_sets(spec)
        by_id = {group_id: group for group in self._sets for group_id in group.ids}
        self._by_id: dict[int, GroupSet] = dict(sorted(by_id.items()))
        self.pool = BlockPool(spec.blocks, len(self._by_id))
        self._alignment = spec.alignment
        self._promised = 0
        self._events: list[KvEvent] = []

    def __repr__(self) -> str:
        return f"<BlockCache {self.pool!r}, {len(self._events)} events to tell>"

    @property
    def usage(self) -> float:
        """The part of the blocks that requests hold, from 0 to 1."""
        return self.pool.used / self.pool.capacity

    @property
    def has_events(self) -> bool:
        """Whether events wait for the end of a step."""
        return bool(self._events)

    @property
    def awaits_step(self) -> bool:
        """Whether a reset is yet to be told: vLLM tells it with the next step only."""
        return any(isinstance(event, AllCleared) for event in self._events)

    def take_events(self) -> list[KvEvent]:
        """Return what happened since the last call, in order, and forget it."""
        events, self._events = self._events, []
        return events

    def chain(
        self,
        tokens: list[int],
        *,
        salt: str | None = None,
        lora: str | None = None,
        raw: bytes | None = None,
    ) -> TokenChain:
        """Label `tokens` the way this cache does; `raw` is their packed form if known."""
        spec = self.spec
        return TokenChain(
            tokens, unit=spec.hash_unit, seed=spec.hash_seed, salt=salt, lora=lora, raw=raw
        )

    def look_up(self, chain: TokenChain, limit: int, *, attention_only: bool = False) -> Hit:
        """Return the longest prefix of at most `limit` tokens that every group can serve.

        With `attention_only` recurrent groups are left out: their state comes with a hand-off
        anyway, so vLLM reports the attention groups' hit to the connector.
        """
        sets = [
            group
            for group in self._sets
            if not (attention_only and group.kind is GroupKind.RECURRENT)
        ]
        hits: dict[GroupSet, GroupHit] = {}
        length, longest = limit, 0
        while True:
            candidate = length
            for group in sets:
                known = hits.get(group)
                if known is not None and group.kind is GroupKind.FULL_ATTENTION:
                    candidate = min(candidate, known.tokens)  # every shorter prefix is there too
                    continue
                hit = find_hit(group, chain, candidate, self._alignment, self.pool)
                hits[group] = hit
                candidate = hit.tokens
                longest = max(longest, candidate)
            if candidate >= length or candidate == 0:
                length = candidate
                break
            length = candidate
        return Hit(length, self._lay_out(hits, length), longest if longest > length else 0)

    def can_admit(self, hit: Hit, total_tokens: int) -> bool:
        """Tell whether a request that may grow to `total_tokens` fits beside the others."""
        revived = sum(self.pool.evictable_among(table) for table in hit.tables)
        needed = max(0, self.spec.blocks_for(total_tokens) - _count_blocks(hit.tables))
        return needed + revived <= self.pool.free - self._promised

    def admit(
        self, chain: TokenChain, hit: Hit, *, prompt_tokens: int, total_tokens: int
    ) -> Holding:
        """Hold the blocks of `hit` and reserve room up to `total_tokens`."""
        for table in hit.tables:
            self.pool.touch(table)
        holding = Holding(
            chain=chain,
            prompt_tokens=prompt_tokens,
            junction=hit.junction,
            tables=[list(table) for table in hit.tables],
            told=[len(table) for table in hit.tables],
            retired=[0] * len(hit.tables),
            computed=hit.tokens,
            peak=self.spec.blocks_for(total_tokens),
            held=_count_blocks(hit.tables),
        )
        self._promised += holding.promised
        return holding

    def next_stop(self, holding: Holding, budget: int) -> int:
        """Return where the next prefill step ends, in tokens, given `budget` tokens a step.

        With recurrent groups steps end at block boundaries and where a state is to be kept: at
        the junction and at the replay boundary (vLLM's block-aligned split).
        """
        start, goal = holding.computed, holding.prompt_tokens
        end = min(start + budget, goal)
        if not self.spec.is_recurrent:
            return end
        size = self._alignment
        if end < goal and end // size * size > start:
            end = end // size * size
        stops = [(goal - 1) // size * size, holding.junction // size * size]
        if start % size:
            stops.append((start // size + 1) * size)
        return min((stop for stop in stops if start < stop < end), default=end)

    def allocate(self, holding: Holding, upto: int, *, external: bool = False) -> None:
        """Let go what the step to `upto` no longer needs and take blocks for it.

        `external` tokens arrive over a connector: only what the step after them looks at gets a
        block. Evictions become events.
        """
        self._promised -= holding.promised
        for group_id, group in self._by_id.items():
            self._retire(holding, group_id, group)
        removed: list[BlockRemoved] = []
        for group_id, group in self._by_id.items():
            table = holding.tables[group_id]
            wanted = -(-upto // group.block_size)
            nulls = 0
            if group.kind is GroupKind.RECURRENT:
                nulls = wanted - 1
            elif external:
                nulls = count_skipped_tokens(group, upto) // group.block_size
            table.extend([NULL_BLOCK] * (nulls - len(table)))
            taken = self.pool.take(max(0, wanted - len(table)), removed)
            table.extend(taken)
            holding.held += len(taken)
        self._events += removed
        self._promised += holding.promised

    def commit(self, holding: Holding, upto: int) -> None:
        """Mark tokens up to `upto` as computed: full blocks become findable and are told."""
        holding.computed = upto
        aligned = upto // self._alignment * self._alignment
        boundaries = [holding.prompt_tokens - 1]
        if holding.junction:
            boundaries.append(holding.junction)
        for group_id, group in self._by_id.items():
            first, last = holding.told[group_id], aligned // group.block_size
            if first < last:
                marks = mark_retained(
                    group, first, last, boundaries, self._alignment, self.spec.retention_interval
                )
                self._tell(holding, group_id, group, first, last, marks)
                holding.told[group_id] = last

    def release(self, holding: Holding) -> None:
        """Let go all that `holding` holds, the tail first to be evicted."""
        for table in holding.tables:
            self.pool.release(reversed(table))
            table.clear()
        self._promised -= holding.promised
        holding.peak = holding.held = 0

    def list_transferred(self, holding: Holding) -> list[list[int]]:
        """Return, for each group, the blocks a decode engine would pull: of states the last one."""
        chosen: list[list[int]] = []
        for group_id, group in self._by_id.items():
            blocks = [block for block in holding.tables[group_id] if block != NULL_BLOCK]
            chosen.append(blocks[-1:] if group.kind is GroupKind.RECURRENT else blocks)
        return chosen

    def reset(self) -> bool:
        """Forget the whole cache; False, and no change, while a request holds blocks."""
        if not self.pool.clear():
            return False
        self._events.append(AllCleared())
        return True

    def _lay_out(self, hits: dict[GroupSet, GroupHit], length: int) -> tuple[list[int], ...]:
        tables: dict[int, list[int]] = {group_id: [] for group_id in self._by_id}
        for group, hit in hits.items():
            for group_id, table in zip(group.ids, hit.tables, strict=True):
                tables[group_id] = table[: length // group.block_size]
        return tuple(tables[group_id] for group_id in sorted(tables))

    def _retire(self, holding: Holding, group_id: int, group: GroupSet) -> None:
        table = holding.tables[group_id]
        skipped = count_skipped_tokens(group, holding.computed) // group.block_size
        first, last = holding.retired[group_id], min(skipped, len(table))
        if first >= last:
            return
        gone = [block for block in reversed(table[first:last]) if block != NULL_BLOCK]
        table[first:last] = [NULL_BLOCK] * (last - first)
        holding.retired[group_id] = last
        holding.held -= len(gone)
        if group.kind is GroupKind.SLIDING_WINDOW:
            holding.peak -= len(gone)  # never needed again; a state's place is
        self.pool.release(gone)

    def _tell(
        self,
        holding: Holding,
        group_id: int,
        group: GroupSet,
        first: int,
        last: int,
        marks: list[bool] | None,
    ) -> None:
        chain, size, table = holding.chain, group.block_size, holding.tables[group_id]
        labels: list[int] = []
        extra_keys: list[list[str] | None] = []
        for index in range(first, last):
            block = table[index]
            if block == NULL_BLOCK or (marks is not None and not marks[index - first]):
                continue
            label = chain.block_label(index, size)
            self.pool.name(block, group_id, label)
            labels.append(label)
            extra_keys.append(chain.extra_keys(index))
        self._events.append(
            BlocksStored(
                group=group_id,
                kind=group.kind,
                window=group.window,
                block_size=size,
                labels=labels,
                parent=chain.block_label(first - 1, size) if first else None,
                tokens=chain.tokens[first * size : last * size],
                extra_keys=extra_keys,
                lora=chain.lora,
            )
        )


def _count_blocks(tables: tuple[list[int], ...]) -> int:
    return sum(block != NULL_BLOCK for table in tables for block in table)
