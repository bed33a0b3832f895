"""The orders in force in this process, how they are changed, and how those of others get here.

    await book.change(Order("threshold.set", "model=m", part, edit), by="ops", unless=tags)

A change edits the newest document that the store has, and is written only if nobody else wrote
meanwhile; else it is done again on what they wrote. It is in force here when `change` returns, and
in every other process within `POLL_SECONDS` and a round trip.

The store may lose what it was told (a flush, a failover to a server that lagged). What is in force
stays so, and is written back with the number that it had.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from router.domain.errors import Changed, Overloaded, StoreAway
from router.domain.units import Seconds
from router.ports import Clock, Fence, Kept, StateStore
from router.service.decisions import Document
from router.service.orders import Orders, decode_orders, encode_orders, tag

_LOG = logging.getLogger(__name__)

ORDERS: Final = "orders"
"""The document's name in the store."""

POLL_SECONDS: Final[Seconds] = 0.25
"""Orders are promised everywhere within a second: three polls may be late or lost."""

_ATTEMPTS: Final = 10
"""Operators are few; ten who were always first are a loop, not people."""

Put = Callable[[Orders], Awaitable[None]]
"""Puts orders in force: called with each change, one at a time."""


@dataclass(frozen=True, slots=True)
class Order:
    """A change. `part` is what it may touch, for the audit and the entity tag.

    `edit` returns the orders that there shall be; it may be called several times and raises what
    the caller shall be told.
    """

    action: str
    subject: str
    part: Callable[[Orders], object]
    edit: Callable[[Orders], Orders]


class OrderBook:
    """One process's copy of the orders. Single-threaded: owned by one event loop."""

    def __init__(self, state: StateStore, clock: Clock, put_in_force: Put) -> None:
        self._state = state
        self._clock = clock
        self._put_in_force = put_in_force
        self._kept = Kept(0, b"")
        self._adopting = asyncio.Lock()
        self.orders = Orders()

    def __repr__(self) -> str:
        return f"<OrderBook version {self._kept.version}>"

    async def change(
        self,
        order: Order,
        *,
        by: str,
        unless: frozenset[str] | None = None,
        fence: Fence | None = None,
    ) -> None:
        """Change the orders everywhere; returns when the change is in force here.

        With `unless`, only while the part's tag is one of these; with a fence only while its leader
        leads. Raises Changed where the tag is not, NotLeading, StoreAway where nothing is known to
        be changed, and what the edit raises.
        """
        for _ in range(_ATTEMPTS):
            kept = await self._read()
            before = decode_orders(kept.document)
            after = _edit(order, before, unless)
            if after == before:
                await self._adopt(kept)
                return
            written = await self._state.write(
                ORDERS,
                encode_orders(after),
                after=kept.version,
                record=self._record(order, by, before, after),
                fence=fence,
            )
            if written is not None:
                await self._adopt(written)
                return
        raise Overloaded("others keep changing the orders")

    async def preview(self, order: Order, *, unless: frozenset[str] | None = None) -> Document:
        """Return what a change would change, and change nothing. Raises as `change` does."""
        before = decode_orders((await self._read()).document)
        after = _edit(order, before, unless)
        return {
            "dry_run": True,
            "action": order.action,
            "subject": order.subject,
            "changes": after != before,
            "before": _shown(order.part(before)),
            "after": _shown(order.part(after)),
        }

    async def refresh(self) -> None:
        """Take over what others ordered. Raises StoreAway."""
        await self._adopt(await self._read())

    async def begin(self) -> None:
        """Take over what is ordered, if the store says; else begin with the configuration."""
        try:
            await self.refresh()
        except StoreAway:
            _LOG.warning("the store is away: beginning with the configuration, without orders")

    async def run(self) -> None:
        """Follow the store until cancelled; while it is away the last orders stay in force."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.refresh()
            except StoreAway:
                continue

    async def audit(self, limit: int) -> list[Document]:
        """Return the latest changes, newest first. Raises StoreAway."""
        return [msgspec.json.decode(each) for each in await self._state.records(limit)]

    async def _read(self) -> Kept:
        """Return what the store has; what it has lost is written back."""
        known = self._kept  # by now: what is written here meanwhile is no loss
        kept = await self._state.read(ORDERS)
        if kept.version >= known.version:
            return kept
        _LOG.warning("the store has lost orders: version %d is written back", known.version)
        return await self._state.restore(ORDERS, known)

    async def _adopt(self, kept: Kept) -> None:
        async with self._adopting:
            if kept == self._kept or kept.version < self._kept.version:
                return
            try:
                orders = decode_orders(kept.document)
            except msgspec.DecodeError:
                _LOG.exception("orders of version %d cannot be read: kept out", kept.version)
                return
            self._kept = kept
            self.orders = orders
            await self._put_in_force(orders)

    def _record(self, order: Order, by: str, before: Orders, after: Orders) -> bytes:
        record = {
            "at": self._clock.now().isoformat(),
            "by": by,
            "action": order.action,
            "subject": order.subject,
            "before": _shown(order.part(before)),
            "after": _shown(order.part(after)),
        }
        return msgspec.json.encode(record)


def _edit(order: Order, before: Orders, unless: frozenset[str] | None) -> Orders:
    """Return the orders that there shall be. Raises Changed, and what the edit raises."""
    after = order.edit(before)
    if unless is not None and tag(order.part(before)) not in unless:
        raise Changed(f"{order.subject} was changed by somebody else")
    return after


def _shown(part: object) -> Any:  # noqa: ANN401 - JSON of any shape
    return _without_keys(msgspec.to_builtins(part))


def _without_keys(value: Any) -> Any:  # noqa: ANN401 - as above
    """Mask engines' credentials: the audit is read by viewers."""
    match value:
        case dict():
            return {
                key: "***" if key == "api_key" and each is not None else _without_keys(each)
                for key, each in value.items()
            }
        case list() | tuple():
            return [_without_keys(each) for each in value]
        case _:
            return value
