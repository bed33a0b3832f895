"""The unmodified `anthropic` client against a whole gateway over stand-in engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from tests.fakes.scripted_engine import RefusedPort, json_answer
from tests.fakes.systems import RECURRENT, System, scripted_system, standin_system

KEY = "sk-acme"
TENANTS = [{"name": "acme", "api_keys": [KEY]}]
WORDS = "the quick brown fox jumps over the lazy dog and runs away from it "
WEATHER: Any = {
    "name": "weather",
    "description": "Tell the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@asynccontextmanager
async def connected(system: System, **options: Any) -> AsyncIterator[AsyncAnthropic]:  # noqa: ANN401
    """A client for the time of the block."""
    settings = {"api_key": KEY, "max_retries": 0, "timeout": 10, **options}
    async with AsyncAnthropic(base_url=system.url, **settings) as client:
        yield client


def asking(size: int, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    """The arguments of a message of about so many words."""
    text = (WORDS * (size // 10 + 1))[: size * 4]
    said = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    return {
        "model": "tiny",
        "max_tokens": 12,
        "system": "Be brief.",
        "messages": said,
        "tools": [WEATHER],
        **changes,
    }


async def test_messages_on_both_routes(tmp_path: Path) -> None:
    """Short ones run locally, long ones over PrfaaS; ours, the engine's and its count are equal."""
    async with (
        standin_system(tmp_path, groups=RECURRENT, threshold=300) as system,
        connected(system) as client,
    ):
        for size, route in ((10, "local"), (1000, "prfaas")):
            raw = await client.messages.with_raw_response.create(**asking(size))
            assert raw.headers["x-prfaas-route"] == route
            answer = await raw.parse()
            assert (answer.model, answer.role) == ("tiny", "assistant")
            assert answer.content[0].type == "text"
            assert answer.content[0].text
            assert answer.stop_reason in {"end_turn", "max_tokens"}
            asked = asking(size)
            del asked["max_tokens"]
            counted = await client.messages.count_tokens(**asked)
            told = int(raw.headers["x-prfaas-total-tokens"])
            assert counted.input_tokens == answer.usage.input_tokens == told
        assert (await system.metrics()).total("tokenizer_drift_total") == 0


async def test_streams_join_to_the_whole_answer(tmp_path: Path) -> None:
    """On either route a stream's text is the whole answer's, and it ends as the client expects."""
    async with standin_system(tmp_path, threshold=300) as system, connected(system) as client:
        for size in (10, 1000):
            whole = await client.messages.create(**asking(size))
            async with client.messages.stream(**asking(size)) as stream:
                texts = [text async for text in stream.text_stream]
                final = await stream.get_final_message()
            assert whole.content[0].type == final.content[0].type == "text"
            assert "".join(texts) == final.content[0].text == whole.content[0].text
            assert final.model == "tiny"
            assert final.usage.output_tokens == whole.usage.output_tokens


async def test_tools(tmp_path: Path) -> None:
    """A tool's use comes back as the client's own type, and its result goes up as it was said."""
    use = {"type": "tool_use", "id": "tu_1", "name": "weather", "input": {"city": "Bonn"}}
    document = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [use],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 3},
    }
    async with scripted_system(tmp_path, names="b0") as system, connected(system) as client:
        system.engine("b0").on("/v1/messages", json_answer(document))
        answer = await client.messages.create(**asking(5))
        [block] = answer.content
        assert block.type == "tool_use"
        assert block.input == {"city": "Bonn"}
        result = {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
        said: list[Any] = [
            *asking(5)["messages"],
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
        await client.messages.create(**asking(5, messages=said))
        calls = [each for each in system.engine("b0").requests if each.path == "/v1/messages"]
        assert calls[-1].json()["messages"] == said


async def test_errors_have_their_classes(tmp_path: Path) -> None:
    """Each refusal of the gateway or the engine is the class that the client has for it."""
    async with (
        standin_system(tmp_path, tenants=TENANTS, threshold=300) as system,
        connected(system) as client,
    ):
        await client.messages.create(**asking(5))
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="sk-other").messages.create(**asking(5))
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await client.messages.create(**asking(5, model="claude-9"))
        assert "claude-9" in str(unknown.value)
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(**asking(5, messages="hello"))
        with pytest.raises(anthropic.BadRequestError) as engines:
            await client.messages.create(**asking(5, max_tokens=-1))
        assert engines.value.response.headers["x-prfaas-route"] == "local"


async def test_nobody_alive_is_the_503_that_the_client_retries(tmp_path: Path) -> None:
    """With nobody alive the client raises its class for 503."""
    with RefusedPort() as nobody:
        entries = {"d0": {"url": nobody}}
        async with (
            scripted_system(tmp_path, entries=entries) as system,
            connected(system) as client,
        ):
            with pytest.raises(anthropic.InternalServerError) as gone:
                await client.messages.create(**asking(5))
    assert gone.value.status_code == 503
    assert gone.value.response.headers["retry-after"]


async def test_a_broken_stream_raises_in_the_client(tmp_path: Path) -> None:
    """An engine that dies in mid-stream is an APIError of the client, not a short answer."""
    async with standin_system(tmp_path, threshold=300) as system, connected(system) as client:
        system.host("d0").faults.broken_stream_after = 1
        stream = await client.messages.create(**asking(10, max_tokens=50), stream=True)
        with pytest.raises(anthropic.APIError):
            async for _ in stream:
                pass
        await system.settled()
