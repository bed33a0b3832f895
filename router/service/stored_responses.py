"""Which instance keeps a stored response: what was made there can only be read there.

vLLM keeps the responses of `/v1/responses` in the memory of the server that made them. So a later
read, a cancel, or a request that continues one by `previous_response_id` goes to that server.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from router.domain.errors import StoreAway
from router.domain.units import Seconds
from router.ports import Clock

_MAX_STORED: Final = 32_768
"""About 10 MiB at 300 bytes an entry; the longest unused are forgotten first."""

MAX_AGE: Final[Seconds] = 24 * 3600.0
"""Engines keep responses until they restart, which they do more seldom than daily."""

_SOUND_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,256}")
"""What may stand in a path as it is."""

_MAX_LOOKED_AT: Final = 256 * 1024
"""The first event carries the id behind the request's own tools; then it is given up."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a response was made, and the name of the model that its client asked for."""

    instance: str
    model: str


class OriginStore(Protocol):
    """Where processes share what they know; a response is forgotten after `MAX_AGE`."""

    def put(self, tenant: str, response_id: str, origin: Origin) -> None:
        """Remember who made a response. Does not wait: the store learns of it soon."""
        ...

    async def get(self, tenant: str, response_id: str) -> Origin | None:
        """Return who made a response; one round trip. Raises StoreAway."""
        ...


class StoredResponses:
    """Response ids to their origins, for each tenant; bounded in number and age.

    What another process relayed is asked of `shared`, where there is one.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        shared: OriginStore | None = None,
        max_stored: int = _MAX_STORED,
        max_age: Seconds = MAX_AGE,
    ) -> None:
        self._clock = clock
        self._shared = shared
        self._max_stored = max_stored
        self._max_age = max_age
        self._origins: OrderedDict[tuple[str, str], tuple[Origin, Seconds]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._origins)

    def note(self, tenant: str, response_id: str, origin: Origin) -> None:
        """Remember who made a response; an id that no path can carry is left out."""
        if _SOUND_ID.fullmatch(response_id) is None:
            return
        self._keep(tenant, response_id, origin)
        if self._shared is not None:
            self._shared.put(tenant, response_id, origin)

    async def search(self, tenant: str, response_id: str) -> Origin | None:
        """Return what `find` does, else what other processes know, if the store answers."""
        origin = self.find(tenant, response_id)
        if origin is not None or self._shared is None or not _SOUND_ID.fullmatch(response_id):
            return origin
        try:
            origin = await self._shared.get(tenant, response_id)
        except StoreAway:
            return None
        if origin is not None:
            self._keep(tenant, response_id, origin)
        return origin

    def _keep(self, tenant: str, response_id: str, origin: Origin) -> None:
        self._origins[tenant, response_id] = (origin, self._clock.monotonic())
        self._origins.move_to_end((tenant, response_id))
        if len(self._origins) > self._max_stored:
            self._origins.popitem(last=False)

    def find(self, tenant: str, response_id: str) -> Origin | None:
        """Return who made a response for this tenant; None where this process does not know."""
        found = self._origins.get((tenant, response_id))
        if found is None:
            return None
        origin, noted_at = found
        if self._clock.monotonic() - noted_at > self._max_age:
            del self._origins[tenant, response_id]
            return None
        self._origins.move_to_end((tenant, response_id))
        return origin


class _Identified(msgspec.Struct):
    id: str


class _Event(msgspec.Struct):
    response: _Identified


_WHOLE = msgspec.json.Decoder(_Identified)
_EVENT = msgspec.json.Decoder(_Event)


class IdSpotter:
    """Finds the id of an answer that passes, once, and tells it to `note`.

    In a stream it stands in the first event (`response.created`); what comes after is not looked
    at.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._held = bytearray()
        self._done = False

    def read_whole(self, body: bytes) -> None:
        """Look at an answer that is no stream; one without an id tells nothing."""
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._note(_WHOLE.decode(body).id)

    def feed(self, piece: bytes) -> None:
        """Look at the next piece of a stream."""
        if self._done:
            return
        self._held += piece
        *lines, rest = self._held.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    self._note(_EVENT.decode(line[5:]).response.id)
                self._done = True
                break
        self._held = rest
        self._done = self._done or len(rest) > _MAX_LOOKED_AT
