"""What the long loop found, between the store and this process: written by the leader, read by all.

Only the leader measures, and any process may be asked by an operator. One small document a window,
behind the leader's fence; what is read is shown and nothing else, so a lost one costs a window.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from router.control.balance import Finding
from router.domain.errors import NotLeading
from router.ports import Clock, StateStore
from router.service.conversions import Command

_LOG = logging.getLogger(__name__)

FINDINGS: Final = "balance"
"""The document's name in the store."""

_ATTEMPTS: Final = 2
"""The leader before may have written since this process read; nobody else does."""

Findings = Mapping[tuple[str, str], Finding]
"""By model and PD cluster."""


class KeptFinding(Struct, frozen=True):
    """What the last window came to for one model in one PD cluster."""

    model: str
    pd: str
    finding: Finding


class KeptFindings(Struct, frozen=True):
    """All of them, and when they were written. `at` is None before the first."""

    at: datetime | None = None
    findings: tuple[KeptFinding, ...] = ()


_DECODER = msgspec.json.Decoder(KeptFindings)


class FindingsBook:
    """One process's copy. Single-threaded: owned by one event loop."""

    def __init__(self, state: StateStore, command: Command, clock: Clock) -> None:
        self._state = state
        self._command = command
        self._clock = clock
        self._version = 0
        self._known = KeptFindings()

    def __repr__(self) -> str:
        return f"<FindingsBook of {self._known.at}>"

    @property
    def at(self) -> datetime | None:
        """When the latest were written."""
        return self._known.at

    @property
    def findings(self) -> Findings:
        """The latest."""
        return {(each.model, each.pd): each.finding for each in self._known.findings}

    async def refresh(self) -> None:
        """Take over what the leader wrote. Raises StoreAway."""
        kept = await self._state.read(FINDINGS)
        if kept.version == self._version:
            return
        self._version = kept.version
        try:
            self._known = _DECODER.decode(kept.document) if kept.document else KeptFindings()
        except msgspec.DecodeError:
            _LOG.exception("what the long loop found cannot be read: is it of another version?")

    async def write(self, findings: Findings) -> None:
        """Write them for everybody, where they are others than those before. Raises StoreAway.

        Where another leads by now nothing is written.
        """
        if findings == self.findings:
            return
        rows = (KeptFinding(model, pd, finding) for (model, pd), finding in findings.items())
        news = KeptFindings(self._clock.now(), tuple(rows))
        document = msgspec.json.encode(news)
        for _ in range(_ATTEMPTS):
            with suppress(NotLeading):
                fence = self._command.fence
                written = await self._state.write(
                    FINDINGS, document, after=self._version, fence=fence
                )
                if written is not None:
                    self._version, self._known = written.version, news
                    return
            await self.refresh()
