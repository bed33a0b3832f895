"""The unmodified `openai` client against a whole gateway over stand-in engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.fakes.scripted_engine import RefusedPort, json_answer, stream
from tests.fakes.systems import (
    RECURRENT,
    System,
    fresh_ids,
    routing,
    scripted_system,
    standin_system,
)

KEY = "sk-acme"
TENANTS = [{"name": "acme", "api_keys": [KEY]}]
WORDS = "the quick brown fox jumps over the lazy dog and runs away from it "


@asynccontextmanager
async def connected(system: System, **options: Any) -> AsyncIterator[AsyncOpenAI]:  # noqa: ANN401
    """An asynchronous client for the time of the block."""
    settings = {"api_key": KEY, "max_retries": 0, "timeout": 10, **options}
    async with AsyncOpenAI(base_url=f"{system.url}/v1", **settings) as client:
        yield client


def chat(size: int) -> list[Any]:
    """A conversation of about so many words."""
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": (WORDS * (size // 10 + 1))[: size * 4]},
    ]


async def test_chats_on_both_routes(tmp_path: Path) -> None:
    """Short chats run locally, long ones over PrfaaS; both are whole ChatCompletions."""
    async with standin_system(tmp_path, groups=RECURRENT) as system, connected(system) as client:
        for size, route in ((10, "local"), (1000, "prfaas")):
            raw = await client.chat.completions.with_raw_response.create(
                model="tiny", messages=chat(size), max_tokens=12
            )
            assert raw.headers["x-prfaas-route"] == route
            answer = raw.parse()
            assert answer.model == "tiny"
            assert answer.choices[0].message.role == "assistant"
            assert answer.choices[0].message.content
            assert answer.choices[0].finish_reason in ("stop", "length")
            assert answer.usage is not None
            assert answer.usage.prompt_tokens == int(raw.headers["x-prfaas-total-tokens"])
            assert answer.usage.total_tokens == (
                answer.usage.prompt_tokens + answer.usage.completion_tokens
            )


@pytest.mark.parametrize("include_usage", [None, False, True])
async def test_streams(tmp_path: Path, include_usage: bool | None) -> None:
    """A stream's pieces join to the whole answer; usage comes exactly where it was asked for."""
    options: dict[str, Any] = (
        {} if include_usage is None else {"stream_options": {"include_usage": include_usage}}
    )
    async with standin_system(tmp_path) as system, connected(system) as client:
        for size in (10, 1000):
            asked: dict[str, Any] = {"model": "tiny", "messages": chat(size), "max_tokens": 12}
            whole = await client.chat.completions.create(**asked)
            chunks = [
                chunk
                async for chunk in await client.chat.completions.create(
                    **asked, stream=True, **options
                )
            ]
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert text == whole.choices[0].message.content
            bare = [chunk for chunk in chunks if not chunk.choices]
            assert len(bare) == (1 if include_usage else 0)
            if include_usage:
                assert bare == chunks[-1:]
                assert bare[0].usage is not None
                assert whole.usage is not None
                assert bare[0].usage.completion_tokens == whole.usage.completion_tokens


async def test_the_same_prompt_gives_the_same_answer_on_both_routes(tmp_path: Path) -> None:
    """Ids and text alike are answered the same whether the KV came over the link or not."""
    async with standin_system(tmp_path) as system, connected(system) as client:
        for prompt in (fresh_ids(300), WORDS * 30):
            texts = []
            for route in ("local", "prfaas"):
                await system.order("PUT", "override", {"route": route})
                raw = await client.completions.with_raw_response.create(
                    model="tiny", prompt=prompt, max_tokens=20
                )
                assert raw.headers["x-prfaas-route"] == route
                texts.append(raw.parse().choices[0].text)
            assert texts[0] == texts[1] != ""


async def test_completions_stream(tmp_path: Path) -> None:
    """A streamed completion of token ids joins to the whole one."""
    async with standin_system(tmp_path) as system, connected(system) as client:
        asked: dict[str, Any] = {"model": "tiny", "prompt": fresh_ids(300), "max_tokens": 20}
        whole = await client.completions.create(**asked)
        stream = await client.completions.create(**asked, stream=True)
        assert "".join([c.choices[0].text async for c in stream]) == whole.choices[0].text


async def test_models(tmp_path: Path) -> None:
    """`models.list` names every configured model, alias and adapter; `retrieve` finds one."""
    model = {"aliases": ["org/little"], "loras": [{"name": "poet"}]}
    async with scripted_system(tmp_path, model=model) as system, connected(system) as client:
        names = [each.id async for each in client.models.list()]
        assert names == ["tiny", "org/little", "poet"]
        assert (await client.models.retrieve("org/little")).id == "org/little"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("gpt-9")


async def test_the_synchronous_client(tmp_path: Path) -> None:
    """The synchronous client chats and streams as well."""

    def use(url: str) -> tuple[str | None, str]:
        with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            asked: dict[str, Any] = {"model": "tiny", "messages": chat(10), "max_tokens": 8}
            whole = client.chat.completions.create(**asked).choices[0].message.content
            stream = client.chat.completions.create(**asked, stream=True)
            return whole, "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    async with standin_system(tmp_path) as system:
        whole, streamed = await asyncio.to_thread(use, system.url)
    assert whole == streamed != ""


async def test_errors_have_their_classes(tmp_path: Path) -> None:
    """Each refusal of the gateway or the engine is the class that the client has for it."""
    asked: dict[str, Any] = {"model": "tiny", "messages": chat(10)}
    async with standin_system(tmp_path, tenants=TENANTS) as system, connected(system) as client:
        with pytest.raises(openai.AuthenticationError) as wrong:
            await client.with_options(api_key="sk-other").chat.completions.create(**asked)
        assert wrong.value.code == "invalid_api_key"
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(**{**asked, "model": "gpt-9"})
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as gateways:
            await client.chat.completions.create(**{**asked, "messages": "hello"})
        assert gateways.value.param == "messages"
        with pytest.raises(openai.BadRequestError) as engines:
            await client.chat.completions.create(**asked, max_tokens=-1)
        assert "max_tokens" in engines.value.message
        assert engines.value.response.headers["x-prfaas-route"] == "local"
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model="tiny", prompt=fresh_ids(8300), max_tokens=1)


async def test_nobody_alive_is_the_503_that_the_client_retries(tmp_path: Path) -> None:
    """With nobody alive the client's own retries run, and end in its 503 class."""
    with RefusedPort() as nobody:
        entries = {"d0": {"url": nobody}}
        async with (
            scripted_system(tmp_path, entries=entries) as system,
            connected(system) as client,
        ):
            with pytest.raises(openai.InternalServerError) as gone:
                await client.chat.completions.create(model="tiny", messages=chat(5))
    assert gone.value.status_code == 503
    assert gone.value.response.headers["retry-after"]


async def test_a_broken_stream_raises_in_the_client(tmp_path: Path) -> None:
    """An engine that dies in mid-stream is an APIError of the client, not a short answer."""
    async with standin_system(tmp_path) as system, connected(system) as client:
        system.host("d0").faults.broken_stream_after = 1
        stream = await client.chat.completions.create(
            model="tiny", messages=chat(10), max_tokens=50, stream=True
        )
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass
        await system.settled()


async def test_closing_a_stream_frees_everything(tmp_path: Path) -> None:
    """A client that closes its stream early leaves nothing in flight."""
    async with standin_system(tmp_path, time_scale=1) as system, connected(system) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=chat(10), max_tokens=2000, stream=True
        )
        await anext(aiter(stream))
        await stream.close()
        await system.settled()
        response = await system.complete(10)
        assert routing(response) == ("local", "below_threshold")


async def test_responses(tmp_path: Path) -> None:
    """Responses run on both routes, whole and streamed, and stream to the same text."""
    async with standin_system(tmp_path) as system, connected(system) as client:
        for size, route in ((10, "local"), (1000, "prfaas")):
            asked: dict[str, Any] = {"model": "tiny", "input": chat(size), "max_output_tokens": 12}
            raw = await client.responses.with_raw_response.create(**asked)
            assert raw.headers["x-prfaas-route"] == route
            whole = raw.parse()
            assert whole.model == "tiny"
            assert whole.output_text
            assert whole.usage is not None
            assert whole.usage.input_tokens == int(raw.headers["x-prfaas-total-tokens"])
            stream = await client.responses.create(**asked, stream=True)
            events = [event async for event in stream]
            assert events[0].type == "response.created"
            assert events[-1].type == "response.completed"
            texts = [each.delta for each in events if each.type == "response.output_text.delta"]
            assert "".join(texts) == whole.output_text


async def test_responses_are_found_where_they_were_made(tmp_path: Path) -> None:
    """Retrieve, cancel and continue go to the engine that keeps the response, of several."""
    async with (
        standin_system(tmp_path, names="p0 d0 d1") as system,
        connected(system) as client,
    ):
        for number in range(6):
            raw = await client.responses.with_raw_response.create(
                model="tiny", input=f"Say {number}.", max_output_tokens=5, stream=False
            )
            made, where = raw.parse(), raw.headers["x-prfaas-decode"]
            other = "d1" if where == "d0" else "d0"
            await system.order("PATCH", f"instances/{other}", {"state": "active"})
            again = await client.responses.with_raw_response.retrieve(made.id)
            assert again.headers["x-prfaas-decode"] == where
            assert again.parse().output_text == made.output_text
            with pytest.raises(openai.BadRequestError, match="synchronous"):
                await client.responses.cancel(made.id)
            next_one = await client.responses.with_raw_response.create(
                model="tiny", input="Go on.", previous_response_id=made.id, max_output_tokens=5
            )
            assert next_one.headers["x-prfaas-decode"] == where
            assert next_one.parse().previous_response_id == made.id
            # The other instance makes the next one.
            await system.order("PATCH", f"instances/{where}", {"state": "draining"})
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_unknown")


async def test_embeddings(tmp_path: Path) -> None:
    """Embeddings of one and several texts, in the client's own packed format."""
    async with standin_system(tmp_path) as system, connected(system) as client:
        one = await client.embeddings.create(model="tiny", input="a bee")
        several = await client.embeddings.create(model="tiny", input=["a bee", "a fly"])
        plain = await client.embeddings.create(model="tiny", input="a bee", encoding_format="float")
    assert one.model == "tiny"
    assert len(several.data) == 2
    assert several.data[0].embedding == one.data[0].embedding != several.data[1].embedding
    assert one.data[0].embedding == pytest.approx(plain.data[0].embedding)
    assert several.usage.prompt_tokens > one.usage.prompt_tokens


async def test_tools(tmp_path: Path) -> None:
    """Tool calls come back as the client's own type, whole and in pieces; results go up as said."""
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"z":1}'}}
    tool: Any = {"type": "function", "function": {"name": "now", "parameters": {}}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "tiny"}
    pieces = [
        {"index": 0, **call, "function": {"name": "now", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"z"'}},
        {"index": 0, "function": {"arguments": ":1}"}},
    ]
    chunk = {**whole, "object": "chat.completion.chunk"}
    deltas: list[Any] = [{"delta": {"tool_calls": [piece]}} for piece in pieces]
    deltas.append({"delta": {}, "finish_reason": "tool_calls"})
    events = [
        f"data: {json.dumps({**chunk, 'choices': [{'index': 0, **delta}]})}\n\n".encode()
        for delta in deltas
    ]
    said: list[Any] = [*chat(5), message, {"role": "tool", "tool_call_id": "c1", "content": "9"}]
    async with (
        scripted_system(tmp_path, names="b0", threshold=10_000) as system,
        connected(system) as client,
    ):
        engine = system.engine("b0")
        engine.reply(json_answer({**whole, "choices": [choice]}))
        answer = await client.chat.completions.create(model="tiny", messages=said, tools=[tool])
        assert answer.choices[0].message.tool_calls is not None
        assert answer.choices[0].message.tool_calls[0].type == "function"
        assert answer.choices[0].message.tool_calls[0].function.arguments == '{"z":1}'
        assert engine.calls[0].json()["messages"] == said
        engine.reply(stream(*events, b"data: [DONE]\n\n"))
        async with client.chat.completions.stream(
            model="tiny", messages=said, tools=[tool]
        ) as streamed:
            final = await streamed.get_final_completion()
        assert final.choices[0].message.tool_calls is not None
        assert final.choices[0].message.tool_calls[0].function.arguments == '{"z":1}'


@pytest.mark.parametrize(
    "extra",
    [
        {"echo": True, "logprobs": 1},
        {"n": 2, "logprobs": 1},
        {"logprobs": 1},
        {"extra_body": {"prompt_logprobs": 1}},
    ],
    ids=str,
)
async def test_r24_answers_are_a_single_engines(tmp_path: Path, extra: dict[str, Any]) -> None:
    """Echo, several answers and logprobs are what one engine alone says, whatever the length."""
    asked: dict[str, Any] = {"model": "tiny", "prompt": fresh_ids(400), "max_tokens": 6, **extra}
    async with standin_system(tmp_path) as system, connected(system) as client:
        ours = await client.completions.with_raw_response.create(**asked)
        whole = set(extra) != {"logprobs"}
        assert ours.headers["x-prfaas-route"] == ("local" if whole else "prfaas")
        async with AsyncOpenAI(
            base_url=f"{system.host('d0').url}/v1", api_key="x", max_retries=0
        ) as direct:
            alone = await direct.completions.create(**asked)
        told = ours.parse()
    assert len(told.choices) == extra.get("n", 1)
    assert told.choices == alone.choices
