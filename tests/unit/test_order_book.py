"""The order book over any store: whose word counts, what is written back, what is recorded."""

from __future__ import annotations

import pytest

from router.adapters.memory_state import MemoryState
from router.control.links import LinkHealth
from router.domain.errors import Changed, StoreAway
from router.domain.topology import Instance, Role
from router.ports import Kept
from router.service.order_book import ORDERS, Order, OrderBook
from router.service.orders import LinkOrder, Orders, tag, with_added, with_link
from tests.fakes.clocks import FakeClock

DOWN = LinkOrder(LinkHealth.DOWN)


def close(name: str) -> Order:
    """Take a link down."""
    return Order(
        "link.set", name, lambda orders: orders.links.get(name), lambda o: with_link(o, name, DOWN)
    )


class Process:
    """A book, and what it put in force."""

    def __init__(self, state: MemoryState) -> None:
        self.in_force: list[Orders] = []
        self.book = OrderBook(state, FakeClock(), self._put)

    async def _put(self, orders: Orders) -> None:
        self.in_force.append(orders)

    @property
    def closed(self) -> set[str]:
        return set(self.in_force[-1].links) if self.in_force else set()


class AwayState(MemoryState):
    """A store that answers only while `here`."""

    here = True

    async def read(self, name: str) -> Kept:
        if not self.here:
            raise StoreAway("away")
        return await super().read(name)


@pytest.fixture
def state() -> AwayState:
    return AwayState()


async def test_a_change_is_in_force_at_once_and_elsewhere_with_the_next_look(
    state: AwayState,
) -> None:
    """Each change is put in force once, however often the others look."""
    here, there = Process(state), Process(state)
    await here.book.change(close("a"), by="ops")
    assert here.closed == {"a"}
    assert there.closed == set()
    for _ in range(3):
        await there.book.refresh()
        await here.book.refresh()
    assert there.closed == {"a"}
    assert (len(here.in_force), len(there.in_force)) == (1, 1)


async def test_a_change_builds_on_what_others_ordered(state: AwayState) -> None:
    """Who has not looked for a while undoes nothing."""
    here, there = Process(state), Process(state)
    await here.book.change(close("a"), by="ops")
    await there.book.change(close("b"), by="ops")
    assert there.closed == {"a", "b"}


async def test_a_change_of_what_was_not_seen_is_refused(state: AwayState) -> None:
    """With a tag the part must be as it was seen; another part may have changed."""
    here, there = Process(state), Process(state)
    seen = frozenset({tag(None)})
    await here.book.change(close("a"), by="ops", unless=seen)
    await there.book.change(close("b"), by="ops", unless=seen)
    with pytest.raises(Changed):
        await there.book.change(close("a"), by="ops", unless=seen)
    assert await there.book.audit(10) == await here.book.audit(10)
    assert len(await here.book.audit(10)) == 2


async def test_what_the_store_lost_is_written_back(state: AwayState) -> None:
    """After a flush the orders in force stay so, here and for whoever comes new."""
    here = Process(state)
    await here.book.change(close("a"), by="ops")
    await here.book.change(close("b"), by="ops")
    state._documents.clear()
    await here.book.refresh()
    assert len(here.in_force) == 2
    newcomer = Process(state)
    await newcomer.book.begin()
    assert newcomer.closed == {"a", "b"}


async def test_a_change_after_a_loss_keeps_what_was_in_force(state: AwayState) -> None:
    """Also where the operator is quicker than the next look."""
    here = Process(state)
    await here.book.change(close("a"), by="ops")
    state._documents.clear()
    await here.book.change(close("b"), by="ops")
    assert here.closed == {"a", "b"}


async def test_what_others_wrote_after_a_loss_counts(state: AwayState) -> None:
    """Of two documents with one number the store's is in force everywhere."""
    here = Process(state)
    await here.book.change(close("a"), by="ops")
    state._documents.clear()
    there = Process(state)
    await there.book.change(close("b"), by="ops")
    await here.book.refresh()
    assert here.closed == there.closed == {"b"}


async def test_while_the_store_is_away_orders_stay_and_none_is_taken(state: AwayState) -> None:
    """A newcomer begins with the configuration; a change fails and changes nothing."""
    here = Process(state)
    await here.book.change(close("a"), by="ops")
    state.here = False
    with pytest.raises(StoreAway):
        await here.book.change(close("b"), by="ops")
    assert here.closed == {"a"}
    newcomer = Process(state)
    await newcomer.book.begin()
    assert newcomer.in_force == []


async def test_what_cannot_be_read_is_kept_out(state: AwayState) -> None:
    """A document from elsewhere does not end the orders in force."""
    here = Process(state)
    await here.book.change(close("a"), by="ops")
    await state.write(ORDERS, b'{"links": 3}', after=1)
    await here.book.refresh()
    assert here.closed == {"a"}


async def test_records_tell_who_changed_what_and_no_key(state: AwayState) -> None:
    """Before and after, without engines' credentials; what changes nothing is no change."""
    here = Process(state)
    added = Instance("d1", "east", "http://d1", Role.DECODE, api_key="sk-upstream")
    for _ in range(2):
        await here.book.change(close("a"), by="ops")
    await here.book.change(
        Order(
            "instance.add", "d1", lambda o: o.added.get("d1"), lambda o: with_added(o, {}, added)
        ),
        by="seer",
    )
    latest, first = await here.book.audit(10)
    assert (first["by"], first["action"], first["subject"]) == ("ops", "link.set", "a")
    assert (first["before"], first["after"]["health"]) == (None, "down")
    assert first["at"] == "2026-01-01T00:00:00+00:00"
    assert latest["after"]["api_key"] == "***"
    assert await here.book.audit(1) == [latest]
