"""Messages and Responses bodies as the chats that vLLM makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.service.bodies import BodyKind, read_body
from router.service.conversations import chat_from_messages, chat_from_responses

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("body", "chat"),
    [
        ({"messages": [user("Hi")]}, [user("Hi")]),
        ({"messages": [{"role": "ctx", "content": "Hi"}]}, [user("Hi")]),
        ({"messages": [user([{"type": "text", "text": "Hi"}])]}, [user("Hi")]),
        (
            {"system": "Be.", "messages": [user("Hi")]},
            [{"role": "system", "content": "Be."}, user("Hi")],
        ),
        (
            {
                "system": [
                    {"type": "text", "text": "x-anthropic-billing-header: 7"},
                    {"type": "text", "text": "A"},
                    {"type": "text", "text": "B"},
                ],
                "messages": [{"role": "system", "content": "C"}, user("Hi")],
            },
            [{"role": "system", "content": "ABC"}, user("Hi")],
        ),
        (
            {"messages": [user([{"type": "text", "text": "See"}, IMAGE])]},
            [user([{"type": "text", "text": "See"}, URL])],
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "Hm"},
                            {"type": "redacted_thinking", "data": "x"},
                            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
                        ],
                    },
                    user([{"type": "tool_result", "tool_use_id": "t", "content": "two"}]),
                ]
            },
            [
                {
                    "role": "assistant",
                    "reasoning": "Hm",
                    "tool_calls": [
                        {
                            "id": "t",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"a": 1}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "t", "content": "two"},
            ],
        ),
        (
            {
                "messages": [
                    user(
                        [
                            {
                                "type": "tool_result",
                                "tool_use_id": "t",
                                "content": [
                                    {"type": "text", "text": "a"},
                                    {"type": "text", "text": "b"},
                                    IMAGE,
                                ],
                            },
                            {"type": "text", "text": "And?"},
                        ]
                    )
                ]
            },
            [
                {"role": "tool", "tool_call_id": "t", "content": "a\nb"},
                user([URL]),
                user("And?"),
            ],
        ),
    ],
)
def test_messages_become_a_chat(body: dict[str, Any], chat: list[Any]) -> None:
    """Systems are joined, single texts are plain, tools' uses and results are the chat's own."""
    assert chat_from_messages(body) == {"messages": chat}


def test_tools_of_messages() -> None:
    """A tool's input schema becomes its parameters, of type object where it says none."""
    tool = {"name": "f", "description": "d", "input_schema": {"properties": {}}}
    chat = chat_from_messages({"messages": [], "tools": [tool]})
    function = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    assert chat["tools"] == [{"type": "function", "function": function}]


@pytest.mark.parametrize(
    ("body", "chat"),
    [
        ({"input": "Hi"}, [user("Hi")]),
        (
            {"input": [user("Hi")], "instructions": "Be."},
            [{"role": "system", "content": "Be."}, user("Hi")],
        ),
        ({"input": [user([{"type": "input_text", "text": "Hi"}])]}, [user("Hi")]),
        (
            {
                "input": [
                    {"type": "reasoning", "summary": []},
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": "two"},
                ]
            },
            [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "f", "arguments": "{}"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": "two"},
            ],
        ),
    ],
)
def test_responses_become_a_chat(body: dict[str, Any], chat: list[Any]) -> None:
    """Instructions come first, items become messages, calls and their outputs the chat's own."""
    assert chat_from_responses(body) == {"messages": chat}


def test_tools_of_responses() -> None:
    """Functions are wrapped as a chat has them; tools that the server runs are no prompt's."""
    function = {"type": "function", "name": "f", "parameters": {}}
    chat = chat_from_responses({"input": "Hi", "tools": [function, {"type": "web_search"}]})
    assert chat["tools"] == [{"type": "function", "function": {"name": "f", "parameters": {}}}]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "text", "source", "input", "tools", "name"]
            ),
            inner
            | st.sampled_from(["text", "image", "tool_use", "tool_result", "message", "user"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_JSON, _JSON, _JSON)
def test_no_shape_is_too_odd(content: object, system: object, tools: object) -> None:
    """Values of any shape are converted or skipped: judging them is the engine's."""
    body = {"messages": content, "system": system, "tools": tools}
    chat_from_messages(body)
    chat_from_messages({**body, "messages": [{"role": "user", "content": content}]})
    chat_from_responses({"input": content, "instructions": system, "tools": tools})
    chat_from_responses({"input": [{"role": "user", "content": content}]})


def test_a_tools_result_is_text_unless_it_shows_a_picture() -> None:
    """Results of tools do not make a prompt multimodal; a picture in one does."""

    def media(result: str) -> bool:
        raw = (
            '{"model":"m","messages":[{"role":"user","content":'
            f'[{{"type":"tool_result","content":{result}}}]}}]}}'
        )
        return read_body(raw.encode(), BodyKind.MESSAGES).media

    assert not media('"sunny"')
    assert not media('[{"type":"text","text":"sunny"}]')
    assert media('[{"type":"image","source":{}}]')
