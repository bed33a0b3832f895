"""Links' bytes that processes reserve in a real Redis: never more together than one may book."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from router.adapters.store.bookings import RedisBookings
from router.adapters.store.keys import StoreKeys
from router.domain.errors import StoreAway
from router.domain.units import Bytes
from router.service.reservations import SharedRoom, Stated
from tests.fakes.booking_stores import BookingBoard
from tests.fakes.clocks import FakeClock
from tests.fakes.live_engines import prefilled
from tests.fakes.redis_servers import Server, redis_server
from tests.fakes.scripted_engine import Until
from tests.fakes.shared_stores import join, until
from tests.fakes.systems import routing, scripted_system, serve_gateway

LINK, BACK = "west-east", "east-west"
LIMIT = Bytes(100_000_000_000)
PROMPT = 2000
"""Tokens, and thousands of bytes."""


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


async def test_the_script_counts_as_the_tests_board_does(redis: Server) -> None:
    """The same calls of three processes in the same order have the same answers."""
    redis.call("FLUSHALL")
    chance, board = Random(5), BookingBoard(FakeClock(), lease=60)
    async with join(redis.url) as peer:
        names = ("a", "b", "c")
        real = {name: RedisBookings(peer.store, StoreKeys(), name, lease=60) for name in names}
        fake = {name: board.seat(name) for name in names}
        for _ in range(200):
            name = chance.choice(names)
            if chance.random() < 0.05:
                await asyncio.gather(real[name].leave(), fake[name].leave())
                continue
            links = chance.sample((LINK, BACK), chance.randint(0, 2))
            stated = {
                link: Stated(Bytes(chance.randrange(LIMIT // 3)), Bytes(chance.randrange(LIMIT)))
                for link in links
            }
            asks: list[Mapping[str, Bytes]] = [
                {link: Bytes(chance.randrange(LIMIT // 3)) for link in links}
                for _ in range(chance.randint(0, 3) if links else 0)
            ]
            told = await real[name].state(stated, asks)
            wanted = await fake[name].state(stated, asks)
            assert list(told.granted) == list(wanted.granted)
            assert told.others == wanted.others


async def test_who_was_killed_holds_nothing_after_its_lease(redis: Server) -> None:
    """Who leaves holds nothing at once; a call that was overtaken changes nothing."""
    redis.call("FLUSHALL")
    whole = {LINK: Stated(Bytes(100), Bytes(100))}
    async with join(redis.url) as peer:
        killed, leaving, living = (
            RedisBookings(peer.store, StoreKeys(), name, lease=lease)
            for name, lease in (("killed", 0.5), ("leaving", 30), ("living", 30))
        )
        await killed.state(whole, [])

        async def is_free() -> bool:
            answer = await living.state({LINK: Stated(Bytes(0), Bytes(100))}, [{LINK: Bytes(0)}])
            return answer.others == {LINK: 0}

        assert not await is_free()
        await until(is_free)
        await leaving.state(whole, [])
        await leaving.leave()
        assert await is_free()
        early = RedisBookings(peer.store, StoreKeys(), "living", lease=30)
        with pytest.raises(StoreAway):
            await early.state(whole, [])
        await living.state({}, [])
        assert redis.call("EXISTS", StoreKeys().bookings) == 0


@asynccontextmanager
async def rooms(url: str, count: int) -> AsyncIterator[list[SharedRoom]]:
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(join(url)) for _ in range(count)]
        every = [
            SharedRoom(RedisBookings(peer.store, StoreKeys(), peer.name), lambda _: Bytes(100))
            for peer in peers
        ]
        tasks = [asyncio.create_task(room.run()) for room in every]
        try:
            yield every
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_three_processes_never_hold_more_than_the_limit(redis: Server) -> None:
    """Sixty requests that try again when refused are all served, and fit at every moment."""
    redis.call("FLUSHALL")
    chance, most, refused = Random(3), 0, 0

    async def serve(room: SharedRoom, every: list[SharedRoom], size: int) -> None:
        nonlocal most, refused
        while (reserved := await room.reserve({LINK: Bytes(size)})) is None:
            refused += 1
            await asyncio.sleep(chance.uniform(0.001, 0.01))
        most = max(most, sum(each.held[LINK] for each in every))
        await asyncio.sleep(chance.uniform(0.001, 0.01))
        for each in reserved:
            each.release()

    async with rooms(redis.url, 3) as every, asyncio.timeout(60):
        sizes = [chance.choice((20, 40, 70)) for _ in range(60)]
        await asyncio.gather(
            *(serve(every[number % 3], every, size) for number, size in enumerate(sizes))
        )
        assert not any(room.held[LINK] for room in every)
    assert most <= 100
    assert refused


@pytest.mark.parametrize("policy", ["paper", "slack"])
async def test_gateways_that_decide_at_once_share_the_link(
    tmp_path: Path, redis: Server, policy: str
) -> None:
    """The link may be booked for one prompt: of two that come to two gateways one stays at home."""
    redis.call("FLUSHALL")
    store = {"url": redis.url, "timeout_ms": 5000}
    scheduler = {"policy": policy, "link_budget_seconds": 3 * PROMPT / 250_000}
    profiles = {"prfaas": "./profile.yaml", "pd": "./profile.yaml"}
    async with (
        scripted_system(
            tmp_path,
            names="p0 p1 d0 d1 f0 f1",
            model={"profiles": profiles},
            store=store,
            scheduler=scheduler,
        ) as one,
        serve_gateway(tmp_path / "prfaas.yaml", engines=one.engines) as two,
    ):
        crossed = 0
        for _ in range(3):
            gate = asyncio.Event()
            for name in ("f0", "f1"):
                one.engine(name).reply([Until(gate), *prefilled(name)])
            asked = [asyncio.create_task(each.complete(PROMPT)) for each in (one, two)]
            done, _ = await asyncio.wait(asked, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            assert routing(done.pop().result())[0] == "local"
            gate.set()
            answers = await asyncio.gather(*asked)
            assert [answer.status_code for answer in answers] == [200, 200]
            routes = [routing(answer)[0] for answer in answers]
            assert routes.count("prfaas") <= 1
            crossed += routes.count("prfaas")
            await one.settled()
            await two.settled()

            async def is_given_back() -> bool:
                return redis.call("EXISTS", StoreKeys().bookings) == 0

            await until(is_given_back)
        assert crossed == 3 or policy == "slack"
        assert crossed
        await one.order("PUT", "override", {"route": "prfaas"})
        await two.until(lambda state: bool(state["overrides"]))
        ordered = await asyncio.gather(one.complete(PROMPT), two.complete(PROMPT))
        assert {routing(answer) for answer in ordered} == {("prfaas", "override")}
