"""Blocks that an engine announced before what they hang on: bounded, per source.

Two ways to wait, and one label may do both. A *sparse* announcement gives a label without its
place; it waits until some event places the label. A *link* gives tokens too, but its parent is not
placed yet; it waits for the parent and takes its own descendants along. What waits is never hung
under the root, where it would match prompts that merely start with its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvmeta.types import EngineLabel

Place = tuple[str, int | None]
"""Where a block is held: (medium, KV group). None is the full-attention group."""


@dataclass(frozen=True, slots=True)
class Link:
    """How to name a block once its parent is placed: the block's tokens (packed) and its extra."""

    parent: EngineLabel
    tokens: bytes = field(repr=False)
    extra: bytes = field(repr=False)


@dataclass(slots=True)
class Waiter:
    """One waiting label: the copies announced so far, by place, and its link where it has one."""

    copies: dict[Place, int] = field(default_factory=dict)
    link: Link | None = None


class WaitingRoom:
    """Waiting labels in order of arrival; beyond `capacity` the oldest leave and are counted."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._waiters: dict[EngineLabel, Waiter] = {}
        self._children: dict[EngineLabel, dict[EngineLabel, None]] = {}  # inner: an ordered set

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, label: EngineLabel, place: Place, link: Link | None) -> int:
        """Let one copy of `label` wait; return how many labels had to leave for it."""
        waiter = self._waiters.get(label)
        if waiter is None:
            waiter = self._waiters[label] = Waiter()
        waiter.copies[place] = waiter.copies.get(place, 0) + 1
        if link is not None and waiter.link is None:
            waiter.link = link
            self._children.setdefault(link.parent, {})[label] = None
        dropped = 0
        while len(self._waiters) > self._capacity:
            self._leave(next(iter(self._waiters)))
            dropped += 1
        return dropped

    def remove(self, label: EngineLabel, place: Place) -> bool:
        """Take one waiting copy out; False when none waited there.

        A label without copies stays as long as others hang on it: it is their only way to a name.
        """
        waiter = self._waiters.get(label)
        if waiter is None or place not in waiter.copies:
            return False
        waiter.copies[place] -= 1
        if not waiter.copies[place]:
            del waiter.copies[place]
        self._prune(label)
        return True

    def _prune(self, label: EngineLabel | None) -> None:
        """Let `label` leave if nothing needs it, then the chain above it that it alone kept."""
        while label is not None:
            waiter = self._waiters.get(label)
            if waiter is None or waiter.copies or label in self._children:
                return
            self._leave(label)
            label = waiter.link.parent if waiter.link else None

    def take(self, label: EngineLabel) -> dict[Place, int]:
        """End the waiting of `label`, now placed; return the copies that waited."""
        waiter = self._waiters.get(label)
        if waiter is None:
            return {}
        self._leave(label)
        return waiter.copies

    def take_children(
        self, parent: EngineLabel
    ) -> list[tuple[EngineLabel, Link, dict[Place, int]]]:
        """End the waiting of everything that hangs on `parent`, now placed."""
        taken = []
        for label in self._children.pop(parent, ()):
            waiter = self._waiters.pop(label)
            assert waiter.link is not None  # noqa: S101  # only links are listed as children
            taken.append((label, waiter.link, waiter.copies))
        return taken

    def clear(self) -> None:
        """Forget everything."""
        self._waiters.clear()
        self._children.clear()

    def _leave(self, label: EngineLabel) -> None:
        waiter = self._waiters.pop(label)
        if waiter.link is None:
            return
        siblings = self._children[waiter.link.parent]
        del siblings[label]
        if not siblings:
            del self._children[waiter.link.parent]
