"""Documents in this process's memory: what `memory://` keeps, until it ends."""

from __future__ import annotations

from collections import deque
from typing import Final

from router.ports import Fence, Kept

MAX_RECORDS: Final = 1000
"""Changes by people and loops: days of them, some hundred bytes each."""

_NONE: Final = Kept(0, b"")


class MemoryState:
    """A `StateStore` for one process."""

    def __init__(self) -> None:
        self._documents: dict[str, Kept] = {}
        self._records: deque[bytes] = deque(maxlen=MAX_RECORDS)

    async def read(self, name: str) -> Kept:
        """Return what was written last."""
        return self._documents.get(name, _NONE)

    async def write(
        self,
        name: str,
        document: bytes,
        *,
        after: int,
        record: bytes | None = None,
        fence: Fence | None = None,  # noqa: ARG002 - nobody else could lead
    ) -> Kept | None:
        """Write the version after `after`, if that is the last."""
        if (await self.read(name)).version != after:
            return None
        kept = self._documents[name] = Kept(after + 1, document)
        if record is not None:
            self._records.appendleft(record)
        return kept

    async def restore(self, name: str, kept: Kept) -> Kept:
        """Write back what is newer than what is kept."""
        if (await self.read(name)).version < kept.version:
            self._documents[name] = kept
        return await self.read(name)

    async def records(self, limit: int) -> list[bytes]:
        """Return the latest records."""
        return list(self._records)[:limit]
