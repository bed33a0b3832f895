"""Hand-offs between stand-in engines, through real HTTP: times, bytes, leases, failures, aborts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import httpx
import pytest

from router.sim.engines.specs import CacheSpec, LoadFailurePolicy
from tests.fakes.standins import (
    HYBRID,
    PREFILL_LEG,
    AffineProfile,
    TwoClusters,
    asking,
    two_clusters,
    until,
)

PROMPT = [10 + i % 3000 for i in range(1000)]
HYBRID_CACHE = CacheSpec(hash_unit=16, blocks=8192, groups=HYBRID)


def tokens_of(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    ids: list[int] = answer.json()["choices"][0]["token_ids"]
    return ids


@pytest.mark.parametrize("cache", [CacheSpec(hash_unit=16, blocks=4096), HYBRID_CACHE])
async def test_equal_prompts_give_equal_answers_with_and_without_handoff(cache: CacheSpec) -> None:
    """Local, pulled within the cluster and pulled over the link: one and the same answer."""
    async with two_clusters(cache=cache) as two:
        local = tokens_of(await two.complete("d", prompt=PROMPT, cache_salt="other"))
        for source in ("p", "pf"):
            params = await two.prefill(source, PROMPT, cache_salt=source)
            pulled = await two.complete(
                "d", prompt=PROMPT, cache_salt=source, kv_transfer_params=params
            )
            assert tokens_of(pulled) == local
            assert pulled.json()["kv_transfer_params"] is None


async def test_offer_has_the_fields_of_a_real_engine() -> None:
    """A hybrid prefill leg drops its last token: N - 1 tokens, one state a recurrent group."""
    async with two_clusters(cache=HYBRID_CACHE) as two:
        answer = await two.complete("p", prompt=PROMPT, **PREFILL_LEG)
        params = answer.json()["kv_transfer_params"]
        state = await two.state("p")
    assert set(params) == {
        "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id",
        "remote_request_id", "remote_host", "remote_port", "tp_size", "dcp_size", "pp_size",
        "remote_num_tokens", "remote_blocks_expiry_time", "remote_registration_generation",
        "transfer_mode", "remote_prefill_cached_tokens",
    }  # fmt: skip
    assert params["remote_num_tokens"] == 999
    assert [len(group) for group in params["remote_block_ids"]] == [1, 1, 1, 63]
    assert params["remote_engine_id"] == state["engine_id"]
    assert answer.json()["usage"]["prompt_tokens"] == 1000


async def test_bytes_over_the_link_are_those_of_the_profile() -> None:
    """S_kv(total), less what the decode engine holds itself the second time, is told by both."""
    profile = AffineProfile(fixed_bytes=50_000, bytes_per_token=100)
    async with two_clusters(cache=HYBRID_CACHE, profile=profile, overlap=False) as two:
        expected = 0
        for held in (0, 992):
            params = await two.prefill("pf", PROMPT)
            tokens_of(await two.complete("d", prompt=PROMPT, kv_transfer_params=params))
            expected += 50_000 + 100 * (999 - held)
        metrics = (await two.client.get(two.url("d") + "/metrics")).text
        assert (
            f'nixl_bytes_transferred_sum{{engine="0",model_name="tiny"}} {float(expected)}'
            in metrics
        )
        assert 'source="external_kv_transfer"} 1006.0' in metrics
        assert two.west.links["west-east"].describe()["bytes_sent"] == expected


@pytest.mark.parametrize(("overlap", "low", "high"), [(False, 0.55, 1.4), (True, 0.0, 0.3)])
async def test_link_time_is_hidden_by_overlap(overlap: bool, low: float, high: float) -> None:
    """Serially the transfer takes its full time; with overlap only what the prefill left of it."""
    # 1000 tokens: 0.6 s of prefill and, at 1 Gbit/s, 0.56 s of transfer.
    profile = AffineProfile(tokens_per_second=1000 / 0.6, bytes_per_token=70_000)
    async with two_clusters(profile=profile, overlap=overlap, time_scale=1.0) as two:
        params = await two.prefill("pf", PROMPT)
        began = time.monotonic()
        answer = await two.complete("d", prompt=PROMPT, max_tokens=1, kv_transfer_params=params)
        seconds = time.monotonic() - began
    tokens_of(answer)
    assert low <= seconds <= high


async def test_a_pull_within_the_cluster_takes_no_link() -> None:
    """The cluster's own fabric is not modelled: nothing crosses, nothing is waited for."""
    async with two_clusters(gbps=0.0) as two:
        params = await two.prefill("p", PROMPT)
        tokens_of(await two.complete("d", prompt=PROMPT, kv_transfer_params=params))
        assert two.west.links["west-east"].describe()["bytes_sent"] == 0


async def test_a_link_that_is_down_holds_transfers_until_it_is_up() -> None:
    """Down stalls, a new bandwidth applies to what is under way, and the admin path does both."""
    async with two_clusters(overlap=False) as two:
        link = two.url("pf") + "/standin/link/west-east"
        await two.client.put(link, json={"up": False})
        params = await two.prefill("pf", PROMPT)
        pull = asyncio.create_task(two.complete("d", prompt=PROMPT, kv_transfer_params=params))

        async def deferred() -> bool:
            return (await two.state("d"))["deferred"] == 1

        await until(deferred)
        assert two.west.links["west-east"].describe()["flows"] == 1
        changed = await two.client.put(link, json={"up": True, "gbps": 100})
        assert changed.json()["gbps"] == 100
        tokens_of(await pull)
        assert (await two.client.put(link, json={"gbps": -1})).status_code == 400
        assert (await two.client.get(two.url("p") + "/standin/link/nope")).status_code == 404


@pytest.mark.parametrize("spoil", ["engine", "request", "used"])
async def test_unknown_handoffs_fail_or_are_recomputed(spoil: str) -> None:
    """A wrong engine id, an unknown request and a used hand-off end by the failure policy."""
    for policy in LoadFailurePolicy:
        async with two_clusters(load_failure_policy=policy) as two:
            local = tokens_of(await two.complete("p", prompt=PROMPT))
            params = await two.prefill("p", PROMPT, cache_salt="x")
            if spoil == "used":
                await two.complete("d", prompt=PROMPT, kv_transfer_params=params, cache_salt="y")
            else:
                params[f"remote_{spoil}_id"] = "nobody"
            answer = await two.complete("d", prompt=PROMPT, kv_transfer_params=params)
            if policy is LoadFailurePolicy.RECOMPUTE:
                assert tokens_of(answer) == local
            else:
                assert answer.status_code == 500
                error = {"message": "Internal server error", "type": "InternalServerError"}
                assert error.items() <= answer.json()["error"].items()
                await check_streamed_failure(two, params)
            assert (await two.state("d"))["blocks_used"] == 0


async def check_streamed_failure(two: TwoClusters, params: dict[str, object]) -> None:
    answer = await two.complete("d", prompt=PROMPT, stream=True, kv_transfer_params=params)
    assert answer.status_code == 200
    first, second, _ = answer.text.split("\n\n")
    assert '"code":500' in first
    assert second == "data: [DONE]"


async def test_invalid_params_make_the_decode_engine_compute() -> None:
    """Without a required field vLLM logs and computes itself; so does the stand-in."""
    async with two_clusters() as two:
        params = await two.prefill("p", PROMPT)
        del params["remote_host"]
        answer = await two.complete("d", prompt=PROMPT, kv_transfer_params=params)
        tokens_of(answer)
        lookup = (await two.client.get(two.url("d") + "/standin/lookups")).json()["lookups"][-1]
        assert lookup["pulled"] is False


async def test_leases_end_and_free_the_blocks() -> None:
    """A hand-off that nobody pulls is gone after its lease, and its late pull fails."""
    async with two_clusters(lease_seconds=0.0, lease_floor_seconds=0.05) as two:
        params = await two.prefill("pf", PROMPT)

        async def freed() -> bool:
            state = await two.state("pf")
            return state["handoffs_expired"] == 1 and state["blocks_used"] == 0

        await until(freed)
        late = await two.complete("d", prompt=PROMPT, kv_transfer_params=params)
        assert late.status_code == 500
        assert two.west.links["west-east"].describe()["flows"] == 0


async def test_a_rejected_decode_leg_frees_the_prefill_side() -> None:
    """A decode engine that refuses the body tells the prefill engine, as vLLM does."""
    async with two_clusters() as two:
        params = await two.prefill("p", PROMPT)
        assert (await two.state("p"))["handoffs"] == 1
        refused = await two.complete("d", prompt=PROMPT, max_tokens=0, kv_transfer_params=params)
        assert refused.status_code == 400

        async def freed() -> bool:
            return (await two.state("p"))["handoffs"] == 0

        await until(freed)


@pytest.mark.parametrize("stream", [False, True])
async def test_r08_leaving_clients_free_everything_at_once(stream: bool) -> None:
    """A client that leaves frees its turn, slot and blocks; the engine computes no further."""
    async with two_clusters(time_scale=1.0, decode_tokens_per_second=1.0) as two:
        body = asking(prompt=PROMPT, max_tokens=1000, stream=stream)
        for name in ("p", "d"):
            url = f"{two.url(name)}/v1/completions"
            request = asyncio.create_task(two.client.post(url, json=body))
            await until(is_state(two, name, running=1))
            request.cancel()
            await until(is_state(two, name, running=0, waiting=0, blocks_used=0))
            metrics = (await two.client.get(two.url(name) + "/metrics")).text
            assert 'finished_reason="abort",model_name="tiny"} 1.0' in metrics


async def test_r08_leaving_during_a_pull_frees_both_sides() -> None:
    """A decode client that leaves while KV crosses ends the transfer and the pinned blocks."""
    async with two_clusters(gbps=0.000001, overlap=False, time_scale=1.0) as two:
        params = await two.prefill("pf", PROMPT[:100])
        body = asking(prompt=PROMPT[:100], kv_transfer_params=params)
        request = asyncio.create_task(two.client.post(two.url("d") + "/v1/completions", json=body))
        await until(is_state(two, "d", deferred=1))
        assert two.west.links["west-east"].describe()["flows"] == 1
        request.cancel()
        await until(is_state(two, "d", deferred=0, blocks_used=0))
        await until(is_state(two, "pf", handoffs=0, blocks_used=0))
        assert two.west.links["west-east"].describe()["flows"] == 0


async def test_a_prefill_client_that_leaves_aborts_its_prefill() -> None:
    """The next prefill in the queue starts at once, and no early transfer is left."""
    profile = AffineProfile(tokens_per_second=10.0)
    async with two_clusters(profile=profile, time_scale=1.0) as two:
        url = f"{two.url('pf')}/v1/completions"
        body = asking(prompt=PROMPT, **PREFILL_LEG)
        first = asyncio.create_task(two.client.post(url, json=body))
        await until(is_state(two, "pf", running=1))
        second = asyncio.create_task(two.client.post(url, json=asking(prompt=[7], max_tokens=1)))
        await until(is_state(two, "pf", waiting=1))
        first.cancel()
        answer = await asyncio.wait_for(second, 30)
        tokens_of(answer)
        await until(is_state(two, "pf", handoffs=0, blocks_used=0))
        assert two.west.links["west-east"].describe()["flows"] == 0


async def test_decode_slots_are_bounded_and_in_order() -> None:
    """Beyond `max_concurrency` requests wait for capacity, and answer first come, first served."""
    async with two_clusters(
        time_scale=1.0, max_concurrency=1, decode_tokens_per_second=10.0
    ) as two:
        done: list[int] = []

        async def ask(number: int) -> None:
            tokens_of(await two.complete("d", prompt=[number], max_tokens=5))
            done.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(ask(number + 1))
                await until(is_state(two, "d", waiting=number))
        assert done == [1, 2, 3]


async def test_queue_caps_refuse_with_503() -> None:
    """With as many requests queued as `max_queued` allows, the next is refused at once."""
    async with two_clusters(
        time_scale=1.0, max_concurrency=1, max_queued=1, decode_tokens_per_second=1.0
    ) as two:
        url = f"{two.url('d')}/v1/completions"
        queued: list[asyncio.Task[httpx.Response]] = []
        for number in range(2):
            request = two.client.post(url, json=asking(prompt=[number]))
            queued.append(asyncio.create_task(request))
            await until(is_state(two, "d", running=1, waiting=number))
        refused = await two.complete("d", prompt=[3])
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == 503
        for task in queued:
            task.cancel()


async def test_a_full_cache_makes_requests_wait_not_fail() -> None:
    """Requests that do not fit beside the others wait until blocks are free."""
    cache = CacheSpec(hash_unit=16, blocks=70)
    async with two_clusters(cache=cache, max_model_len=1100, time_scale=20.0) as two:
        prompts = [[start + i for i in range(900)] for start in (10, 1000, 2000)]
        answers = await asyncio.gather(*(two.complete("d", prompt=prompt) for prompt in prompts))
        assert all(len(tokens_of(answer)) == 8 for answer in answers)
        assert (await two.state("d"))["blocks_used"] == 0


def is_state(two: TwoClusters, name: str, **expected: int) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return expected.items() <= (await two.state(name)).items()

    return holds
