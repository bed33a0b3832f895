"""What is solved, between the store and this process: read by everybody, written by the leader.

    if await book.refresh():                      # somebody wrote what is news here
        ...
    await book.write(lengths, solutions)          # behind the leader's fence

The store may lose what it was told. What is known here stays known; a leader writes it again, and
what is older than what one knows is kept out (`KeptSolutions.order`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from router.ports import Clock, StateStore
from router.service.decisions import Document
from router.service.leadership import Leadership
from router.service.lengths import KeptLengths
from router.service.solutions import (
    KeptSolution,
    KeptSolutions,
    decode_solutions,
    encode_solutions,
)

_LOG = logging.getLogger(__name__)

SOLVED: Final = "solved"
"""The document's name in the store."""


class SolvedBook:
    """One process's copy. Single-threaded: owned by one event loop."""

    def __init__(self, state: StateStore, leadership: Leadership, clock: Clock) -> None:
        self._state = state
        self._leadership = leadership
        self._clock = clock
        self._version = 0
        # A read that was overtaken by a write would take an older document for a loss.
        self._turn = asyncio.Lock()
        self.known = KeptSolutions()
        self.is_kept = True

    def __repr__(self) -> str:
        return f"<SolvedBook {self.known.order}>"

    async def refresh(self) -> bool:
        """Take over what the store has; return whether that is news. Raises StoreAway."""
        async with self._turn:
            kept = await self._state.read(SOLVED)
            unread, self._version = kept.version != self._version, kept.version
            try:
                found = decode_solutions(kept.document) if kept.document else KeptSolutions()
            except msgspec.DecodeError:
                if unread:
                    _LOG.exception("what was solved cannot be read: is it of another version?")
                self.is_kept = False
                return False
            self.is_kept = found.order >= self.known.order
            if found.order <= self.known.order:
                return False
            self.known = found
            return True

    async def write(
        self, lengths: Mapping[str, KeptLengths], solutions: tuple[KeptSolution, ...]
    ) -> bool:
        """Write it for everybody; False, and nothing is written, where the store has other news.

        Raises NotLeading, and StoreAway: then it may be written, and the next refresh tells.
        """
        async with self._turn:
            fence = self._leadership.fence
            leader = self._leadership.leader
            news = KeptSolutions(
                term=self._leadership.term,
                number=self.known.number + 1,
                by="" if leader is None else leader.name,
                at=self._clock.now(),
                lengths=dict(lengths),
                solutions=solutions,
            )
            document = encode_solutions(news)
            written = await self._state.write(SOLVED, document, after=self._version, fence=fence)
            if written is None:
                return False
            self._version, self.known, self.is_kept = written.version, news, True
            return True

    def describe(self) -> Document:
        """Return who solved last, and when; nulls before anything was."""
        known = self.known
        return {
            "by": known.by or None,
            "term": known.term or None,
            "at": None if known.at is None else known.at.isoformat(),
        }
