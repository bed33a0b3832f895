"""Documents in Redis: a version and a text each, compared and written in one step."""

from __future__ import annotations

from router.adapters.memory_state import MAX_RECORDS
from router.adapters.store.connection import Argument, Reply, SharedStore, load_script
from router.adapters.store.keys import StoreKeys
from router.domain.errors import NotLeading
from router.ports import Fence, Kept

_READ = load_script("state_read")
_WRITE = load_script("state_write")
_RESTORE = load_script("state_restore")
_RECORDS = load_script("state_records")
_FENCED_OFF = -1
"""What `state_write.lua` says to one who does not lead."""


class RedisState:
    """A `StateStore` that processes share. Documents and records are on one shard."""

    def __init__(self, store: SharedStore, keys: StoreKeys) -> None:
        self._store = store
        self._keys = keys

    async def read(self, name: str) -> Kept:
        """Return a document; one script."""
        return _kept(await self._store.run(_READ, [self._keys.document(name)]))

    async def write(
        self,
        name: str,
        document: bytes,
        *,
        after: int,
        record: bytes | None = None,
        fence: Fence | None = None,
    ) -> Kept | None:
        """Compare with the leader's lease and the version, write and record; one script."""
        keys = [self._keys.document(name), self._keys.records, self._keys.leader]
        owner, term = ("", 0) if fence is None else (fence.owner, fence.term)
        values: list[Argument] = [after, document, MAX_RECORDS, owner, term]
        if record is not None:
            values.append(record)
        written = int(await self._store.run(_WRITE, keys, values))
        if written == _FENCED_OFF:
            raise NotLeading("another process leads by now, or nobody does")
        return Kept(after + 1, document) if written else None

    async def restore(self, name: str, kept: Kept) -> Kept:
        """Write back what is newer, and read; one script."""
        keys = [self._keys.document(name)]
        return _kept(await self._store.run(_RESTORE, keys, (kept.version, kept.document)))

    async def records(self, limit: int) -> list[bytes]:
        """Return the latest records; one script."""
        return list(await self._store.run(_RECORDS, [self._keys.records], [limit]))


def _kept(reply: Reply) -> Kept:
    version, document = reply
    return Kept(int(version or 0), document or b"")
