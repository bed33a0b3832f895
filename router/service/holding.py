"""Things that are held for a time and given back once, whatever happens: counts and bookings.

As `contextlib`, for what never fails to be given back: a request holds half a dozen of them, and
generators and exit stacks cost more than what they count.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial


class Together:
    """Several context managers as one, entered in order and left in reverse."""

    __slots__ = ("_parts",)

    def __init__(self, *parts: AbstractContextManager[None]) -> None:
        self._parts = parts

    def __enter__(self) -> None:
        for part in self._parts:
            part.__enter__()

    def __exit__(self, *_: object) -> None:
        for part in reversed(self._parts):
            part.__exit__(None, None, None)


class Held:
    """What is held until `close`; the last is given back first."""

    __slots__ = ("_releases",)

    def __init__(self) -> None:
        self._releases: list[Callable[[], object]] = []

    def enter(self, part: AbstractContextManager[None]) -> None:
        """Enter a context manager, and leave it in the end."""
        part.__enter__()
        self._releases.append(partial(part.__exit__, None, None, None))

    def add(self, release: Callable[[], object]) -> None:
        """Call `release` in the end."""
        self._releases.append(release)

    def hand_over(self) -> Held:
        """Return what is held; nothing is held here any more."""
        other = Held()
        other._releases, self._releases = self._releases, []
        return other

    def close(self) -> None:
        """Give everything back, once."""
        while self._releases:
            self._releases.pop()()
