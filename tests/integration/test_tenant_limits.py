"""Tenants' limits through a whole gateway: 429s, their headers, and the `openai` client's view."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tests.fakes.live_engines import LiveEngine, completed
from tests.fakes.raw_clients import calling
from tests.fakes.scripted_engine import Hold, Until
from tests.fakes.systems import MODEL, fresh_ids, routing, scripted_system

KEY = "sk-acme-1111"
BEARER = {"authorization": f"Bearer {KEY}"}


def tenant(**limits: int) -> list[dict[str, Any]]:
    return [{"name": "acme", "api_keys": [KEY], **limits}]


def rates(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the `x-ratelimit-*` headers without their stem."""
    stem = "x-ratelimit-"
    return {name.removeprefix(stem): headers[name] for name in headers if name.startswith(stem)}


def assert_refused(answer: httpx.Response, word: str) -> None:
    assert answer.status_code == 429
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert word in error["message"]
    assert int(answer.headers["retry-after"]) >= 1


def hold(engine: LiveEngine) -> asyncio.Event:
    """Let an engine answer only once the event is set."""
    gate = asyncio.Event()
    engine.reply([Until(gate), *completed(engine.name, MODEL)])
    return gate


async def test_requests_a_minute(tmp_path: Path) -> None:
    """Each answer tells what is left; over the limit it is 429 until the told time."""
    async with scripted_system(tmp_path, tenants=tenant(requests_per_minute=2)) as system:
        left = []
        for _ in range(2):
            answer = await system.complete(10, headers=BEARER)
            assert answer.status_code == 200
            assert rates(answer.headers)["limit-requests"] == "2"
            left.append(rates(answer.headers)["remaining-requests"])
        assert left == ["1", "0"]
        calls = len(system.engine("d0").calls)
        refused = await system.complete(10, headers=BEARER)
        assert_refused(refused, "2 requests a minute")
        assert rates(refused.headers)["remaining-requests"] == "0"
        assert 28 < int(refused.headers["retry-after"]) <= 30
        assert rates(refused.headers)["reset-requests"].removesuffix("s").replace(".", "").isdigit()
        assert len(system.engine("d0").calls) == calls
        await system.counted("requests_total", code="429")


async def test_a_rate_is_replenished_evenly(tmp_path: Path) -> None:
    """Who waits as long as `retry-after-ms` says is served, with the bucket still almost empty."""
    async with scripted_system(tmp_path, tenants=tenant(requests_per_minute=60)) as system:

        async def ask() -> httpx.Response:
            return await system.complete(10, headers=BEARER)

        answers = await asyncio.gather(*(ask() for _ in range(70)))
        statuses = Counter(answer.status_code for answer in answers)
        assert statuses.keys() == {200, 429}, statuses
        assert 60 <= statuses[200] < 70
        refused = answers[-1]
        while refused.status_code != 429:
            refused = await ask()
        await asyncio.sleep(int(refused.headers["retry-after-ms"]) / 1000)
        assert (await ask()).status_code == 200


async def test_tokens_a_minute(tmp_path: Path) -> None:
    """Prompt tokens are charged as counted; a refused prompt leaves room for a shorter one."""
    limits = {"tokens_per_minute": 100, "requests_per_minute": 50}
    async with scripted_system(tmp_path, tenants=tenant(**limits)) as system:
        first = await system.complete(60, headers=BEARER)
        assert rates(first.headers)["remaining-tokens"] == "40"
        assert rates(first.headers)["remaining-requests"] == "49"
        refused = await system.complete(60, headers=BEARER)
        assert_refused(refused, "100 prompt tokens a minute")
        assert 1 <= int(refused.headers["retry-after"]) <= 12
        assert rates(refused.headers)["remaining-requests"] == "49"
        assert (await system.complete(40, headers=BEARER)).status_code == 200


async def test_a_prompt_over_the_whole_limit(tmp_path: Path) -> None:
    """It is 429 and tells clients that no retry will help."""
    async with scripted_system(tmp_path, tenants=tenant(tokens_per_minute=100)) as system:
        refused = await system.complete(101, headers=BEARER)
        assert_refused(refused, "must be shorter")
        assert refused.headers["x-should-retry"] == "false"
        async with AsyncOpenAI(base_url=f"{system.url}/v1", api_key=KEY, max_retries=5) as client:
            async with asyncio.timeout(10):
                with pytest.raises(openai.RateLimitError):
                    await client.completions.create(model=MODEL, prompt=fresh_ids(101))


async def test_requests_at_once(tmp_path: Path) -> None:
    """One over the limit is 429 without waiting; when one ends there is room again."""
    async with scripted_system(tmp_path, tenants=tenant(max_concurrency=2)) as system:
        gate = hold(system.engine("d0"))
        running = [asyncio.create_task(system.complete(10, headers=BEARER)) for _ in range(2)]
        await system.engine("d0").called(2)
        refused = await system.complete(10, headers=BEARER)
        assert_refused(refused, "2 requests at once")
        assert rates(refused.headers) == {}
        gate.set()
        assert [(await task).status_code for task in running] == [200, 200]
        assert (await system.complete(10, headers=BEARER)).status_code == 200


async def test_r09_those_who_leave_are_not_running(tmp_path: Path) -> None:
    """Clients that leave in every phase give back their place among the requests at once."""
    async with scripted_system(tmp_path, tenants=tenant(max_concurrency=3)) as system:
        engine = system.engine("d0")
        engine.reply([Hold()])
        for count in (1, 2, 3):
            async with calling(system.url) as call:
                await call.ask("/v1/completions", {"model": MODEL, "prompt": [1, 2]}, BEARER)
                await engine.called(count)
        async with calling(system.url) as call:
            await call.send_head("/v1/completions", {**BEARER, "content-length": "99"})
        await system.settled()
        gate = hold(engine)
        running = [asyncio.create_task(system.complete(10, headers=BEARER)) for _ in range(3)]
        await engine.called(6)
        gate.set()
        assert [(await task).status_code for task in running] == [200] * 3


async def test_what_fails_is_not_charged(tmp_path: Path) -> None:
    """Requests that are malformed or for unknown models use nothing up."""
    async with scripted_system(tmp_path, tenants=tenant(requests_per_minute=1)) as system:
        for body in (b"{", b'{"model": "gpt-9", "prompt": "x"}', b'{"model": "tiny"}'):
            answer = await system.client.post("/v1/completions", content=body, headers=BEARER)
            assert answer.status_code in (400, 404)
        assert (await system.complete(10, headers=BEARER)).status_code == 200
        assert_refused(await system.complete(10, headers=BEARER), "1 requests a minute")


async def test_unlimited_tenants_see_no_limits(tmp_path: Path) -> None:
    """Without a limit no answer carries a rate, and one tenant's limit is not another's."""
    others = [{"name": "bits", "api_keys": ["sk-bits"]}]
    tenants = [*tenant(requests_per_minute=1), *others]
    async with scripted_system(tmp_path, tenants=tenants) as system:
        for _ in range(3):
            free = await system.complete(10, headers={"authorization": "Bearer sk-bits"})
            assert free.status_code == 200
            assert rates(free.headers) == {}
        assert (await system.complete(10, headers=BEARER)).status_code == 200


async def test_limits_and_routes_are_told_together(tmp_path: Path) -> None:
    """A limited tenant's request is routed as ever, and an engine's refusal tells the rates too."""
    async with scripted_system(tmp_path, tenants=tenant(tokens_per_minute=2000)) as system:
        answer = await system.complete(500, headers=BEARER)
        assert routing(answer) == ("prfaas", "above_threshold")
        assert rates(answer.headers)["limit-tokens"] == "2000"


async def test_the_openai_client_raises_rate_limit_errors(tmp_path: Path) -> None:
    """The unmodified client raises RateLimitError, and its own retries wait as they are told."""
    async with (
        scripted_system(tmp_path, tenants=tenant(requests_per_minute=120)) as system,
        AsyncOpenAI(base_url=f"{system.url}/v1", api_key=KEY, max_retries=0) as client,
    ):

        async def ask(asker: AsyncOpenAI = client) -> object:
            return await asker.completions.create(model=MODEL, prompt=[1, 2, 3])

        async def ask_on() -> None:
            """Ask until refused, however many requests come back meanwhile."""
            for _ in range(100):
                await asyncio.gather(*(ask() for _ in range(20)))

        with pytest.raises(openai.RateLimitError) as refused:
            await ask_on()
        assert refused.value.code == "rate_limit_exceeded"
        assert await ask(client.with_options(max_retries=4))
