"""What any store of documents must do: one suite, held against each of them."""

from __future__ import annotations

import asyncio

from router.ports import Kept, StateStore


class StateSuite:
    """Every claim that a store of documents is held to; give the fixture `state`."""

    async def test_nothing_is_version_0(self, state: StateStore) -> None:
        """What was never written is empty, and there are no records."""
        assert await state.read("orders") == Kept(0, b"")
        assert await state.records(10) == []

    async def test_each_write_is_a_version(self, state: StateStore) -> None:
        """What is read is what was written last, under its own name."""
        assert await state.write("orders", b"one", after=0) == Kept(1, b"one")
        assert await state.write("orders", b"two", after=1) == Kept(2, b"two")
        assert await state.write("other", b"\x00\xff", after=0) == Kept(1, b"\x00\xff")
        assert await state.read("orders") == Kept(2, b"two")
        assert await state.read("other") == Kept(1, b"\x00\xff")

    async def test_who_has_not_seen_the_last_version_writes_nothing(
        self, state: StateStore
    ) -> None:
        """Neither the document nor the record, whether the writer is behind or ahead."""
        await state.write("orders", b"one", after=0)
        await state.write("orders", b"two", after=1, record=b"r2")
        for seen in (0, 1, 3):
            assert await state.write("orders", b"x", after=seen, record=b"rx") is None
        assert await state.read("orders") == Kept(2, b"two")
        assert await state.records(10) == [b"r2"]

    async def test_of_writers_at_once_one_is_first(self, state: StateStore) -> None:
        """All have seen the same version: one gets its word in."""
        outcomes = await asyncio.gather(
            *(state.write("orders", b"%d" % number, after=0) for number in range(20))
        )
        assert sum(outcome is not None for outcome in outcomes) == 1
        assert (await state.read("orders")).version == 1

    async def test_what_was_lost_is_written_back(self, state: StateStore) -> None:
        """With its own number; what the store has that is as new is left alone."""
        assert await state.restore("orders", Kept(7, b"seven")) == Kept(7, b"seven")
        assert await state.restore("orders", Kept(6, b"six")) == Kept(7, b"seven")
        assert await state.restore("orders", Kept(7, b"other")) == Kept(7, b"seven")
        assert await state.write("orders", b"eight", after=7) == Kept(8, b"eight")

    async def test_records_are_the_latest_first_and_bounded(self, state: StateStore) -> None:
        """The last thousand are kept."""
        for number in range(1003):
            await state.write("orders", b"x", after=number, record=b"%d" % number)
        assert await state.records(3) == [b"1002", b"1001", b"1000"]
        assert len(await state.records(2000)) == 1000
