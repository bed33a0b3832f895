"""What one source holds, block by block, in our names: events in, changes of presence out.

Bookkeeping without I/O, shared by every back end. A ledger knows one source's labels and counts;
where the presence of a block is published (a bit in a local dict, a bit in Redis) is the back end's
matter.

Counting. Engines do not deduplicate equal blocks: each copy is stored and removed by its own event,
so a block is present while its count is above zero (vllm/v1/core/block_pool.py). Counts are kept
per place, that is per (medium, KV group).

Naming. A dense event names its blocks by position: the parent's name, then one hash a block. Sparse
events of sliding-window and recurrent groups skip blocks, and offload placeholders carry no tokens;
both are named by their labels, which the dense events of the same engine have placed. What cannot
be named yet waits (`kvmeta.waiting`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat

from kvmeta.events import BlockRemoved, BlockStored, UnknownEvent
from kvmeta.groups import GroupShape, announced_groups, fits_layout
from kvmeta.hashing import chain_root
from kvmeta.ledger_records import (
    MAX_PLACES,
    Change,
    Forgotten,
    Holdings,
    LabelRecord,
    LedgerEvent,
    LedgerShape,
    Outcome,
)
from kvmeta.match import AnnouncedGroup
from kvmeta.naming import SaltEvidence, Surveyor, link_at, name_blocks, name_linked
from kvmeta.types import BlockHash, CacheLayout, EngineLabel
from kvmeta.waiting import Link, Place, WaitingRoom


class SourceLedger:
    """The blocks of one source since its last epoch began.

    `errors` counts by cause and is the caller's, since it outlives epochs.
    """

    def __init__(
        self,
        layout: CacheLayout,
        errors: Counter[str],
        *,
        max_blocks: int,
        max_waiting: int,
        survey: Surveyor | None = None,
    ) -> None:
        self._layout = layout
        self._survey = survey
        self._spots: dict[BlockHash, bytes] = {}
        self._errors = errors
        self._max_blocks = max_blocks
        self._names: dict[EngineLabel, BlockHash] = {}
        self._held: Holdings = {}
        self._count = 0
        self._groups: dict[int | None, GroupShape] = {}
        self._waiting = WaitingRoom(max_waiting)
        self._evidence = SaltEvidence()
        self._unheld: list[EngineLabel] = []
        self._room = 0
        self._outcome = Outcome()

    @property
    def blocks(self) -> int:
        """How many (block, place) pairs are held."""
        return self._count

    @property
    def waiting(self) -> int:
        """How many labels wait to be named."""
        return len(self._waiting)

    @property
    def tells_salts(self) -> bool:
        """False once blocks were announced by an engine that never tells what salts them."""
        return self._evidence.tells_salts

    @property
    def places(self) -> Iterable[Place]:
        """Every place that was announced in this epoch."""
        return self._held.keys()

    def apply(self, events: Sequence[LedgerEvent], room: int) -> Outcome:
        """Apply `events` in order, taking at most `room` more (block, place) pairs."""
        outcome = self._outcome = Outcome()
        self._room = room
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    self._remove(event)
                case UnknownEvent():
                    self._errors["unknown_event"] += 1
        self._forget_unheld()
        return outcome

    def clear(self) -> Forgotten:
        """Empty every place, in O(1), and return what was known of it; the groups stay.

        The engine still has its groups, and a group that announced nothing since is needed too.
        """
        forgotten = Forgotten(self._held, self._names, self._spots)
        held = self._held
        self._spots = {}
        self._held = {place: {} for place in held}
        self._names = {}
        self._count = 0
        self._waiting.clear()
        return forgotten

    # -- stores ------------------------------------------------------------------------------

    def _store(self, event: BlockStored) -> None:
        if not self._learn_group(event):
            self._outcome.refused += len(event.labels)
            return
        place = (event.medium, event.group)
        if place not in self._held:
            if len(self._held) >= MAX_PLACES:
                self._errors["too_many_places"] += 1
                self._outcome.refused += len(event.labels)
                return
            self._held[place] = {}
            self._outcome.regrouped = True
        if event.is_dense:
            self._store_dense(event, place)
        else:
            for label in event.labels:
                self._store_labelled(label, place, None)

    def _learn_group(self, event: BlockStored) -> bool:
        """Learn the group's shape from `event`; False when its block size cannot be right."""
        if not fits_layout(event, self._layout):
            self._errors["block_size"] += 1
            return False
        group = self._groups.setdefault(event.group, GroupShape())
        before = (group.kind, group.window, group.block_size)
        if not group.learn(event):
            self._errors["group_kind"] += 1
        if before != (group.kind, group.window, group.block_size):
            self._outcome.regrouped = True
        return True

    def _store_dense(self, event: BlockStored, place: Place) -> None:
        trusted = self._evidence.trusts_tokens(event)
        start = self._start_of(event) if trusted else None
        # Blocks from `first` on are named by the chain, those before it by their labels at best.
        first = 0 if start is not None else len(event.labels)
        chain, spots = self._chain(start, event, 0) if start is not None else ([], [])
        if chain and self._is_news(event.labels, chain, place):
            self._take_news(event.labels, chain, spots, place)
            return
        for position, label in enumerate(event.labels):
            name = self._names.get(label)
            if position >= first:
                computed = chain[position - first]
                if name is not None and name != computed:
                    # One label for two contents: believe the first, and nothing that follows.
                    self._errors["label_conflict"] += 1
                    self._outcome.refused += len(event.labels) - position
                    return
                name = computed
            elif name is not None and trusted and self._is_surveyed(name):
                first = position + 1
                chain, spots = self._chain(name, event, first)
            if name is None:
                link = link_at(event, position) if trusted else None
                self._store_labelled(label, place, link)
            elif self._name(label, name, spots[position - first] if position >= first else b""):
                self._hold(label, name, place)

    def _is_news(
        self, labels: Sequence[EngineLabel], chain: Sequence[BlockHash], place: Place
    ) -> bool:
        """Whether nobody heard of any of these blocks, nothing waits for them, and all have room.

        What an engine stores is mostly that, and then needs no look at single blocks.
        """
        coming = len(labels)
        return (
            not self._waiting
            and coming <= self._room
            and coming <= self._max_blocks - max(self._count, len(self._names))
            and self._names.keys().isdisjoint(labels)
            and self._held[place].keys().isdisjoint(chain)
            and len(set(labels)) == coming
        )

    def _take_news(
        self,
        labels: Sequence[EngineLabel],
        chain: Sequence[BlockHash],
        spots: Sequence[bytes],
        place: Place,
    ) -> None:
        self._names.update(zip(labels, chain, strict=True))
        if self._survey is not None:
            self._spots.update(zip(chain, spots, strict=True))
        self._held[place].update(dict.fromkeys(chain, 1))
        self._room -= len(chain)
        self._count += len(chain)
        self._outcome.touched.update(labels)
        self._outcome.changes.extend(map(Change, chain, repeat(place), repeat(True), spots))  # noqa: FBT003  # `repeat` takes no keyword

    def _chain(
        self, start: BlockHash, event: BlockStored, position: int
    ) -> tuple[list[BlockHash], list[bytes]]:
        """Name the engine's blocks from `position` on, given the name before them; and their spots.

        A block of several hash units is named by its last.
        """
        names = name_blocks(start, event, position, self._layout.block_size)
        units = event.block_size // self._layout.block_size
        at_root = position == 0 and event.parent is None
        spots = self._spots_of(None if at_root else start, names, units)
        return (names if units == 1 else names[units - 1 :: units]), spots

    def _spots_of(
        self, before: BlockHash | None, names: Sequence[BlockHash], units: int
    ) -> list[bytes]:
        """Where the blocks stand; nothing, for each, where nobody surveys."""
        if self._survey is None:
            return [b""] * (len(names) // units)
        return self._survey(None if before is None else self._spots[before], names, units)

    def _is_surveyed(self, name: BlockHash) -> bool:
        """Whether blocks after `name` can be placed; not if all but a stray label is forgotten."""
        return self._survey is None or name in self._spots

    def _start_of(self, event: BlockStored) -> BlockHash | None:
        if event.parent is None:
            return chain_root(self._layout, event.lora, event.salt)
        name = self._names.get(event.parent)
        return name if name is not None and self._is_surveyed(name) else None

    def _extend(self, parent: BlockHash, link: Link) -> tuple[BlockHash, bytes]:
        """Name one engine block, which may be several units long, and tell its spot."""
        names = name_linked(parent, link, self._layout.block_size)
        return names[-1], self._spots_of(parent, names, len(names))[0]

    def _store_labelled(self, label: EngineLabel, place: Place, link: Link | None) -> None:
        name = self._names.get(label)
        if name is not None:
            self._hold(label, name, place)
            return
        dropped = self._waiting.add(label, place, link)
        if dropped:
            self._errors["waited_too_long"] += dropped

    def _name(self, label: EngineLabel, name: BlockHash, spot: bytes) -> bool:
        """Place `label`, and all that waited for it, at any depth; False beyond the cap."""
        if label in self._names:
            return True
        if len(self._names) >= self._max_blocks:
            self._refuse()
            return False
        self._set_name(label, name, spot)
        if not self._waiting:
            return True
        placed = [(label, name, self._waiting.take(label))]
        while placed:
            parent, parent_name, copies = placed.pop()
            for place, count in copies.items():
                for _ in range(count):
                    self._hold(parent, parent_name, place)
            if not copies and parent is not label:  # the caller holds `label` next
                self._unheld.append(parent)
            for child, link, child_copies in self._waiting.take_children(parent):
                child_name, child_spot = self._extend(parent_name, link)
                if child not in self._names:
                    self._set_name(child, child_name, child_spot)
                placed.append((child, child_name, child_copies))
        return True

    def _set_name(self, label: EngineLabel, name: BlockHash, spot: bytes) -> None:
        self._names[label] = name
        self._outcome.touched.add(label)
        if spot:
            self._spots[name] = spot

    def _hold(self, label: EngineLabel, name: BlockHash, place: Place) -> None:
        blocks = self._held[place]
        count = blocks.get(name, 0)
        if not count:
            if self._room <= 0 or self._count >= self._max_blocks:
                self._refuse()
                self._unheld.append(label)
                return
            self._room -= 1
            self._count += 1
            spot = self._spots.get(name, b"")
            self._outcome.changes.append(Change(name, place, present=True, spot=spot))
        blocks[name] = count + 1
        self._outcome.touched.add(label)

    def _refuse(self) -> None:
        self._errors["capacity"] += 1
        self._outcome.refused += 1

    # -- removals ----------------------------------------------------------------------------

    def _remove(self, event: BlockRemoved) -> None:
        place = (event.medium, event.group)
        blocks = self._held.get(place, {})
        for label in event.labels:
            name = self._names.get(label)
            count = blocks.get(name, 0) if name is not None else 0
            if name is None or not count:
                if not self._waiting.remove(label, place):
                    self._errors["unknown_removal"] += 1
                continue
            self._outcome.touched.add(label)
            if count > 1:
                blocks[name] = count - 1
            else:
                del blocks[name]
                self._room += 1
                self._count -= 1
                spot = self._spots.get(name, b"")
                self._outcome.changes.append(Change(name, place, present=False, spot=spot))
                self._unheld.append(label)

    def _forget_unheld(self) -> None:
        """Drop the labels that nothing holds any more.

        Only now, at the end of a batch: until then a later event of it may name one as its parent.
        """
        for label in self._unheld:
            name = self._names.get(label)
            if name is not None and not any(name in blocks for blocks in self._held.values()):
                del self._names[label]
                self._spots.pop(name, None)
                self._outcome.touched.add(label)
        self._unheld.clear()

    # -- what outlives the process -----------------------------------------------------------

    @property
    def labels(self) -> Collection[EngineLabel]:
        """Every label that has a name."""
        return self._names.keys()

    def records(
        self, labels: Iterable[EngineLabel]
    ) -> Iterator[tuple[EngineLabel, LabelRecord | None]]:
        """Yield what is known of each label; None for one that has no name."""
        names, spots = self._names, self._spots
        places = list(enumerate(self._held.values()))
        for label in labels:
            name = names.get(label)
            if name is None:
                yield label, None
            else:
                copies = [(number, blocks[name]) for number, blocks in places if name in blocks]
                yield label, LabelRecord(name, spots.get(name, b""), tuple(copies))

    def holdings(self) -> Iterator[Change]:
        """Yield all that is held, as the changes that would bring it about."""
        for place, blocks in self._held.items():
            for name in blocks:
                yield Change(name, place, present=True, spot=self._spots.get(name, b""))

    @property
    def shape(self) -> LedgerShape:
        """All but the blocks."""
        return LedgerShape(
            groups=self._groups,
            places=tuple(self._held),
            evidence=replace(self._evidence),
        )

    def restore(
        self, shape: LedgerShape, records: Iterable[tuple[EngineLabel, LabelRecord]]
    ) -> bool:
        """Take over what an earlier ledger of the same source recorded; only into an empty one.

        False, with the ledger unfit for use, where two labels share a name: which of the two has
        the latest counts is not recorded.
        """
        self._groups = dict(shape.groups)
        self._held = {place: {} for place in shape.places}
        self._evidence = replace(shape.evidence)
        for label, record in records:
            if record.name in self._spots:
                return False
            self._names[label] = record.name
            self._spots[record.name] = record.spot
            for number, count in record.copies:
                self._held[shape.places[number]][record.name] = count
                self._count += 1
        return True

    # -- the match ---------------------------------------------------------------------------

    def groups(self, bits: Mapping[Place, int]) -> list[AnnouncedGroup]:
        """Describe the groups for `kvmeta.match`, given the bit of every place."""
        return announced_groups(self._layout, self._groups, bits)
