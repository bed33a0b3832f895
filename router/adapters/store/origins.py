"""Which instance keeps a stored response, in Redis: one key a response, forgotten after a day."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

import msgspec

from router.adapters.store.connection import SharedStore, load_script
from router.adapters.store.keys import StoreKeys
from router.domain.errors import StoreAway
from router.service.stored_responses import MAX_AGE, Origin

_PUT = load_script("origin_put")
_GET = load_script("origin_get")

_MOST_QUEUED: Final = 4096
"""Some seconds of responses; while the store is away the oldest are known here alone."""

_AT_ONCE: Final = 16

_DECODER: Final = msgspec.json.Decoder(tuple[str, str])


class RedisOrigins:
    """An `OriginStore` that processes share. Single-threaded: owned by one event loop."""

    def __init__(self, store: SharedStore, keys: StoreKeys) -> None:
        self._store = store
        self._keys = keys
        self._queued: OrderedDict[str, bytes] = OrderedDict()
        self._stirred = asyncio.Event()

    def put(self, tenant: str, response_id: str, origin: Origin) -> None:
        """Queue it for `run`."""
        key = self._keys.response(tenant, response_id)
        self._queued[key] = msgspec.json.encode((origin.instance, origin.model))
        if len(self._queued) > _MOST_QUEUED:
            self._queued.popitem(last=False)
        self._stirred.set()

    async def get(self, tenant: str, response_id: str) -> Origin | None:
        """Ask the store; one script. What is still queued here the caller knows itself."""
        text = await self._store.run(_GET, [self._keys.response(tenant, response_id)])
        return None if text is None else Origin(*_DECODER.decode(text))

    async def run(self) -> None:
        """Write what is queued, until cancelled."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            while self._queued:
                some = [
                    self._queued.popitem(last=False)
                    for _ in range(min(_AT_ONCE, len(self._queued)))
                ]
                await asyncio.gather(*(self._write(key, text) for key, text in some))

    async def _write(self, key: str, text: bytes) -> None:
        try:
            await self._store.run(_PUT, [key], [text, round(MAX_AGE * 1000)])
        except StoreAway:
            return  # this process knows it all the same
