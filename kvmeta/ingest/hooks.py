"""What ingest tells whoever counts: a sink behind one Protocol, so no metrics library is needed."""

from __future__ import annotations

from typing import Protocol

from kvmeta.types import SourceId, SourceState


class IngestHook(Protocol):
    """Called on the event loop, between two messages of one source: be quick, never raise."""

    def events_applied(self, source: SourceId, kind: str, count: int) -> None:
        """`count` events of one type (`BlockStored`, …) reached the index."""
        ...

    def error(self, source: SourceId, cause: str) -> None:
        """Something was lost, refused or unreadable; `cause` is one of a closed set."""
        ...

    def state_changed(self, source: SourceId, state: SourceState) -> None:
        """A new epoch of `source` began with this trust."""
        ...

    def lag(self, source: SourceId, seconds: float) -> None:
        """A batch was applied this long after the engine made it, by the two hosts' wall clocks."""
        ...


class SilentHook:
    """An `IngestHook` that nobody listens to."""

    def events_applied(self, source: SourceId, kind: str, count: int) -> None:
        """Say nothing."""

    def error(self, source: SourceId, cause: str) -> None:
        """Say nothing."""

    def state_changed(self, source: SourceId, state: SourceState) -> None:
        """Say nothing."""

    def lag(self, source: SourceId, seconds: float) -> None:
        """Say nothing."""
