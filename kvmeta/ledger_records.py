"""What goes into a source's ledger, what comes out of it, and what outlives its process: values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kvmeta.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, UnknownEvent
from kvmeta.groups import GroupShape
from kvmeta.naming import SaltEvidence
from kvmeta.types import BlockHash, EngineLabel
from kvmeta.waiting import Place

MAX_PLACES = 256
"""Places (medium, group) a source may use: vLLM has 1 to about 12 groups in 1 to 4 tiers. An engine
that announces more is broken, and each place costs every mask a bit."""

LedgerEvent = BlockStored | BlockRemoved | UnknownEvent
"""What a ledger takes; a clear ends it instead (`SourceLedger.clear`)."""

Holdings = dict[Place, dict[BlockHash, int]]
"""Copies of every block, by place."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What a cleared ledger knew: large dicts, for the back end to take apart in its own time."""

    held: Holdings
    names: dict[EngineLabel, BlockHash]
    spots: dict[BlockHash, bytes]


class Change(NamedTuple):
    """`block` appeared at `place` (its first copy) or vanished from it (its last).

    `spot` is where it stands in its chain, empty when nobody surveys.
    """

    block: BlockHash
    place: Place
    present: bool
    spot: bytes = b""


@dataclass(slots=True)
class Outcome:
    """What some events did, in order.

    `touched` are the labels whose record (name, copies) may have changed, gone ones included.
    `refused` blocks could not be taken, so the source holds more than is known of it. `regrouped`:
    the groups, their shapes or their places changed, so a match plan made before is out of date.
    """

    changes: list[Change] = field(default_factory=list)
    touched: set[EngineLabel] = field(default_factory=set)
    refused: int = 0
    regrouped: bool = False


def split_at_clears(events: Iterable[Event]) -> Iterator[tuple[bool, list[LedgerEvent]]]:
    """Yield (everything was cleared before these, events) for each stretch between clears."""
    cleared = False
    stretch: list[LedgerEvent] = []
    for event in events:
        if isinstance(event, AllBlocksCleared):
            if cleared or stretch:
                yield cleared, stretch
            cleared, stretch = True, []
        else:
            stretch.append(event)
    yield cleared, stretch


@dataclass(frozen=True, slots=True)
class LedgerShape:
    """All of a ledger but its blocks and what waits: enough to match against, and to go on with."""

    groups: Mapping[int | None, GroupShape]
    places: tuple[Place, ...]
    evidence: SaltEvidence

    @property
    def tells_salts(self) -> bool:
        """False once blocks were announced by an engine that never tells what salts them."""
        return self.evidence.tells_salts


class LabelRecord(NamedTuple):
    """What a ledger knows of one label: its name, its spot, and how many copies are where.

    `copies` are (number of the place in the ledger's shape, count).
    """

    name: BlockHash
    spot: bytes
    copies: tuple[tuple[int, int], ...]
