"""Messages and Responses bodies as the chat that an engine makes of them. Pure.

Engines turn both into a chat before their template sees them; who counts tokens must do the same.
Sources: vLLM's `entrypoints/anthropic/serving.py` and `entrypoints/openai/responses/utils.py`.
Values of wrong types are skipped: the engine will refuse them in its own words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

Fields = dict[str, Any]
"""A chat body's members: `messages`, and `tools` where there are any."""

_ROLES: Final = {"ctx": "user", "msg": "user"}
"""Roles that a client of Messages sends beyond the documented ones."""

_ATTRIBUTION: Final = "x-anthropic-billing-header"
"""Begins a system block that vLLM drops: it differs in every request."""


def chat_from_messages(body: Mapping[str, Any]) -> Fields:
    """Return the chat that a Messages body stands for."""
    messages = _objects(body.get("messages"))
    system = list(_texts(body.get("system")))
    for message in messages:
        if message.get("role") == "system":
            system += _texts(message.get("content"))
    chat: list[Fields] = [{"role": "system", "content": "".join(system)}] if system else []
    for message in messages:
        if message.get("role") != "system":
            chat += _convert_message(message)
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description"),
                "parameters": {"type": "object", **_as_dict(tool.get("input_schema"))},
            },
        }
        for tool in _objects(body.get("tools"))
    ]
    return {"messages": chat} | ({"tools": tools} if tools else {})


def chat_from_responses(body: Mapping[str, Any]) -> Fields:
    """Return the chat that a Responses body stands for, without what an engine has stored."""
    chat: list[Fields] = []
    if isinstance(body.get("instructions"), str):
        chat.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    if isinstance(given, str):
        chat.append({"role": "user", "content": given})
    else:
        chat += filter(None, map(_convert_item, _objects(given)))
    tools = [
        {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
        for tool in _objects(body.get("tools"))
        if tool.get("type") == "function"
    ]
    return {"messages": chat} | ({"tools": tools} if tools else {})


def _texts(content: object) -> Iterator[str]:
    """Yield the texts of a system prompt."""
    if isinstance(content, str):
        yield content
    for block in _objects(content):
        text = block.get("text")
        if isinstance(text, str) and text and not text.startswith(_ATTRIBUTION):
            yield text


def _convert_message(message: Mapping[str, Any]) -> Iterator[Fields]:
    """Yield the chat messages of one message: results of tools become messages of their own."""
    role = message.get("role")
    role = _ROLES.get(role, role) if isinstance(role, str) else role
    content = message.get("content")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    blocks = _objects(content)
    for block in blocks:
        if block.get("type") == "tool_result" and role == "user":
            yield from _convert_tool_result(block)
    whole: Fields = {"role": role}
    if thoughts := [str(each.get("thinking", "")) for each in _of_type(blocks, "thinking")]:
        whole["reasoning"] = "".join(thoughts)
    if calls := [_convert_tool_use(each) for each in _of_type(blocks, "tool_use")]:
        whole["tool_calls"] = calls
    if parts := [part for each in blocks if (part := _convert_part(each)) is not None]:
        alone = len(parts) == 1 and parts[0]["type"] == "text"
        whole["content"] = parts[0]["text"] if alone else parts
    if role != "user" or parts:
        yield whole


def _convert_part(block: Mapping[str, Any]) -> Fields | None:
    """Return the content part of a block; None for what is no content."""
    match block.get("type", "text"):
        case "text" if block.get("text"):
            return {"type": "text", "text": block["text"]}
        case "image":
            return _convert_image(_as_dict(block.get("source")))
        case _:
            return None


def _convert_image(source: Mapping[str, Any]) -> Fields:
    url = source.get("url")
    if source.get("type") != "url":
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _convert_tool_use(block: Mapping[str, Any]) -> Fields:
    arguments = json.dumps(block.get("input") or {})
    function = {"name": block.get("name", ""), "arguments": arguments}
    return {"id": block.get("id", ""), "type": "function", "function": function}


def _convert_tool_result(block: Mapping[str, Any]) -> Iterator[Fields]:
    content = block.get("content")
    items = _objects(content)
    texts = [str(item.get("text", "")) for item in _of_type(items, "text")]
    images = _of_type(items, "image")
    told = content if isinstance(content, str) else "\n".join(texts)
    yield {"role": "tool", "tool_call_id": block.get("tool_use_id", ""), "content": told}
    if images:
        parts = [_convert_image(_as_dict(item.get("source"))) for item in images]
        yield {"role": "user", "content": parts}


def _convert_item(item: Mapping[str, Any]) -> Fields | None:
    """Return the chat message of one input item; None for what no prompt shows."""
    match item.get("type", "message"):
        case "message":
            return {"role": item.get("role"), "content": _join_parts(item.get("content"))}
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "tool_calls": [call]}
        case "function_call_output":
            told = _join_parts(item.get("output"))
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": told}
        case _:
            return None


def _join_parts(content: object) -> object:
    """Return parts with the names that chats have for them; one text alone is that text."""
    if not isinstance(content, list):
        return content
    parts = [
        {"type": "text", "text": part.get("text", "")}
        if part.get("type") in ("input_text", "output_text", "text")
        else part
        for part in _objects(content)
    ]
    alone = len(parts) == 1 and parts[0].get("type") == "text"
    return parts[0]["text"] if alone else parts


def _objects(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list, none for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _of_type(blocks: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [block for block in blocks if block.get("type") == kind]


def _as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
