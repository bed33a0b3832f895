"""Messages, Responses and embeddings of the stand-in: what it refuses, keeps and moves."""

from __future__ import annotations

import pytest

from tests.fakes.standins import MODEL, two_clusters

SAID = [{"role": "user", "content": "the quick brown fox jumps over the lazy dog " * 10}]
PREFILL = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}


@pytest.mark.parametrize(
    ("path", "prefill", "body"),
    [
        ("/v1/messages", {"max_tokens": 1}, {"messages": SAID, "max_tokens": 8}),
        ("/v1/responses", {"max_output_tokens": 1}, {"input": SAID, "max_output_tokens": 8}),
    ],
)
async def test_both_take_a_handoff(
    path: str, prefill: dict[str, object], body: dict[str, object]
) -> None:
    """A prefill leg gives a hand-off, whose decode leg answers as one engine alone does."""
    async with two_clusters() as both:
        asked = {"model": MODEL, "ignore_eos": True, **body}
        first = await both.client.post(f"{both.url('pf')}{path}", json=asked | prefill | PREFILL)
        handoff = first.json()["kv_transfer_params"]
        assert handoff["do_remote_prefill"] is True
        second = await both.client.post(
            f"{both.url('d')}{path}", json=asked | {"kv_transfer_params": handoff}
        )
        alone = await both.client.post(f"{both.url('p')}{path}", json=asked)
        shown = [
            answer.json().get("content") or answer.json()["output"] for answer in (second, alone)
        ]
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/messages", {"messages": SAID}, 400),
        ("/v1/messages", {"max_tokens": 5}, 400),
        ("/v1/messages", {"messages": SAID, "max_tokens": 5, "model": "gpt-9"}, 404),
        ("/v1/responses", {}, 400),
        ("/v1/responses", {"input": "Hi", "previous_response_id": "resp_9"}, 404),
        ("/v1/responses/resp_9/cancel", {}, 404),
        ("/v1/embeddings", {}, 400),
        ("/v1/messages/render", {"messages": SAID, "max_tokens": 5}, 403),
        ("/v1/responses/render", {"input": "Hi"}, 403),
    ],
)
async def test_refusals(path: str, body: dict[str, object], status: int) -> None:
    """What vLLM refuses is refused, with its status and shape."""
    async with two_clusters() as both:
        answer = await both.client.post(f"{both.url('d')}{path}", json={"model": MODEL, **body})
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status


async def test_what_is_not_stored_is_not_found() -> None:
    """`store: false` keeps nothing; anything else is kept as it was answered."""
    async with two_clusters() as both:
        url = f"{both.url('d')}/v1/responses"
        for store, status in ((False, 404), (True, 200)):
            made = await both.client.post(
                url, json={"model": MODEL, "input": "Hi", "store": store, "max_output_tokens": 4}
            )
            kept = await both.client.get(f"{url}/{made.json()['id']}")
            assert kept.status_code == status
        assert kept.json()["output"] == made.json()["output"]
