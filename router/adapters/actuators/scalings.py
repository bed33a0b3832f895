"""What two workloads had before a conversion: kept, so that any later leader can go on or go back.

One more replica than "before" means nothing unless somebody remembers before; so it is written to
the store before anything is scaled. It is forgotten when the conversion is undone, and kept when it
is confirmed, until another one begins: an operator may abort it in the same moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from router.domain.conversions import Conversion
from router.domain.errors import ActuationFailed, NotLeading, StoreAway
from router.ports import Fence, StateStore

DOCUMENT: Final = "scalings"
"""The document's name in the store."""

_ATTEMPTS: Final = 5


class Scaling(msgspec.Struct, frozen=True):
    """How many replicas the workload that shrinks and the one that grows had before.

    `pod` is the one whose removal was made cheap, if one was; `confirmed` tells that it is done.
    """

    shrinking: int
    growing: int
    pod: str | None = None
    confirmed: bool = False


_Scalings = dict[str, Scaling]


class ScalingRecord:
    """The scalings under way, by conversion. Raises ActuationFailed where the store is away."""

    def __init__(self, state: StateStore, fence: Callable[[], Fence | None]) -> None:
        """`fence` returns what a leader's writes go with, and raises NotLeading."""
        self._state = state
        self._fence = fence

    async def find(self, conversion: Conversion) -> Scaling | None:
        """Return what was kept of a conversion."""
        try:
            kept = await self._state.read(DOCUMENT)
        except StoreAway as error:
            raise _away(error) from error
        return _decode(kept.document).get(_key(conversion))

    async def keep(self, conversion: Conversion, scaling: Scaling) -> Scaling:
        """Keep a scaling; return what is kept of the conversion: what was first."""
        scalings = await self._edit(lambda known: {_key(conversion): scaling} | known)
        return scalings[_key(conversion)]

    async def confirm(self, conversion: Conversion) -> None:
        """Note that a conversion is done, if it is known."""
        key = _key(conversion)
        await self._edit(
            lambda known: {
                each: replace(known[each], confirmed=known[each].confirmed or each == key)
                for each in known
            }
        )

    async def forget_confirmed(self) -> None:
        """Forget what is done."""
        await self._edit(lambda known: {k: each for k, each in known.items() if not each.confirmed})

    async def forget(self, conversion: Conversion) -> None:
        """Forget what was kept of a conversion."""
        key = _key(conversion)
        await self._edit(lambda known: {each: known[each] for each in known if each != key})

    async def _edit(self, change: Callable[[_Scalings], _Scalings]) -> _Scalings:
        try:
            for _ in range(_ATTEMPTS):
                kept = await self._state.read(DOCUMENT)
                known = _decode(kept.document)
                changed = change(known)
                if changed == known:
                    return known
                document = msgspec.json.encode(changed)
                fence = self._fence()
                if await self._state.write(DOCUMENT, document, after=kept.version, fence=fence):
                    return changed
        except (StoreAway, NotLeading) as error:
            raise _away(error) from error
        raise ActuationFailed("kubernetes: others write the record of scalings all the time")


def _key(conversion: Conversion) -> str:
    return f"{conversion.model} {conversion}"


def _decode(document: bytes) -> _Scalings:
    return msgspec.json.decode(document, type=_Scalings) if document else {}


def _away(error: StoreAway | NotLeading) -> ActuationFailed:
    return ActuationFailed(f"kubernetes: what was scaled cannot be recorded: {error}")
